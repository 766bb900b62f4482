"""What can go wrong, in the words of the person it happens to.

Every error says what happened and carries a hint that says what to do.
``cli.py`` is the only place that turns them into messages and exit codes.
"""

from __future__ import annotations


class JoulemapError(Exception):
    """The root: anything that joulemap itself refuses or cannot do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InputError(JoulemapError):
    """What was handed in cannot be right: a bad value, a bad file, a wrong unit."""


class RecordingError(JoulemapError):
    """A recording cannot be written or read as asked."""


class DamagedRecording(RecordingError):
    """Part of a recording is missing, truncated or altered; the rest can be salvaged."""


class NewerRecording(RecordingError):
    """The recording was written by a newer joulemap than this one."""


class ConservationError(JoulemapError):
    """Energy was lost or made up in an accounting: a bug in joulemap, never the user's fault."""


class MeterError(JoulemapError):
    """A sensor cannot be opened, or cannot be read at this moment."""
