"""Operations by themselves, in a program of its own that is metered and not traced.

A study that is run as ``python -m STUDY --device cuda`` measures what itself does with ``--into FILE``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from joulemap.calibration.cost import Cost, Replay, costs
from joulemap.frameworks.torch.replay import executed
from joulemap.frameworks.torch.replayer import Replayer
from joulemap.recorder.budget import Plan
from joulemap.recorder.run import run
from joulemap.recording import Recording

SECONDS = 0.8


Lines = Iterable[dict[str, Any]]


def studied(study: str, what: str | None, replay: Callable[[str], Lines]) -> dict[str, Cost] | None:
    """The costs of what a study replays on a device; None in the program that it measures for that."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.into is None:
        return measured(study, asked.device)
    write(replay(asked.device), asked.into)
    return None


def replayed(key: str, replayer: Replayer, device: str) -> dict[str, Any]:
    """One operation, over and over for a while."""
    import torch

    said = executed([replayer], SECONDS, torch.device(device))
    return {"key": key, **said, "executions": said["executions"][0]}


def write(lines: Lines, into: Path) -> None:
    """Each as soon as it is known."""
    with into.open("w") as file:
        for line in lines:
            print(json.dumps(line), file=file, flush=True)


def measured(study: str, device: str) -> dict[str, Cost]:
    """The costs of what a study replays."""
    with tempfile.TemporaryDirectory() as scratch:
        result, path = Path(scratch) / "result.jsonl", Path(scratch) / "r.joulemap"
        program = ["-m", study, "--device", device, "--into", str(result)]
        ran = run(program, path, Plan(overhead=0.0), output_to_errors=True)
        if ran.problem is not None:
            raise ran.problem
        lines = [json.loads(line) for line in result.read_text().splitlines()]
        kind = "GPU" if device == "cuda" else "CPU"
        power = next(one for one in Recording.open(path).power() if one.domain.device.startswith(kind))
        return costs([Replay(**line) for line in lines], power)
