"""What is exported: a recording with its accounting, and what of it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from joulemap.accounting import Footprint, Rule
from joulemap.accounting.charges import EventEnergy, energy_of_events
from joulemap.accounting.summarise import summarised_names
from joulemap.accounting.watching import watched
from joulemap.api import account
from joulemap.calibration.recorded import calibrated
from joulemap.errors import InputError
from joulemap.program import Program
from joulemap.recording import Recording
from joulemap.traces import Float64

CHUNK = 1 << 16
"""Events that are turned into text or rows at a time: memory does not grow with the file."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for; a format takes what concerns it."""

    module: str = ""
    phase: str | None = None
    depth: int = 1
    table: str = "footprint"
    summarised: bool = False
    rules: Sequence[str] = ()
    rule: Rule = "exact"


@dataclass(frozen=True, eq=False)
class Charged:
    """What each execution was charged: over all domains, by domain, and by time alone where that is not the
    rule."""

    energy_j: Float64
    by_domain: list[EventEnergy]
    time_based_j: Float64 | None = None


@dataclass(frozen=True, eq=False)
class Source:
    """A recording to be exported. ``advance`` is told how much of the work is done, from 0 to 1."""

    recording: Recording
    asked: Asked = field(default_factory=Asked)
    advance: Callable[[float], None] | None = None

    @cached_property
    def footprint(self) -> Footprint:
        """The accounting, with layers of a kind as one where that was asked for."""
        footprint = account(self.recording, self.asked.rule)
        return footprint.summarised(self.asked.rules) if self._merges else footprint

    @cached_property
    def program(self) -> Program:
        """The dataflow, under the names of the footprint."""
        program = self.recording.program()
        if not self._merges:
            return program
        names = list(account(self.recording, self.asked.rule).name.words)
        every = list(dict.fromkeys([*names, *program.operations]))
        new = dict(zip(every, summarised_names(every, self.asked.rules), strict=True))
        operations = {new[name]: kind for name, kind in program.operations.items()}
        return Program.of(operations, [(new[source], new[target]) for source, target in program.edges])

    def charged(self) -> Charged:
        """What each execution was charged."""
        if self.asked.rule == "recency":
            raise InputError(
                "Single executions are shared out by time or by calibrated costs; recency is for footprints.",
                "Leave out --rule.",
            )
        by_time = self._charged()
        if self.asked.rule == "exact":
            return by_time
        with watched(None):  # it is no part of the writing
            found = calibrated(self.recording)
        weighted = self._charged(found.weights.watts, found.calibration.idle_weight)
        return replace(weighted, time_based_j=by_time.energy_j)

    def _charged(
        self, weights: Float64 | None = None, idle_weight: Mapping[str, float] | None = None
    ) -> Charged:
        recording = self.recording
        events = recording.events()
        by_domain = energy_of_events(
            events,
            recording.power(),
            steps=recording.steps(),
            window_ns=recording.info.window_ns,
            shares=recording.shares(),
            weights=weights,
            idle_weight=idle_weight,
        )
        return Charged(sum((one.energy_j for one in by_domain), np.zeros(len(events))), by_domain)

    @property
    def _merges(self) -> bool:
        return self.asked.summarised or bool(self.asked.rules)

    def tracked(self, parts: Iterable[T], count: int) -> Iterator[T]:
        """The parts one by one, saying after each how far that is."""
        for done, part in enumerate(parts, 1):
            yield part
            if self.advance is not None:
                self.advance(done / max(count, 1))


def chunks(count: int) -> list[slice]:
    """A long column in pieces."""
    return [slice(begin, min(begin + CHUNK, count)) for begin in range(0, count, CHUNK)]
