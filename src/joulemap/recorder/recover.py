"""A recording that nobody finished: ``joulemap run`` itself was killed, or the machine went down."""

from __future__ import annotations

from pathlib import Path

from joulemap.errors import RecordingError
from joulemap.recorder.finish import TRACING, finish
from joulemap.recorder.journal import JOURNAL
from joulemap.recording import Recording, RecordingWriter
from joulemap.recording.files import is_locked
from joulemap.recording.folder import RAW

_HOW = "joulemap was killed while it recorded; what was written until then was put together afterwards."


def recovered(path: Path, salvage: bool = False) -> Recording:
    """Open a recording; where its program has left raw data that nobody has understood yet, do that first."""
    problem = ""
    if _left_behind(path):
        try:
            finish(RecordingWriter.attach(path), _last_written_ns(path), how=_HOW)
        except RecordingError as error:
            problem = f"The raw traces in {path / RAW} cannot be read into it: {error.message}"
    recording = Recording.open(path, salvage=salvage)
    recording.notes.extend([problem] if problem else [])
    return recording


def _left_behind(path: Path) -> bool:
    """Whether there is a journal, not yet understood, that neither a recorder nor its program holds."""
    journal = path / RAW / JOURNAL
    if not journal.is_file() or is_locked(path) or is_locked(journal):
        return False
    try:
        info = Recording.open(path).info
    except RecordingError:
        return False
    return info.status == "interrupted" and TRACING not in info.extra


def _last_written_ns(path: Path) -> int:
    return max(file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file())
