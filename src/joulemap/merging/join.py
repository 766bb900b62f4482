"""The ranks of one job, joined into one recording.

Each rank has recorded what it did; the first on each machine has had that machine metered. So the events of
all ranks share the energy of the machines they ran on, and no joule is counted twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joulemap.errors import InputError
from joulemap.merging.job import in_order, machine_of, missing, rank_of, unmetered
from joulemap.merging.node import Node
from joulemap.merging.tables import calls_notes, small_tables
from joulemap.merging.together import Traced, together
from joulemap.program import Program
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.recording.info import OF_ONE_RANK
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
    parts = in_order(recordings)
    machines = list(dict.fromkeys(machine_of(part) for part in parts))
    nodes = [Node(part, machines.index(machine_of(part)), len(machines)) for part in parts]
    power = [trace for node in nodes for trace in node.power()]
    if not power:
        raise InputError(
            "None of these recordings has power.",
            "Add that of the first rank of each machine, which is metered.",
        )
    _check_once(power)
    ranks = [
        Traced(rank_of(part), part.steps(), node.events()) for part, node in zip(parts, nodes, strict=True)
    ]
    found = together(ranks)
    notes = [*missing(parts), *unmetered(parts), *found.notes, *calls_notes(parts)]
    with RecordingWriter.create(output, _info(parts), overwrite=overwrite) as writer:
        writer.put_events(EventTrace.joined(found.events))
        if found.steps is not None:
            writer.put_steps(found.steps)
        for trace in power:
            writer.put_power(trace)
        for node in nodes:
            for shares in node.shares():
                writer.put_shares(shares)
        for name, table in small_tables(nodes).items():
            writer.put_table(name, table)
        writer.put_program(Program.joined([part.program() for part in parts]))
        writer.update(warnings=[*writer.info.warnings, *notes])
    return Merged(output, [rank_of(part) for part in parts], len(machines), notes)


def _check_once(power: Sequence[PowerTrace]) -> None:
    names = [trace.domain.name for trace in power]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"{twice} was metered by two ranks of one machine.", "Its energy would be counted twice."
        )


def _info(parts: Sequence[Recording]) -> RecordingInfo:
    windows = [part.info.window_ns for part in parts if part.info.window_ns is not None]
    whole = (min(window[0] for window in windows), max(window[1] for window in windows)) if windows else None
    warnings = [
        f"rank {rank_of(part)}: {text}"
        for part in parts
        for text in (*part.info.warnings, *part.notes)
        if not text.startswith(OF_ONE_RANK)
    ]
    return dataclasses.replace(
        parts[0].info, source="merge", window_ns=whole, rank=None, warnings=warnings, domains=[]
    )
