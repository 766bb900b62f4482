"""Power logs from elsewhere: CSV or Parquet in, power traces out, or a reason why that is not possible.

A log has a row per reading: ``t_ns`` (ns since 1970), ``domain``, and one of

- ``energy_j``: a running counter in joules;
- ``interval_energy_j``: the energy since the row before;
- ``power_w``: watts that hold until the next row.

``device``, ``provenance``, ``sensor`` and ``parent`` may say more about a domain; otherwise its name tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from joulemap.devices import Device, Domain
from joulemap.errors import InputError
from joulemap.labels import Labels
from joulemap.traces import EventTrace, Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S, fmt, fmt_seconds, fmt_share, parse

IMPLAUSIBLE_W = 5000.0
LONGEST_TRACE_NS = 30 * 86_400 * NS_PER_S
"""No GPU, no package and no memory draws this much."""

ASSUMED_INTERVAL_NS = 10_000_000

_TIME, _DOMAIN = "t_ns", "domain"
_VALUES = {"energy_j": "joules", "interval_energy_j": "joules", "power_w": "watts"}
_ABOUT_DOMAIN = ("device", "provenance", "sensor", "parent")
_COLUMNS_HINT = "A power log has the columns t_ns, domain, and one of energy_j, interval_energy_j or power_w."
_NEAR_MISSES = (
    (re.compile(r"t|ts|t_?(s|ms|us)|.*(time|date|epoch).*", re.I), _TIME, "nanoseconds since 1970"),
    (re.compile(r"m?w|.*(power|watt).*", re.I), "power_w", "watts"),
    (re.compile(r"[mu]?j|.*(energy|joule).*", re.I), "energy_j", "joules"),
    (re.compile(r"name|zone|rail|meter|source|gpu|index|id", re.I), _DOMAIN, "what is measured, as GPU:0"),
)
_NUMBER = r"^\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*$"
_EPOCH_UNITS = {"seconds": 10**9, "milliseconds": 10**12, "microseconds": 10**15}

_BOARD = re.compile(r"psys|board|platform", re.I)
_PART = re.compile(r"core|uncore|pp[01]", re.I)
_PACKAGE = re.compile(r"(?:package|pkg|cpu|socket)[:_\-\s]*\d*", re.I)
_GPU = re.compile(r"(?:gpu|cuda|nvidia|nvml|rocm|hip|amdgpu)[:_\-\s]*(?P<index>\d+)?", re.I)
_CPU = re.compile(
    r"(?:intel-rapl|amd-rapl|rapl|cpu|package|pkg|socket|uncore|cores?|dram|ram|memory|pp[01])"
    r"(?![a-z])[:_\-\s]*(?P<index>\d+)?",
    re.I,
)


def read_power(path: Path) -> list[PowerTrace]:
    """One power trace per domain of the log, checked; what is wrong is refused with the file and the row."""
    log = _Log.open(path)
    column = log.value_column()
    t_ns, values, names = log.times(), log.numbers(column), log.labels(_DOMAIN)
    domains = _domains(log, names)
    traces = []
    for code, name in enumerate(names.words):
        rows = np.flatnonzero(names.codes == code)
        if not len(rows):
            continue
        if column != "interval_energy_j":  # which is about the row before, so its order is part of it
            rows = rows[np.argsort(t_ns[rows], kind="stable")]
        log.check_readings(name, column, rows, values[rows])
        with _named(path):
            traces.append(_trace(domains[name], column, t_ns[rows], values[rows]))
            _check_plausible(traces[-1], column)
    return traces


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the file's name before what is refused inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.hint) from error


def _trace(domain: Domain, column: str, t_ns: Int64, values: Float64) -> PowerTrace:
    if column == "energy_j":
        return PowerTrace.from_counter(domain, t_ns, values)
    if column == "power_w":
        return PowerTrace.from_samples(domain, t_ns, values)
    return PowerTrace(domain, t_ns, values[1:])


@dataclass(frozen=True, eq=False)
class _Log:
    """A log's table, and how its rows are counted to the user: CSV by line, Parquet by row."""

    path: Path
    table: pa.Table
    row_word: str
    first_row: int

    @classmethod
    def open(cls, path: Path) -> _Log:
        try:
            with path.open("rb") as file:
                magic = file.read(4)
            if magic == b"PAR1":
                return cls(path, pyarrow.parquet.read_table(path), "row", 1)
            return cls(path, _read_csv(path, packed=magic[:2] == b"\x1f\x8b"), "line", 2)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}.", _COLUMNS_HINT) from error
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is not a table: {error}", _COLUMNS_HINT) from error

    def value_column(self) -> str:
        """The column with the readings, when all that is needed is there."""
        names = self.table.column_names
        found = [name for name in _VALUES if name in names]
        missing = [name for name in (_TIME, _DOMAIN) if name not in names]
        if not found:
            missing.append(f"one of {', '.join(_VALUES)}")
        if missing and any(re.fullmatch(r"[-+.\d]+(e[-+]?\d+)?", name, re.I) for name in names):
            raise InputError(
                f"{self.path} has no header line: it starts with {','.join(names)}.", _COLUMNS_HINT
            )
        if missing:
            raise InputError(
                f"{self.path} has the columns {', '.join(names)}; missing: {', '.join(missing)}.",
                _near_misses(names, missing) or _COLUMNS_HINT,
            )
        if not len(self.table):
            raise InputError(f"{self.path} has a header but no readings.", _COLUMNS_HINT)
        return found[0]

    def numbers(self, name: str) -> Float64:
        """A column as floats, refused where it has gaps or text."""
        column = self.table[name]
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            column = column.cast(pa.string())
            text = ~np.asarray(pc.fill_null(pc.match_substring_regex(column, _NUMBER), False), bool)
            shown = str(column[int(np.argmax(text))])
            self.refuse(text, np.arange(len(text)), f"{name} is not a number: {shown!r}", _COLUMNS_HINT)
        values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy())
        self.refuse(~np.isfinite(values), np.arange(len(values)), f"{name} is missing or not finite")
        return values

    def times(self) -> Int64:
        """``t_ns``, refused where its size says that it counts something else since 1970."""
        rough = self.numbers(_TIME)
        for unit, since_2001 in _EPOCH_UNITS.items():
            if since_2001 <= abs(float(np.median(rough))) < 4.1 * since_2001:
                raise InputError(
                    f"{self.path}: t_ns is around {rough[0]:.0f}, which looks like {unit} since 1970.",
                    f"joulemap wants nanoseconds: multiply by {10**18 // since_2001:,}.",
                )
        exact = self.table[_TIME]
        return np.asarray(exact.to_numpy() if pa.types.is_integer(exact.type) else rough).astype(np.int64)

    def labels(self, name: str) -> Labels:
        """A column of words, without the spaces that people put after commas."""
        column = pc.utf8_trim_whitespace(self.table[name].cast(pa.string()))
        missing = np.asarray(pc.is_null(column).to_numpy(), bool)
        self.refuse(missing, np.arange(len(missing)), f"{name} is missing")
        return Labels.from_arrow(column)

    def check_readings(self, domain: str, column: str, rows: Int64, values: Float64) -> None:
        """Refuse what no meter says: energy that goes back, power below zero, a single reading."""
        if len(rows) < 2:
            raise InputError(f"{self.path} has a single reading of {domain}.", "Energy needs two readings.")
        if column == "energy_j":
            hint = "A counter only grows. If it wraps or was reset, log interval_energy_j instead."
            self.refuse(np.diff(values) < 0, rows[1:], f"energy_j of {domain} goes backwards", hint)
        else:
            self.refuse(
                values < 0, rows, f"{column} of {domain} is negative", "Leave out readings that failed."
            )

    def refuse(self, bad: NDArray[np.bool_], rows: Int64, what: str, hint: str = "") -> None:
        """Raise for the first bad row, if there is any."""
        if bad.any():
            row = int(rows[np.argmax(bad)]) + self.first_row
            count = f", {int(bad.sum()):,} times in all" if bad.sum() > 1 else ""
            raise InputError(
                f"{self.path}, {self.row_word} {row}: {what}{count}.",
                hint or "Leave out readings that failed.",
            )


def _read_csv(path: Path, packed: bool) -> pa.Table:
    with pa.input_stream(str(path), compression="gzip" if packed else None) as stream:
        head = stream.read(4096).decode("utf-8", "replace").partition("\n")[0]
    if not head.strip():
        raise pa.ArrowInvalid("it is empty.")
    delimiter = max(",;\t", key=head.count)
    words = dict.fromkeys((_DOMAIN, *_ABOUT_DOMAIN), pa.string())
    with pa.input_stream(str(path), compression="gzip" if packed else None) as stream:
        table = pyarrow.csv.read_csv(
            stream,
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
            convert_options=pyarrow.csv.ConvertOptions(column_types=words, strings_can_be_null=True),
        )
    return table.rename_columns([name.strip() for name in table.column_names])


def _near_misses(names: Sequence[str], missing: Sequence[str]) -> str:
    found = [
        f"Column `{name}` found: joulemap wants `{wanted}`, {meaning}."
        for pattern, wanted, meaning in _NEAR_MISSES
        for name in names
        if pattern.fullmatch(name) and any(wanted in what for what in missing)
    ]
    return " ".join(found)


def _domains(log: _Log, names: Labels) -> dict[str, Domain]:
    """The domains by name, from what the log says about them, else from their names."""
    about = {
        column: log.table[column].to_pylist() for column in _ABOUT_DOMAIN if column in log.table.column_names
    }
    domains = {}
    for code, name in enumerate(names.words):
        rows = np.flatnonzero(names.codes == code).tolist()
        told: dict[str, Any] = {"sensor": "imported", "parent": _parent(name, names.words)}
        with _named(log.path):
            for column, values in about.items():
                said = {values[row] for row in rows} - {None, ""}
                if len(said) > 1:
                    raise InputError(f"{name} has several values of {column}: {', '.join(sorted(said))}.")
                if said:
                    told[column] = said.pop()
            if "device" not in told:
                told["device"] = _device(name)
            domains[name] = Domain(name=name, **told)
    return domains


def _device(domain: str) -> str:
    for kind, pattern in (("GPU", _GPU), ("CPU", _CPU)):
        match = pattern.match(domain.strip())
        if match:
            return kind if match["index"] is None else f"{kind}:{match['index']}"
    if _BOARD.match(domain):
        return "CPU"
    raise InputError(
        f"Nothing tells on which device the domain {domain!r} is.",
        "Add a column `device`, with values such as GPU:0, CPU:0 or CPU.",
    )


def _parent(domain: str, names: Sequence[str]) -> str | None:
    """The domain of the log that already contains this one: a package its cores, the board its packages."""
    if _GPU.match(domain) or _BOARD.match(domain):
        return None
    match = _CPU.match(domain)
    if _PART.search(domain):
        packages = [name for name in names if _PACKAGE.fullmatch(name)]
        same = [p for p in packages if match and (m := _CPU.match(p)) and m["index"] == match["index"]]
        return next(iter(same or packages), None)
    return next((name for name in names if _BOARD.match(name)), None)


def _mean_w(trace: PowerTrace) -> float:
    seconds = float(trace.edges_ns[-1] - trace.edges_ns[0]) / NS_PER_S if len(trace) else 0.0
    return trace.total_j / seconds if seconds else 0.0


def _check_plausible(trace: PowerTrace, column: str) -> None:
    mean_w = _mean_w(trace)
    if mean_w <= IMPLAUSIBLE_W:
        return
    prefix = "milli" if mean_w / 1e3 <= IMPLAUSIBLE_W else "micro"
    raise InputError(
        f"{trace.domain.name} would draw {mean_w:,.0f} W on average: "
        f"is {column} in {prefix}{_VALUES[column]}?",
        f"joulemap wants {_VALUES[column]}: divide the column by {1000 if prefix == 'milli' else 10**6:,}.",
    )


def describe(power: Sequence[PowerTrace]) -> list[str]:
    """What was understood, one line per domain."""
    notes = []
    for trace in power:
        domain = trace.domain
        span = fmt_seconds(float(trace.edges_ns[-1] - trace.edges_ns[0]) / NS_PER_S)
        inside = f", inside {domain.parent}" if domain.parent else ""
        notes.append(
            f"{domain.name}: {domain.provenance}, feeds {domain.device}{inside}; "
            f"{fmt(trace.total_j, 'J')} over {span}, {fmt(_mean_w(trace), 'W')} on average."
        )
        if _BOARD.match(domain.name):
            notes.append(f"{domain.name} covers the whole machine; its energy is accounted to the CPU.")
    return notes


def constant_power(spec: str, span_ns: tuple[int, int]) -> PowerTrace:
    """An assumed constant power, written ``CPU:0=65W``, over a span of time.

    In intervals of 10 ms: the assumption is that the power holds at every instant, which one interval
    over the whole span would not say: it would leave open when the energy flowed.
    """
    name, separator, amount = spec.partition("=")
    if not separator:
        raise InputError(f"{spec!r} is not an assumed power.", "Write it like CPU:0=65W or GPU:0=300W.")
    device, power_w = Device.parse(name), parse(amount, "W")
    if not 0 < power_w <= IMPLAUSIBLE_W:
        raise InputError(f"{spec!r} is not a plausible power.", "Write it like CPU:0=65W or GPU:0=300W.")
    start_ns, end_ns = span_ns
    if end_ns <= start_ns:
        raise InputError("An assumed power needs events that take time.")
    if end_ns - start_ns > LONGEST_TRACE_NS:
        raise InputError(
            f"The events span {(end_ns - start_ns) / NS_PER_S / 86_400:,.0f} days.",
            "A stray timestamp, most likely: remove the event that it belongs to.",
        )
    step_ns = max(ASSUMED_INTERVAL_NS, (end_ns - start_ns) // 1_000_000)
    edges = np.append(np.arange(start_ns, end_ns, step_ns), end_ns)
    domain = Domain(str(device), str(device), sensor="assumed", provenance="estimated")
    return PowerTrace(domain, edges, power_w * (np.diff(edges) / NS_PER_S))


def check_overlap(events: EventTrace, power: Sequence[PowerTrace]) -> list[str]:
    """Refuse power that was not measured while the events ran; notes on what it covers only in part."""
    if events.span_ns is None:
        raise InputError("There are no events that energy could go to.")
    spans = [(int(trace.edges_ns[0]), int(trace.edges_ns[-1])) for trace in power if len(trace)]
    if not any(((events.start_ns < end) & (events.end_ns > start)).any() for start, end in spans):
        raise _no_overlap(events.span_ns, spans)
    notes, fed = [], 0
    for code, word in enumerate(events.device.words):
        rows = events.device.codes == code
        feeds = [t for t in power if len(t) and Device.parse(t.domain.device).runs(Device.parse(word))]
        fed += len(feeds)
        if not feeds:
            notes.append(f"No power was logged for {word}: its {int(rows.sum()):,} events get no energy.")
            continue
        start = np.maximum(events.start_ns[rows], max(int(t.edges_ns[0]) for t in feeds))
        end = np.minimum(events.end_ns[rows], min(int(t.edges_ns[-1]) for t in feeds))
        total = float((events.end_ns[rows] - events.start_ns[rows]).sum())
        covered = float(np.maximum(end - start, 0).sum()) / total if total else 1.0
        if covered < 0.9995:
            notes.append(f"Power covers {fmt_share(covered)} of the time of the events on {word}.")
    if not fed:
        logged = ", ".join(sorted({trace.domain.device for trace in power}))
        ran = ", ".join(sorted(events.device.words))
        raise InputError(f"The power is of {logged}, but the events ran on {ran}.", "Log the power of those.")
    return notes


def _no_overlap(ran: tuple[int, int], spans: Sequence[tuple[int, int]]) -> InputError:
    if not spans:
        return InputError("The power log holds no interval.", "Energy needs two readings of a domain.")
    logged = (min(start for start, _ in spans), max(end for _, end in spans))
    apart_s = (logged[0] - ran[0]) / NS_PER_S
    return InputError(
        f"The power was not logged while the events ran. Events: {_range(ran)}. Power: {_range(logged)}, "
        f"{fmt_seconds(abs(apart_s))} {'later' if apart_s > 0 else 'earlier'}.",
        _likely_cause(ran, logged, apart_s),
    )


def _range(span_ns: tuple[int, int]) -> str:
    first, last = (datetime.fromtimestamp(t // NS_PER_S, timezone.utc) for t in span_ns)
    return f"{first:%Y-%m-%dT%H:%M:%S}Z to {last:%Y-%m-%dT%H:%M:%S}Z"


def _likely_cause(ran: tuple[int, int], logged: tuple[int, int], apart_s: float) -> str:
    for what, (start, _) in (("trace", ran), ("power log", logged)):
        if start < 10**18:
            return (
                f"The times of the {what} do not count nanoseconds from 1970: another clock (since boot, or "
                "since the start of the program), or another unit. Use time.time_ns()."
            )
    hours = round(abs(apart_s) / 1800) / 2
    if 0.5 <= hours <= 14 and abs(abs(apart_s) - hours * 3600) < 300:
        return f"They are {hours:g} h apart: probably one is in local time. Log UTC, as time.time_ns() does."
    return "Probably they are from different runs, or from machines whose clocks differ."
