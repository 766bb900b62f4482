"""What the journal tells, line by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulemap.recorder.journal import read_journal


@dataclass
class Story:
    """A program's side of a recording, as far as it came."""

    start_ns: int | None = None
    end_ns: int | None = None
    tracing_share: float | None = None
    steps: list[tuple[int, int, str, int]] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    compilations: list[tuple[int, int]] = field(default_factory=list)
    """When something was compiled, in steps and elsewhere."""
    regions: list[tuple[int, int, str, float | None, str | None]] = field(default_factory=list)
    """With so many of a unit, where the program has counted."""
    versions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    fed_by: list[str] = field(default_factory=list)
    """Frameworks whose worker processes have loaded data."""
    helped: list[str] = field(default_factory=list)
    """Those in whose programs other processes have computed."""

    @classmethod
    def read(cls, raw: Path) -> Story:
        """Every line that is whole."""
        story = cls()
        hear: dict[str, Callable[[Any], None]] = {
            "start": story._start,
            "end": story._end,
            "step": story._step,
            "waited": story._waited,
            "session": story.sessions.append,
            "compilation": story._compilation,
            "region": story._region,
            "version": story._version,
            "warning": story.warnings.append,
            "workers": story.fed_by.append,
            "helpers": story.helped.append,
        }
        for what, content in read_journal(raw):
            if what in hear:  # else a later version's
                hear[what](content)
        return story

    def _start(self, said: dict[str, Any]) -> None:
        self.start_ns = int(said["t_ns"])

    def _end(self, said: dict[str, Any]) -> None:
        self.end_ns, self.tracing_share = int(said["t_ns"]), float(said["tracing_share"])

    def _step(self, said: list[Any]) -> None:
        self.steps.append((int(said[0]), int(said[1]), str(said[2]), int(said[3])))

    def _waited(self, said: list[Any]) -> None:
        """Before a session, what had been called was computed to its end: that is the last step's."""
        since_ns, until_ns = int(said[0]), int(said[1])
        if self.steps and since_ns - self.steps[-1][1] < until_ns - since_ns:
            start_ns, _, label, seen = self.steps[-1]
            self.steps[-1] = (start_ns, until_ns, label, seen)

    def _compilation(self, said: list[Any]) -> None:
        self.compilations.append((int(said[0]), int(said[1])))

    def _region(self, said: list[Any]) -> None:
        count, unit = (float(said[3]), str(said[4])) if len(said) > 4 else (None, None)
        self.regions.append((int(said[0]), int(said[1]), str(said[2]), count, unit))

    def _version(self, said: list[str]) -> None:
        self.versions[said[0]] = said[1]

    def window_ns(self, ended_ns: int) -> tuple[int, int]:
        """The program's time, until it said that it ended, or was seen to."""
        start_ns = self.start_ns if self.start_ns is not None else ended_ns
        return start_ns, max(start_ns, self.end_ns if self.end_ns is not None else ended_ns)
