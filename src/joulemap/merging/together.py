"""The steps of a job, of which each rank has traced some of its own choice.

What a step's energy was spent on is known where all ranks traced it. Each has its own budget, though, so that
sessions come to lie on different steps. A traced step stands for the others of its label in any case; so
where a rank did not trace a step, another that it did trace stands in its place, with its events moved there
in time. Each rank has then as many traced steps as the others, and the same ones. What ranks call the same
size of steps (``inference (4 numbers)``) may have other labels: see ``sizes``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.attribute import step_of_event
from joulemap.merging.sizes import same_sizes
from joulemap.traces import NO_STEP, EventTrace, Int64, Steps

_LEFT_OUT = -2


@dataclass(frozen=True, eq=False)
class Traced:
    """What one rank has of steps and events."""

    rank: int
    steps: Steps | None
    events: EventTrace


@dataclass(frozen=True, eq=False)
class Together:
    """The job's steps, each rank's events in them, and what to say about it."""

    steps: Steps | None
    events: list[EventTrace]
    notes: list[str]


def together(ranks: Sequence[Traced]) -> Together:
    """The steps are those of the first rank that has any; those of other ranks are found by time."""
    ranks, notes = _of_the_same_sizes(ranks)
    job = next((one.steps for one in ranks if one.steps is not None and len(one.steps)), None)
    if job is None:
        return Together(None, [_without_steps(one.events) for one in ranks], [])
    own = [_Own.of(one, job) for one in ranks]
    traced = np.zeros(len(job), bool)
    for label in job.label.words:
        traced[_put_together(own, label)] = True
    steps = Steps.from_columns(start_ns=job.start_ns, end_ns=job.end_ns, traced=traced, label=job.label)
    return Together(
        steps,
        [one.events_in(job) for one in own],
        [*notes, *_different(own), *_never(own), *_never_of(own, job)],
    )


def _of_the_same_sizes(ranks: Sequence[Traced]) -> tuple[list[Traced], list[str]]:
    """Their steps with labels of the first rank that has any, and what to say about that."""
    having = {one.rank: one.steps for one in ranks if one.steps is not None and len(one.steps)}
    if not having:
        return list(ranks), []
    steps, notes = same_sizes(having)
    return [dataclasses.replace(one, steps=steps.get(one.rank, one.steps)) for one in ranks], notes


@dataclass(frozen=True, eq=False)
class _Own:
    """A rank's own steps. Of each: the job's step at the same time, where it has the same label; and the one
    in whose place it stands. Steps that were not traced have neither (``NO_STEP``)."""

    rank: int
    steps: Steps
    events: EventTrace
    meets: NDArray[np.int32]
    place: NDArray[np.int32]

    @classmethod
    def of(cls, one: Traced, job: Steps) -> _Own:
        steps = one.steps or Steps.from_columns(start_ns=[], end_ns=[])
        meets = job.at(steps.start_ns + (steps.end_ns - steps.start_ns) // 2)
        code = np.array([job.label.code(word) for word in steps.label.words] or [-1])[steps.label.codes]
        meets[~steps.traced | (code != job.label.codes[meets])] = NO_STEP
        return cls(one.rank, steps, one.events, meets, np.full(len(steps), NO_STEP, np.int32))

    def traced(self, label: str) -> list[int]:
        """The numbers of its traced steps of a label."""
        alike = self.steps.label.codes == self.steps.label.code(label)
        return [int(number) for number in np.flatnonzero(alike & self.steps.traced)]

    def has(self, label: str) -> bool:
        """Whether it has steps of a label, traced or not."""
        return bool((self.steps.label.codes == self.steps.label.code(label)).any())

    def by_place(self, label: str) -> dict[int, int]:
        """Its traced steps of a label by the job's at the same time; the first where there are several."""
        found = [number for number in self.traced(label) if self.meets[number] != NO_STEP]
        return {int(self.meets[number]): number for number in reversed(found)}

    @property
    def moved(self) -> int:
        """How many of its steps stand in the place of others."""
        return int(((self.place >= 0) & (self.place != self.meets)).sum())

    @property
    def left_out(self) -> int:
        """How many have no place."""
        return int((self.place == _LEFT_OUT).sum())

    def events_in(self, job: Steps) -> EventTrace:
        """Its events, those of each step in the place of that step."""
        if not len(self.steps):
            return _without_steps(self.events)
        number = step_of_event(self.events, self.steps)
        place = np.append(self.place, np.int32(NO_STEP))[number]  # no step is the last one
        kept = np.flatnonzero(place != _LEFT_OUT)
        events, number, place = self.events.take(kept), number[kept], place[kept]
        moves = (place >= 0) & (place != np.append(self.meets, np.int32(NO_STEP))[number])
        start_ns, end_ns = events.start_ns.copy(), events.end_ns.copy()
        for times in (start_ns, end_ns):
            times[moves] = _moved(times[moves], self.steps, number[moves], job, place[moves])
        return dataclasses.replace(events, start_ns=start_ns, end_ns=end_ns, step=np.maximum(place, NO_STEP))


def _put_together(ranks: Sequence[_Own], label: str) -> list[int]:
    """Give each traced step of a label its place; which of the job's steps are traced by that."""
    having = [one for one in ranks if one.traced(label)]
    if not having or not having[0].by_place(label):
        return []
    places: list[Mapping[int, int]] = [one.by_place(label) for one in having]
    common = sorted(set.intersection(*map(set, places)))
    free = sorted(set(places[0]) - set(common))
    left = []
    for one, its in zip(having, places, strict=True):
        one.place[one.traced(label)] = _LEFT_OUT
        one.place[[its[number] for number in common]] = common
        left.append([number for number in one.traced(label) if one.place[number] == _LEFT_OUT])
    left[0] = [places[0][number] for number in free]
    count = min(map(len, left))
    for one, numbers in zip(having, left, strict=True):
        one.place[numbers[:count]] = free[:count]
    return [*common, *free[:count]]


def _moved(t_ns: Int64, own: Steps, number: Int64, job: Steps, place: Int64) -> Int64:
    """As far into the job's step as they were into their own, in parts of its length."""
    lasts_ns = np.maximum(own.end_ns[number] - own.start_ns[number], 1)
    ratio = (job.end_ns[place] - job.start_ns[place]) / lasts_ns
    into_ns = np.rint((t_ns - own.start_ns[number]) * ratio).astype(np.int64)
    return np.asarray(job.start_ns[place] + into_ns, np.int64)


def _without_steps(events: EventTrace) -> EventTrace:
    return dataclasses.replace(events, step=np.full(len(events), NO_STEP, np.int32))


def _different(ranks: Sequence[_Own]) -> list[str]:
    """That steps were moved or left out, and how many of whom."""
    moved = [f"{one.moved} of rank {one.rank}" for one in ranks if one.moved]
    left = [f"{one.left_out} of rank {one.rank}" for one in ranks if one.left_out]
    if not moved and not left:
        return []
    said = "The ranks did not trace the same steps."
    said += f" At the time of others of their kind stand {', '.join(moved)}." if moved else ""
    return [said + (f" Left out are {', '.join(left)}." if left else "")]


def _never(ranks: Sequence[_Own]) -> list[str]:
    """Which ranks have traced no step, where others have."""
    never = [str(one.rank) for one in ranks if not one.steps.traced.any()]
    if not never or len(never) == len(ranks):
        return []
    return [
        f"No step of {'rank' if len(never) == 1 else 'ranks'} {', '.join(never)} was traced: what they drew "
        "in steps stands under idle, or under what others did on the same device."
    ]


def _never_of(ranks: Sequence[_Own], job: Steps) -> list[str]:
    """Which ranks have steps of a label, and have traced none of them, where others have."""
    return [
        f"No step of {label} of rank {one.rank} was traced: what it drew in these stands under idle, or "
        "under what others did on the same device. joulemap run --steps traces others."
        for label in job.label.used().words
        for one in ranks
        if one.steps.traced.any() and one.has(label) and not one.traced(label)
        if any(other.traced(label) for other in ranks)
    ]
