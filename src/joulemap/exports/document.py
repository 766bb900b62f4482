"""One JSON document with a published schema: the recording, its sums, its domains, steps and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joulemap import __version__
from joulemap.exports.source import Source
from joulemap.views.question import Question
from joulemap.views.show import to_json


def write(source: Source, path: Path) -> None:
    """Write the document; ``docs/schemas/export-1.schema.json`` says what is in it."""
    path.write_text(json.dumps(contents(source), indent=1, allow_nan=False) + "\n")


def contents(source: Source) -> dict[str, Any]:
    """Format 1: what ``show --by tensor --json`` says, and what is known about the recording."""
    said = to_json(source.footprint, Question(by="tensor"))
    return {
        "format": said.pop("format"),
        "joulemap": __version__,
        "recording": _recording(source),
        **said,
        "steps": _steps(source),
        "edges": [list(pair) for pair in source.program.edges],
    }


def _recording(source: Source) -> dict[str, Any]:
    info = source.recording.info
    window = list(info.window_ns) if info.window_ns else None
    return {
        "name": source.recording.path.name,
        "command": info.command,
        "source": info.source,
        "host": info.host,
        "versions": info.versions,
        "status": info.status,
        "window_ns": window,
    }


def _steps(source: Source) -> list[dict[str, Any]]:
    steps = source.recording.steps()
    if steps is None:
        return []
    energy = {account.domain.name: account.step_j.tolist() for account in source.footprint.accounts}
    columns = zip(
        steps.label, steps.start_ns.tolist(), steps.end_ns.tolist(), steps.traced.tolist(), strict=True
    )
    return [
        {
            "step": number,
            "label": label,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "traced": traced,
            "energy_j": {domain: joules[number] for domain, joules in energy.items() if len(joules)},
        }
        for number, (label, start_ns, end_ns, traced) in enumerate(columns)
    ]
