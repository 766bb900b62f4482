"""The ranks of one job, joined into one recording.

Each rank has recorded what it did; the first on each machine has had that machine metered. So the events of
all ranks share the energy of the machines they ran on, and no joule is counted twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from joulemap.devices import Device, Domain
from joulemap.errors import InputError
from joulemap.processes import ProcessShares
from joulemap.program import Program
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace


@dataclass(frozen=True)
class Merged:
    """What was put together: which ranks on how many machines, and what is missing."""

    output: Path
    ranks: list[int]
    machines: int
    notes: list[str]


def merge(recordings: Sequence[Recording], output: Path, *, overwrite: bool = False) -> Merged:
    """Join recordings of one job. ``InputError`` where they are not, or nothing of them was metered."""
    parts = _in_order(recordings)
    machines = list(dict.fromkeys(_machine(part) for part in parts))
    notes = _missing(parts)
    nodes = [_Node(part, machines.index(_machine(part)), len(machines)) for part in parts]
    power = [trace for node in nodes for trace in node.power()]
    if not power:
        raise InputError(
            "None of these recordings has power.",
            "Add that of the first rank of each machine, which is metered.",
        )
    _check_once(power)
    with RecordingWriter.create(output, _info(parts), overwrite=overwrite) as writer:
        writer.put_events(EventTrace.joined([node.events() for node in nodes]))
        steps = parts[0].steps()
        if steps is not None:
            writer.put_steps(steps)
        for trace in power:
            writer.put_power(trace)
        for node in nodes:
            for shares in node.shares():
                writer.put_shares(shares)
        writer.put_program(Program.joined([part.program() for part in parts]))
        writer.update(warnings=[*writer.info.warnings, *notes])
    return Merged(output, [_rank(part) for part in parts], len(machines), notes)


@dataclass(frozen=True)
class _Node:
    """A rank's recording, and the machine it ran on: devices of several machines are told apart by counting
    on, ``GPU:0`` of the second being ``GPU:1000``, domains by the machine's name."""

    recording: Recording
    machine: int
    machines: int

    def events(self) -> EventTrace:
        events = self.recording.events()
        device = events.device.mapped([self._device(word) for word in events.device.words])
        prefix = f"rank {_rank(self.recording)} "
        lane = (
            None if events.lane is None else events.lane.mapped([prefix + word for word in events.lane.words])
        )
        step = np.full(len(events), -1, np.int32)  # the steps of the first rank are those of all, by time
        return dataclasses.replace(events, device=device, lane=lane, step=step)

    def power(self) -> list[PowerTrace]:
        return [
            PowerTrace(self._domain(trace.domain), trace.edges_ns, trace.energy_j, trace.gap)
            for trace in self.recording.power()
        ]

    def shares(self) -> list[ProcessShares]:
        return [
            dataclasses.replace(shares, domain=self._name(shares.domain))
            for shares in self.recording.shares().values()
        ]

    def _domain(self, domain: Domain) -> Domain:
        parent = None if domain.parent is None else self._name(domain.parent)
        return dataclasses.replace(
            domain, name=self._name(domain.name), device=self._device(domain.device), parent=parent
        )

    def _name(self, domain: str) -> str:
        return domain if self.machines == 1 else f"{_machine(self.recording)} {domain}"

    def _device(self, word: str) -> str:
        device = Device.parse(word)
        if self.machines == 1:
            return word
        if device.kind == "CPU":  # threads move between the sockets of their machine, and nowhere else
            return f"CPU:{self.machine}"
        return f"{device.kind}:{_APART * self.machine + (device.index or 0)}"


_APART = 1000


def _in_order(recordings: Sequence[Recording]) -> list[Recording]:
    unranked = [part for part in recordings if part.info.rank is None]
    if unranked:
        raise InputError(
            f"{unranked[0].path} is no part of a job: it has no rank.",
            "Ranks are recorded by joulemap run under torchrun, Slurm or mpirun.",
        )
    parts = sorted(recordings, key=_rank)
    twice = [part for part, after in pairwise(parts) if _rank(part) == _rank(after)]
    if twice:
        raise InputError(f"Rank {_rank(twice[0])} is there twice.", "Give each rank's recording once.")
    if len({part.info.world_size for part in parts}) > 1:
        raise InputError("These recordings are of jobs of different sizes.", "Give the ranks of one job.")
    return parts


def _check_once(power: Sequence[PowerTrace]) -> None:
    names = [trace.domain.name for trace in power]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"{twice} was metered by two ranks of one machine.", "Its energy would be counted twice."
        )


def _missing(parts: Sequence[Recording]) -> list[str]:
    there = {_rank(part) for part in parts}
    gone = sorted(set(range(parts[0].info.world_size or 0)) - there)
    if not gone:
        return []
    words = ", ".join(map(str, gone))
    return [f"Ranks {words} are missing: what they drew stands under idle or other processes."]


def _rank(recording: Recording) -> int:
    return recording.info.rank or 0


def _machine(recording: Recording) -> str:
    return str(recording.info.host.get("machine", ""))


def _info(parts: Sequence[Recording]) -> RecordingInfo:
    first = parts[0].info
    windows = [part.info.window_ns for part in parts if part.info.window_ns is not None]
    whole = (min(window[0] for window in windows), max(window[1] for window in windows)) if windows else None
    warnings = [
        f"rank {_rank(part)}: {text}" for part in parts for text in (*part.info.warnings, *part.notes)
    ]
    return dataclasses.replace(
        first, source="merge", window_ns=whole, rank=None, warnings=warnings, domains=[]
    )
