"""A Chrome trace for ui.perfetto.dev and chrome://tracing: what ran when, with its joules, over the power.

Every device is a process and every lane of it a thread; each execution is a slice whose arguments hold its
energy. Power is a counter of its device, one for each domain. Times are from the start of the recording.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from joulemap.exports.source import Charged, Source, chunks
from joulemap.exports.tracks import tracks_of
from joulemap.traces import NO_STEP, EventTrace, PowerTrace, Steps
from joulemap.units import NS_PER_S

_STEPS_PID, _FIRST_PID = 1, 2
_NS_PER_US = 1000


def write(source: Source, path: Path) -> None:
    """Write the trace, gzipped where the name says so."""
    with _opened(path) as file:
        file.write('{"displayTimeUnit":"ns","otherData":' + json.dumps(_about(source)) + ',"traceEvents":[\n')
        for number, line in enumerate(_lines(source)):
            file.write(f",\n{line}" if number else line)
        file.write("\n]}\n")


def _opened(path: Path) -> TextIO:
    if path.suffix != ".gz":
        return path.open("w")
    return io.TextIOWrapper(gzip.GzipFile(path, "wb", compresslevel=4))


def _about(source: Source) -> dict[str, Any]:
    info = source.recording.info
    return {"command": info.command, "start_ns": _origin_ns(source), "versions": info.versions}


def _origin_ns(source: Source) -> int:
    """The earliest time of anything, so that what is left are small numbers without rounding."""
    span, steps = source.recording.events().span_ns, source.recording.steps()
    starts = [int(trace.edges_ns[0]) for trace in source.recording.power() if len(trace)]
    starts += [span[0]] if span else []
    starts += [int(steps.start_ns[0])] if steps is not None and len(steps) else []
    return min(starts, default=0)


def _lines(source: Source) -> Iterator[str]:
    """One JSON object a line: names of tracks, steps, power, and then the many slices."""
    recording, origin_ns = source.recording, _origin_ns(source)
    events, steps, power = recording.events(), recording.steps(), recording.power()
    devices = dict.fromkeys([*events.device.words, *(trace.domain.device for trace in power)])
    pids = {device: pid for pid, device in enumerate(devices, _FIRST_PID)}
    for device, pid in pids.items():
        yield _named("process_name", pid, 0, device)
    if steps is not None:
        yield from _step_lines(steps, origin_ns)
    for trace in power:
        yield from _power_lines(trace, pids[trace.domain.device], origin_ns)
    yield from _event_lines(source, events, [pids[device] for device in events.device.words], origin_ns)


def _named(what: str, pid: int, tid: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}})


def _step_lines(steps: Steps, origin_ns: int) -> Iterator[str]:
    yield _named("process_name", _STEPS_PID, 0, "steps")
    yield _named("thread_name", _STEPS_PID, 1, "steps")
    columns = zip(
        steps.start_ns.tolist(), steps.end_ns.tolist(), steps.label, steps.traced.tolist(), strict=True
    )
    for number, (start_ns, end_ns, label, traced) in enumerate(columns):
        arguments = json.dumps({"step": number, "traced": traced})
        name = json.dumps(f"{label} {number}")
        yield _slice(name, _STEPS_PID, 1, start_ns - origin_ns, end_ns - start_ns, '"step"', arguments)


def _power_lines(trace: PowerTrace, pid: int, origin_ns: int) -> Iterator[str]:
    """The mean power of each interval. A gap of which the energy is not known is marked: a counter cannot
    be absent."""
    name = json.dumps(f"{trace.domain.name} power")
    times_us = ((trace.edges_ns - origin_ns) / _NS_PER_US).tolist()
    for time_us, power_w in zip(times_us, [*trace.power_w.tolist(), 0.0], strict=False):
        yield f'{{"ph":"C","name":{name},"pid":{pid},"ts":{time_us:.3f},"args":{{"W":{power_w:.6g}}}}}'
    for row in np.flatnonzero(trace.gap).tolist():
        unread = json.dumps(f"{trace.domain.name} was not read")
        yield f'{{"ph":"i","name":{unread},"pid":{pid},"tid":0,"s":"p","ts":{times_us[row]:.3f}}}'


def _event_lines(source: Source, events: EventTrace, pids: list[int], origin_ns: int) -> Iterator[str]:
    charged = source.charged()
    tracks = tracks_of(events)
    for track, name, device in zip(range(len(tracks.names)), tracks.names, tracks.device, strict=True):
        yield _named("thread_name", pids[device], track + 1, name)
    places = chunks(len(events))
    words = _Words(events)
    for rows in source.tracked(places, len(places)):
        yield from _slices(events, rows, words, tracks.of_event, pids, charged, origin_ns)


class _Words:
    """The strings of a trace as JSON, each encoded once."""

    def __init__(self, events: EventTrace) -> None:
        self.name, self.op, self.phase = (
            [json.dumps(word) for word in column.words] for column in (events.name, events.op, events.phase)
        )


def _slices(
    events: EventTrace,
    rows: slice,
    words: _Words,
    track: NDArray[np.int32],
    pids: list[int],
    charged: Charged,
    origin_ns: int,
) -> Iterator[str]:
    some = events.take(rows)
    domains = [json.dumps(f"energy_j {one.domain.name}") for one in charged.by_domain]
    joules = [one.energy_j[rows].tolist() for one in charged.by_domain]
    by_time_j = [None] * len(some) if charged.time_based_j is None else charged.time_based_j[rows].tolist()
    columns = zip(
        some.name.codes.tolist(),
        some.op.codes.tolist(),
        some.phase.codes.tolist(),
        some.device.codes.tolist(),
        some.step.tolist(),
        (some.start_ns - origin_ns).tolist(),
        (some.end_ns - some.start_ns).tolist(),
        track[rows].tolist(),
        zip(*joules, strict=True) if joules else [()] * len(some),
        by_time_j,
        strict=True,
    )
    for name, op, phase, device, step, start_ns, length_ns, tid, parts_j, time_based_j in columns:
        in_step = "" if step == NO_STEP else f',"step":{step}'
        what = f'"op":{words.op[op]},"phase":{words.phase[phase]}{in_step}'
        arguments = f"{{{what}{_charged(parts_j, time_based_j, length_ns, domains)}}}"
        yield _slice(
            words.name[name], pids[device], tid + 1, start_ns, length_ns, words.phase[phase], arguments
        )


def _charged(
    parts_j: Sequence[float], time_based_j: float | None, length_ns: int, domains: Sequence[str]
) -> str:
    """The energy of one execution, by domain where it has several; its power; its energy by time alone."""
    total_j = sum(parts_j)
    text = f',"energy_j":{total_j:.6g}'
    if length_ns:
        text += f',"power_w":{total_j / length_ns * NS_PER_S:.4g}'
    if time_based_j is not None:
        text += f',"time_based_j":{time_based_j:.6g}'
    parts = [(domain, joules) for domain, joules in zip(domains, parts_j, strict=True) if joules]
    if len(parts) > 1:
        text += "".join(f",{domain}:{joules:.6g}" for domain, joules in parts)
    return text


def _slice(
    name: str, pid: int, tid: int, start_ns: int, length_ns: int, category: str, arguments: str
) -> str:
    return (
        f'{{"ph":"X","name":{name},"cat":{category},"pid":{pid},"tid":{tid},'
        f'"ts":{start_ns / _NS_PER_US:.3f},"dur":{length_ns / _NS_PER_US:.3f},"args":{arguments}}}'
    )
