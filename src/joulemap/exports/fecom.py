"""Calls in the form that FECoM publishes: a record a call, with the power around it as tables in text.

A row of ``cpu`` and ``ram`` is the energy of the half second that ends at its time; a row of ``gpu`` is the
mean power of the half second that begins there. Tables are in pandas' ``split`` orientation. Calls inside a
call are part of it and have no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulemap.call_energy import calls_of
from joulemap.calls.protocol import ISOLATION, PROTOCOLS, Protocol
from joulemap.calls.table import NO_PARENT, Calls
from joulemap.devices import roots
from joulemap.recording import Recording
from joulemap.stability import kind_of
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S

SAMPLE_S, BEFORE_S, AFTER_S = 0.5, 20.5, 2.0
"""Length of a sample, and how much is shown around a call: 40 samples make the published baseline."""

_SAMPLE_NS = round(SAMPLE_S * NS_PER_S)


def write(recording: Recording, path: Path) -> None:
    """Write every outermost call of a recording, in order of time."""
    with path.open("w") as file:
        file.write("[")
        for number, record in enumerate(records(recording)):
            file.write(",\n" if number else "\n")
            json.dump(record, file, allow_nan=False)
        file.write("\n]\n")


def records(recording: Recording) -> Iterator[dict[str, Any]]:
    """``{api(): {…}}``, one a call."""
    calls = calls_of(recording)
    logs = _Logs.of(recording)
    said = recording.info.extra.get(ISOLATION)
    settings = _settings(PROTOCOLS["fecom"] if said is None else Protocol.from_json(said))
    apis = list(calls.api)
    for row in np.flatnonzero(calls.parent == NO_PARENT).tolist():
        yield {f"{apis[row]}()": {**logs.around(calls, row), "settings": settings}}


@dataclass(frozen=True, eq=False)
class _Logs:
    """The recording's power by the three names that FECoM has for it, and temperatures over time."""

    power: Mapping[str, Sequence[PowerTrace]]
    temperatures: Mapping[str, tuple[Int64, Float64]]

    @classmethod
    def of(cls, recording: Recording) -> _Logs:
        every = recording.power()
        adding = {domain.name for domain in roots([trace.domain for trace in every])}
        power: dict[str, list[PowerTrace]] = {"CPU": [], "DRAM": [], "GPU": []}
        for trace in every:
            # Memory that a package contains is shown by itself: the published tool does not add them up.
            if kind_of(trace.domain) in power and (
                trace.domain.name in adding or "DRAM" in kind_of(trace.domain)
            ):
                power[kind_of(trace.domain)].append(trace)
        return cls(power, _temperatures(recording))

    def around(self, calls: Calls, row: int) -> dict[str, Any]:
        """The tables, times and sizes of a call."""
        start, end = int(calls.start_ns[row]), int(calls.end_ns[row])
        gate, tail = int(calls.gate_start_ns[row]), int(calls.tail_end_ns[row])
        begin = self._begin_ns(min(gate or start, start - round(BEFORE_S * NS_PER_S)))
        until = max(tail, end + round(AFTER_S * NS_PER_S))
        edges = begin + np.arange((until - begin) // _SAMPLE_NS + 2, dtype=np.int64) * _SAMPLE_NS
        return {
            "energy_data": self._tables(edges),
            "times": _times(begin, start, end, gate or start),
            "cpu_temperatures": self._cpu_temperatures(begin, until),
            "input_sizes": {
                "args_size": _size(calls.argument_bytes[row]),
                "kwargs_size": None,
                "object_size": _size(calls.object_bytes[row]),
            },
        }

    def _begin_ns(self, wanted_ns: int) -> int:
        """Not before there was power."""
        starts = [int(one.edges_ns[0]) for traces in self.power.values() for one in traces if len(one)]
        return max(wanted_ns, min(starts, default=wanted_ns))

    def _tables(self, edges: Int64) -> dict[str, str]:
        elapsed = ((edges - edges[0]) / NS_PER_S).tolist()
        found = {kind: self._energy_j(kind, edges) for kind in self.power}
        perf = ["time_elapsed", "energy (J)"]
        watts = (found["GPU"] / SAMPLE_S).tolist() if self.power["GPU"] else []
        heat = self._at("GPU", edges[:-1])
        stamps = (edges[:-1] / NS_PER_S).tolist()
        return {
            "cpu": _split(perf, zip(elapsed[1:], found["CPU"].tolist(), strict=True)),
            "ram": _split(perf, zip(elapsed[1:], found["DRAM"].tolist(), strict=True)),
            "gpu": _split(
                ["timestamp", "power_draw (W)", "time_elapsed", "temperature"],
                zip(stamps, watts, elapsed, heat, strict=False),
            ),
        }

    def _energy_j(self, kind: str, edges: Int64) -> Float64:
        parts = [np.diff(trace.energy_until(edges)) for trace in self.power[kind]]
        return np.asarray(np.sum([np.zeros(len(edges) - 1), *parts], axis=0), np.float64)

    def _cpu_temperatures(self, begin: int, until: int) -> str:
        t_ns, values = self.temperatures.get("CPU", (np.zeros(0, np.int64), np.zeros(0)))
        inside = (t_ns >= begin) & (t_ns <= until)
        rows = zip(
            ((t_ns[inside] - begin) / NS_PER_S).tolist(),
            values[inside].tolist(),
            t_ns[inside].tolist(),
            strict=True,
        )
        return _split(["time_elapsed", "temperature", "timestamp"], rows)

    def _at(self, kind: str, t_ns: Int64) -> list[float | None]:
        """The last temperature before each time; None where none is known."""
        if kind not in self.temperatures:
            return [None] * len(t_ns)
        seen_ns, values = self.temperatures[kind]
        place = np.searchsorted(seen_ns, t_ns, side="right") - 1
        return [float(values[index]) if index >= 0 else None for index in place.tolist()]


def _temperatures(recording: Recording) -> dict[str, tuple[Int64, Float64]]:
    """Of the CPU and of the first GPU, by kind."""
    table = recording.table("facts")
    if table is None:
        return {}
    t_ns, names = table["t_ns"].to_numpy(), np.array(table["name"].to_pylist(), object)
    values = table["value"].to_numpy()
    found: dict[str, tuple[Int64, Float64]] = {}
    for name in sorted({name for name in names.tolist() if name.endswith(" temperature_c")}):
        chosen = names == name
        found.setdefault(name.partition(" ")[0].partition(":")[0], (t_ns[chosen], values[chosen]))
    return found


def _times(begin: int, start: int, end: int, gate: int) -> dict[str, Any]:
    """When it ran, and at which samples of the logs."""
    first, last = ((edge - begin) // _SAMPLE_NS * SAMPLE_S for edge in (start, end))
    return {
        "start_time_execution": start,
        "end_time_execution": end,
        "start_time_perf": first,
        "end_time_perf": last,
        "sys_start_time_perf": begin,
        "start_time_nvidia": first,
        "end_time_nvidia": last,
        "sys_start_time_nvidia": begin,
        "begin_stable_check_time": gate,
        "begin_temperature_check_time": gate,
    }


def _settings(protocol: Protocol) -> dict[str, Any]:
    return {
        "max_wait_s": protocol.timeout_s,
        "wait_after_run_s": protocol.tail_s,
        "wait_per_stable_check_loop_s": protocol.look_every_s,
        "tolerance": 0,
        "measurement_interval_s": SAMPLE_S,
        "cpu_std_to_mean": protocol.spread.get("CPU"),
        "ram_std_to_mean": protocol.spread.get("DRAM"),
        "gpu_std_to_mean": protocol.spread.get("GPU"),
        "check_last_n_points": protocol.samples,
        "cpu_max_temp": protocol.hottest_c.get("CPU"),
        "gpu_max_temp": protocol.hottest_c.get("GPU"),
        "cpu_temperature_interval_s": 1,
    }


def _size(value: Any) -> int | None:
    return None if value < 0 else int(value)


def _split(columns: Sequence[str], rows: Iterator[Any]) -> str:
    data = [list(row) for row in rows]
    return json.dumps(
        {"columns": list(columns), "index": list(range(len(data))), "data": data}, separators=(",", ":")
    )
