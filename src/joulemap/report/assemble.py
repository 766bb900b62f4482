"""One file from data and the sources in ``page/``: no network, and nothing runs but what is named here."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from joulemap import __version__

_SCRIPTS = (
    "vendor/dagre.min.js",
    "dom.js",
    "format.js",
    "tip.js",
    "model.js",
    "table.js",
    "figures.js",
    "breakdown.js",
    "summary.js",
    "layout.js",
    "diagram.js",
    "icicle.js",
    "tensors.js",
    "curves.js",
    "power.js",
    "calls.js",
    "comparison.js",
    "overview.js",
    "main.js",
)


def assemble(recordings: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None = None) -> str:
    """The page of some recordings, each as :func:`joulemap.report.contents.contents` makes it.

    ``comparison`` is the document of ``compare --json`` about them.
    """
    script = "\n".join(_source(name) for name in _SCRIPTS)
    style = _source("style.css")
    return Template(_source("page.html")).substitute(
        policy=_policy(script, style),
        version=html.escape(__version__),
        title=html.escape(_title(recordings)),
        style=style,
        script=script,
        data=_harmless({"recordings": recordings, "comparison": comparison}),
    )


def _source(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def _title(recordings: Sequence[Mapping[str, Any]]) -> str:
    names = ", ".join(str(recording["name"]) for recording in recordings)
    return f"{names}: where its joules went".encode(errors="replace").decode()


def _policy(script: str, style: str) -> str:
    """The browser runs and loads nothing that is not in this page, whatever a name in a recording says."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _harmless(data: Mapping[str, Any]) -> str:
    """JSON that no name can end: without ``<`` there is neither a tag nor a comment."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
