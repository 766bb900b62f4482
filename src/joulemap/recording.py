"""A recording on disk, the folder ``NAME.joulemap/``: written while the program runs, read ever after.

::

    recording.json         format, status, and everything about the run; replaced whole, never edited
    recording.backup.json  the same once more
    events.*  steps.*  power/DOMAIN.*  process/DOMAIN.*      tables, open or sealed (see tables.py)
    program.json           the structure of the program

Whoever writes may be killed at any moment: what was acknowledged is there afterwards. Whoever reads gets
what was written, or an error that names the file; with ``salvage`` the rest, and notes that say what is
missing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from joulemap import tables
from joulemap.devices import Domain
from joulemap.errors import DamagedRecording, InputError, NewerRecording, RecordingError
from joulemap.labels import Labels
from joulemap.program import Program
from joulemap.tables import Order, Part, TableAppender
from joulemap.traces import ClockAnchor, EventTrace, Float64, Int64, PowerTrace, Steps

FORMAT = 1
"""1: the first."""

INFO, BACKUP, PROGRAM = "recording.json", "recording.backup.json", "program.json"
POWER, PROCESS = "power", "process"

Status = Literal["recording", "complete", "interrupted"]
T = TypeVar("T")
Self = TypeVar("Self", bound="RecordingAppender")

_SALVAGE = "Go on without the damaged part with --salvage, or restore the file from a copy."
_NOT_ONE = "A recording is a folder like run.joulemap, made by joulemap run or joulemap import."
_PLAIN_FILES = (INFO, BACKUP, PROGRAM)
_SUFFIXES = (tables.ARROWS, tables.SUMS, tables.PARQUET, tables.UNFINISHED)
_TABLE_NAME = re.compile(r"[A-Za-z0-9_-]+")


# What is in the tables

_WORDS = pa.dictionary(pa.int32(), pa.string())
_TIMES = {"start_ns": pa.int64(), "end_ns": pa.int64()}
_LABELS = dict.fromkeys(("name", "device", "lane", "kind", "op", "phase"), _WORDS)
_EVENTS = {**_LABELS, **_TIMES, "step": pa.int32()}
_STEPS = {**_TIMES, "traced": pa.bool_(), "label": _WORDS}
_POWER = {**_TIMES, "energy_j": pa.float64(), "gap": pa.bool_()}
_SHARES = {**_TIMES, "share": pa.float64()}


@dataclass(frozen=True, eq=False)
class ProcessShares:
    """``share[i]`` of the domain's energy in ``[edges_ns[i], edges_ns[i+1])`` is this program's."""

    domain: str
    edges_ns: Int64
    share: Float64

    @classmethod
    def from_columns(cls, domain: str, edges_ns: ArrayLike, share: ArrayLike) -> ProcessShares:
        """Check the columns; a share lies between 0 and 1."""
        edges, shares = np.asarray(edges_ns, np.int64), np.asarray(share, np.float64)
        if len(edges) != len(shares) + (len(edges) > 0) or (np.diff(edges) < 0).any():
            raise InputError(f"{domain}: {len(shares)} shares need {len(shares) + 1} edges in order of time.")
        if not ((shares >= 0) & (shares <= 1)).all():
            raise InputError(f"{domain}: a program's share of the energy lies between 0 and 1.")
        return cls(domain, edges, shares)

    def __len__(self) -> int:
        return len(self.share)


def _table(types: Mapping[str, pa.DataType], columns: Mapping[str, Any], **about: object) -> pa.Table:
    """The columns as an Arrow table, with ``about`` in its metadata."""
    arrays = [
        _words(columns[name]) if kind == _WORDS else pa.array(columns[name], kind)
        for name, kind in types.items()
    ]
    metadata = {"joulemap": json.dumps(about)} if about else None
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(types.items()), metadata))


def _words(labels: Labels) -> pa.DictionaryArray:
    """Only the words that occur. Half a surrogate pair is no text in any file; it is spelled out."""
    used = np.flatnonzero(np.bincount(labels.codes, minlength=len(labels.words)))
    codes = np.zeros(len(labels.words), np.int32)
    codes[used] = np.arange(len(used), dtype=np.int32)
    words = [labels.words[code].encode(errors="backslashreplace").decode() for code in used.tolist()]
    rows = codes[labels.codes] if len(labels) else labels.codes
    return pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(words, pa.string()))


def _columns(table: pa.Table, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """The known columns; a table of another shape raises InputError."""
    for name, kind in types.items():
        if name not in table.column_names or table[name].type != kind or table[name].null_count:
            raise InputError(f"it has no proper column {name!r}")
    return {
        name: Labels.from_arrow(table[name]) if kind == _WORDS else table[name].to_numpy()
        for name, kind in types.items()
    }


def _about(schema: pa.Schema) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((schema.metadata or {})[b"joulemap"])
    return about


def _domain_of(schema: pa.Schema) -> Domain:
    return _known(Domain, _about(schema)["domain"])


def _events_table(events: EventTrace) -> pa.Table:
    types = {name: kind for name, kind in _EVENTS.items() if getattr(events, name) is not None}
    return _table(types, vars(events))


def _read_events(table: pa.Table) -> EventTrace:
    lanes = "lane" in table.column_names
    types = {name: kind for name, kind in _EVENTS.items() if lanes or name != "lane"}
    return EventTrace.from_columns(**_columns(table, types))


def _steps_table(steps: Steps) -> pa.Table:
    return _table(_STEPS, vars(steps))


def _read_steps(table: pa.Table) -> Steps:
    return Steps.from_columns(**_columns(table, _STEPS))


def _power_table(trace: PowerTrace) -> pa.Table:
    times = {"start_ns": trace.edges_ns[:-1], "end_ns": trace.edges_ns[1:]}
    columns = {**times, "energy_j": trace.energy_j, "gap": trace.gap}
    return _table(_POWER, columns, domain=dataclasses.asdict(trace.domain))


def _read_power(table: pa.Table) -> PowerTrace:
    """Where rows are lost, a gap without energy stands for them."""
    columns = _columns(table, _POWER)
    start, end = columns["start_ns"], columns["end_ns"]
    lost = np.flatnonzero(start[1:] != end[:-1]) + 1
    edges = np.insert(np.append(start[:1], end), lost + 1, start[lost])
    energy, gap = np.insert(columns["energy_j"], lost, 0.0), np.insert(columns["gap"], lost, True)
    return PowerTrace(_domain_of(table.schema), edges, energy, gap)


def _shares_table(shares: ProcessShares) -> pa.Table:
    times = {"start_ns": shares.edges_ns[:-1], "end_ns": shares.edges_ns[1:]}
    return _table(_SHARES, {**times, "share": shares.share}, domain=shares.domain)


def _read_shares(table: pa.Table) -> ProcessShares:
    """Where rows are lost, the share before them goes on until the next that is known."""
    columns = _columns(table, _SHARES)
    edges = np.append(columns["start_ns"], columns["end_ns"][-1:])
    return ProcessShares.from_columns(_about(table.schema)["domain"], edges, columns["share"])


def _known(cls: Callable[..., T], content: Mapping[str, Any]) -> T:
    """Make a value from JSON; what a later version added to it is passed over."""
    names = {column.name for column in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in content.items() if name in names})


# recording.json


@dataclass(frozen=True)
class RecordingInfo:
    """Everything about a recording that is not in a table.

    ``files`` lists the files that must be there, with the checksums of their parts; those that are still
    open have none yet. ``extra`` keeps keys that this version does not know.
    """

    command: list[str] = field(default_factory=list)
    source: str = "run"
    host: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)
    window_ns: tuple[int, int] | None = None
    """The time that is the recording; energy outside it is reported as outside."""
    domains: list[Domain] = field(default_factory=list)
    anchors: list[ClockAnchor] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    warnings: list[str] = field(default_factory=list)
    status: Status = "recording"
    files: dict[str, list[Part]] = field(default_factory=dict)
    format: int = FORMAT
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """As recording.json holds it, with a checksum over all of it."""
        content = dataclasses.asdict(self)
        content["files"] = {name: [str(part) for part in parts] for name, parts in self.files.items()}
        content = {"format": content.pop("format"), **content.pop("extra"), **content}
        try:
            plain = json.loads(json.dumps(content, allow_nan=False))
            return json.dumps({**plain, "crc32": _crc32(plain)}, indent=1)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"What is known about the recording cannot be written as JSON: {error}.",
                "Use plain strings, numbers, lists and dictionaries in host, versions and extra.",
            ) from error

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordingInfo:
        """Read recording.json; ValueError when it is not what :meth:`to_json` wrote, NewerRecording when
        a newer joulemap wrote it."""
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise ValueError("it has no format number")
        if content["format"] > FORMAT:
            raise NewerRecording(
                f"It was written by a newer joulemap (format {content['format']}; this one reads up to "
                f"{FORMAT}).",
                "Upgrade joulemap: pip install --upgrade joulemap.",
            )
        if content.pop("crc32", None) != _crc32(content):
            raise ValueError("it was changed after it was written")
        return cls._from_content(content)

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> RecordingInfo:
        names = {column.name for column in dataclasses.fields(cls)}
        known = {name: value for name, value in content.items() if name in names}
        known["extra"] = {name: value for name, value in content.items() if name not in names}
        known["domains"] = [_known(Domain, domain) for domain in known.get("domains", [])]
        known["anchors"] = [_known(ClockAnchor, anchor) for anchor in known.get("anchors", [])]
        known["files"] = {
            name: [Part.parse(part) for part in parts] for name, parts in known["files"].items()
        }
        window = known.get("window_ns")
        return cls(**{**known, "window_ns": None if window is None else tuple(window)})


def _crc32(content: Mapping[str, Any]) -> str:
    """A checksum of what JSON says, however it is laid out."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _read_info(path: Path) -> RecordingInfo:
    try:
        return RecordingInfo.from_json(path.read_bytes())
    except NewerRecording as error:
        raise NewerRecording(f"{path}: {error.message}", error.hint) from None
    except FileNotFoundError:
        raise DamagedRecording(f"{path} is missing.", _SALVAGE) from None
    except OSError as error:
        raise DamagedRecording(f"{path} cannot be read: {error.strerror}.", _SALVAGE) from error
    except (ValueError, TypeError, KeyError, InputError, RecursionError) as error:
        raise DamagedRecording(f"{path} is damaged: {error}.", _SALVAGE) from error


def _salvage_info(folder: Path, notes: list[str]) -> RecordingInfo:
    """From recording.json, else from its backup, else from what the tables say about themselves."""
    try:
        return _read_info(folder / INFO)
    except RecordingError as error:
        problem = error
    notes.append(problem.message)
    with suppress(DamagedRecording):
        return _read_info(folder / BACKUP)
    if isinstance(problem, NewerRecording):
        raise problem
    notes.append(
        f"{folder / BACKUP} cannot be read either: only the tables are left, and those that were sealed "
        "are read without their checksums."
    )
    sealed = [name for name in _files_of(folder) if name.endswith((tables.PARQUET, PROGRAM))]
    files = {name: list[Part]() for name in sealed if not _is_open(folder / _stem(name))}
    return RecordingInfo(source="salvaged", created_ns=0, status="interrupted", files=files)


# The folder


def file_name(domain: str) -> str:
    """The name of a domain as a file name: itself where it can be, else made so and told apart by a sum."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", domain)[:80]
    if plain == domain != "":
        return plain
    return f"{plain}-{zlib.crc32(domain.encode(errors='backslashreplace')):08x}"


def _files_of(folder: Path) -> list[str]:
    """The files that can belong to a recording, relative to its folder."""
    found = [path for path in folder.glob("*") if path.is_file()]
    found += [path for path in folder.glob("*/*") if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in sorted(found)]
    return [name for name in names if name in _PLAIN_FILES or name.endswith(_SUFFIXES)]


def _table_name(name: str) -> str:
    if not _TABLE_NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot name a table.", "Use letters, digits, - and _.")
    return name


def _stem(name: str) -> str:
    """The table that a file belongs to: ``power/gpu-0`` of ``power/gpu-0.sums``."""
    return name.rpartition(".")[0]


def _is_open(stem: Path) -> bool:
    return tables.beside(stem, tables.SUMS).exists() or tables.beside(stem, tables.ARROWS).exists()


def _open_tables(folder: Path) -> list[str]:
    return sorted({_stem(name) for name in _files_of(folder) if name.endswith((tables.SUMS, tables.ARROWS))})


def _require_recording(folder: Path) -> None:
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise RecordingError(f"{folder} is a file, not a recording.", _NOT_ONE)
        if not _files_of(folder):
            raise RecordingError(f"{folder} is not a recording: it holds no {INFO}.", _NOT_ONE)
    except FileNotFoundError:
        raise RecordingError(f"{folder} does not exist.", _NOT_ONE) from None
    except OSError as error:
        raise RecordingError(f"{folder} cannot be read: {error.strerror}.", _NOT_ONE) from error


# Reading


class Recording:
    """A recording as it lies on disk; each table is read when it is first asked for.

    ``notes`` grow as tables are read: what a killed writer had not finished, and with ``salvage`` what is
    damaged and left out.
    """

    def __init__(self, path: Path, info: RecordingInfo, notes: list[str], salvage: bool) -> None:
        self.path = path
        self.info = info
        self.notes = notes
        self._salvage = salvage

    @classmethod
    def open(cls, path: str | os.PathLike[str], salvage: bool = False) -> Recording:
        """Open a recording that is complete, was interrupted, or is still being written.

        Without ``salvage``, damage raises DamagedRecording here or where the damaged table is asked for.
        """
        folder, notes = Path(path), list[str]()
        _require_recording(folder)
        info = _salvage_info(folder, notes) if salvage else _read_info(folder / INFO)
        if info.status == "recording" and not tables.is_locked(folder):
            info = dataclasses.replace(info, status="interrupted")
            notes.append(f"{folder} was not finished: its writer was killed, or the machine went down.")
        return cls(folder, info, notes, salvage)

    def events(self) -> EventTrace:
        """All events; none when there is no such table."""
        return self._events

    def power(self) -> list[PowerTrace]:
        """A trace for each domain that was metered."""
        return self._power

    def steps(self) -> Steps | None:
        """The steps, or None when none were recorded."""
        return self._steps

    def shares(self) -> dict[str, ProcessShares]:
        """This program's part of a domain, by the domain's name, where it is known."""
        return self._shares

    def program(self) -> Program:
        """The structure of the program; empty when it is not known."""
        return self._program

    def table(self, name: str) -> pa.Table | None:
        """Any table as it is, or None when there is none of that name."""
        return self._read(name, lambda table: table)

    @cached_property
    def _events(self) -> EventTrace:
        nothing = EventTrace.from_columns(name=[], device=[], start_ns=[], end_ns=[])
        return self._read("events", _read_events) or nothing

    @cached_property
    def _power(self) -> list[PowerTrace]:
        order = {domain.name: number for number, domain in enumerate(self.info.domains)}
        traces = self._read_all(POWER, _read_power)
        silent = order.keys() - {trace.domain.name for trace in traces}
        self.notes.extend(f"{self.path} has no power of {name}." for name in sorted(silent))
        return sorted(traces, key=lambda trace: order.get(trace.domain.name, len(order)))

    @cached_property
    def _steps(self) -> Steps | None:
        # Events point to steps by their number, so nothing that follows a loss can be kept.
        return self._read("steps", _read_steps, prefix=True)

    @cached_property
    def _shares(self) -> dict[str, ProcessShares]:
        return {shares.domain: shares for shares in self._read_all(PROCESS, _read_shares)}

    @cached_property
    def _program(self) -> Program:
        parts = self.info.files.get(PROGRAM)
        if parts is None:
            return Program()
        path = self.path / PROGRAM
        try:
            content = path.read_bytes()
            if all(part.matches(content) for part in parts):
                return Program.from_json(content.decode())
            damage = f"{path} is damaged: it does not match its checksum."
        except FileNotFoundError:
            damage = f"{path} is missing."
        except (OSError, ValueError, InputError) as error:
            damage = f"{path} cannot be read: {error}."
        self._report(damage)
        return Program()

    def _read_all(self, folder: str, decode: Callable[[pa.Table], T]) -> list[T]:
        self._look_again()
        sealed = {_stem(name) for name in self.info.files}
        names = sorted(
            name for name in sealed.union(_open_tables(self.path)) if name.startswith(f"{folder}/")
        )
        found = (self._read(name, decode) for name in names)
        return [value for value in found if value is not None]

    def _read(self, name: str, decode: Callable[[pa.Table], T], prefix: bool = False) -> T | None:
        found = self._contents(name, prefix)
        if found.damage:
            self._report(found.damage)
        if found.cut_off and self.info.status != "recording":
            self.notes.append(found.cut_off)
        if found.table is None:
            return None
        try:
            return decode(found.table)
        except (InputError, KeyError, ValueError, TypeError) as error:
            self._report(f"{self.path / name} cannot be understood: {error}.")
            return None

    def _contents(self, name: str, prefix: bool) -> tables.Contents:
        found = self._find(name, prefix)
        if (found.damage or found.table is None) and self._look_again():
            found = self._find(name, prefix)
        return found

    def _find(self, name: str, prefix: bool) -> tables.Contents:
        sealed, stem = self.info.files.get(name + tables.PARQUET), self.path / name
        if sealed is None and not _is_open(stem):
            missing = name + tables.ARROWS in self.info.files
            return tables.Contents(damage=f"{stem}{tables.ARROWS} is missing." if missing else "")
        return tables.read(stem, sealed, prefix)

    def _look_again(self) -> bool:
        """What was still being written when it was opened may have been sealed since."""
        if self.info.status != "recording":
            return False
        self.info = _read_info(self.path / INFO)
        return True

    def _report(self, damage: str) -> None:
        if not self._salvage:
            raise DamagedRecording(damage, _SALVAGE)
        self.notes.append(damage)


# Writing


class RecordingAppender:
    """The tables that one process adds to a recording: the monitor its power, the program its events.

    Each part is on disk when its call returns, and survives whatever happens to the process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        _require_recording(self.path)
        self._tables: dict[str, TableAppender] = {}

    def append_events(self, events: EventTrace) -> None:
        """Add events; all of a recording's events have lanes, or none."""
        if len(events):
            self._append("events", _events_table(events))

    def append_power(self, trace: PowerTrace) -> None:
        """Add to a domain's power; the part starts where the last one ended."""
        self._append(f"{POWER}/{file_name(trace.domain.name)}", _power_table(trace), "contiguous")

    def append_steps(self, steps: Steps) -> None:
        """Add steps that come after those before."""
        self._append("steps", _steps_table(steps), "ascending")

    def append_shares(self, shares: ProcessShares) -> None:
        """Add to the shares of a domain; the part starts where the last one ended."""
        self._append(f"{PROCESS}/{file_name(shares.domain)}", _shares_table(shares), "contiguous")

    def append_table(self, name: str, table: pa.Table) -> None:
        """Add rows to a table of another kind."""
        self._append(_table_name(name), table)

    def _append(self, name: str, table: pa.Table, order: Order = "any") -> None:
        if name not in self._tables:
            self._check_new(name)
            self._tables[name] = TableAppender(self.path / name, table.schema, order)
        self._tables[name].append(table)

    def _check_new(self, name: str) -> None:
        if _is_open(self.path / name) or self._is_sealed(name):
            raise RecordingError(
                f"{self.path / name} exists already.", "A table is written once, by one process."
            )

    def _is_sealed(self, name: str) -> bool:
        return tables.beside(self.path / name, tables.PARQUET).exists()

    def close(self) -> None:
        """Let go of the tables; they stay open on disk until the recording is finished."""
        for table in self._tables.values():
            table.close()
        self._tables.clear()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RecordingWriter(RecordingAppender):
    """The one process that makes a recording and finishes it. Leaving it as a context manager finishes:
    ``complete``, or ``interrupted`` by an exception."""

    def __init__(self, path: Path, info: RecordingInfo, handle: int) -> None:
        super().__init__(path)
        self.info = info
        self._lock: int | None = handle
        self._pid = os.getpid()

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], info: RecordingInfo, overwrite: bool = False
    ) -> RecordingWriter:
        """Start a recording in a new or empty folder. ``overwrite`` replaces a recording, nothing else."""
        folder, info = Path(path), dataclasses.replace(info, format=FORMAT, status="recording", files={})
        with tables.writing(folder):
            if folder.exists():
                _check_replaceable(folder, overwrite)
            folder.mkdir(parents=True, exist_ok=True)
        handle = _lock_folder(folder)
        try:
            _clear(folder)
            _save(folder, info)
            return cls(folder, info, handle)
        except BaseException:
            os.close(handle)
            raise

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> RecordingWriter:
        """Take over a recording whose writer is gone, in order to finish it."""
        folder = Path(path)
        _require_recording(folder)
        info, handle = _read_info(folder / INFO), _lock_folder(folder)
        return cls(folder, info, handle)

    def put_events(self, events: EventTrace) -> None:
        """Write a whole trace at once, sealed."""
        starts = range(0, len(events), tables.ROWS_PER_GROUP)
        groups = (_events_table(events.take(slice(row, row + tables.ROWS_PER_GROUP))) for row in starts)
        self._put_groups("events", _events_table(events.take(slice(0, 0))).schema, groups)

    def put_power(self, trace: PowerTrace) -> None:
        """Write all of a domain's power at once, sealed."""
        self._put(f"{POWER}/{file_name(trace.domain.name)}", _power_table(trace))

    def put_steps(self, steps: Steps) -> None:
        """Write all steps at once, sealed."""
        self._put("steps", _steps_table(steps))

    def put_shares(self, shares: ProcessShares) -> None:
        """Write all shares of a domain at once, sealed."""
        self._put(f"{PROCESS}/{file_name(shares.domain)}", _shares_table(shares))

    def put_table(self, name: str, table: pa.Table) -> None:
        """Write a table of another kind at once, sealed."""
        self._put(_table_name(name), table)

    def _put(self, name: str, table: pa.Table) -> None:
        rows = range(0, table.num_rows, tables.ROWS_PER_GROUP)
        self._put_groups(name, table.schema, (table.slice(row, tables.ROWS_PER_GROUP) for row in rows))

    def _put_groups(self, name: str, schema: pa.Schema, groups: Iterable[pa.Table]) -> None:
        self._check_owner()
        self._check_new(name)
        parts = tables.write_sealed(self.path / name, schema, groups)
        self.update(**self._listed({name + tables.PARQUET: parts}))

    def put_program(self, program: Program) -> None:
        """Write the program's structure, in place of what was known before."""
        self._check_owner()
        content = program.to_json().encode()
        tables.replace(self.path / PROGRAM, lambda path: _write(path, content))
        self.update(**self._listed({PROGRAM: [Part.of(content, 0, 0)]}))

    def _listed(self, files: Mapping[str, list[Part]]) -> dict[str, Any]:
        """The lists of files and of domains once these files are sealed."""
        domains = {domain.name: domain for domain in self.info.domains}
        before = {name: parts for name, parts in self.info.files.items() if not _now_sealed(name, files)}
        for name in files:
            if name.startswith(f"{POWER}/"):
                domain = _domain_of(tables.sealed_schema(self.path / _stem(name)))
                domains[domain.name] = domain
        return {"files": {**before, **files}, "domains": list(domains.values())}

    def warn(self, text: str) -> None:
        """Keep a warning for whoever reads the recording."""
        self.update(warnings=[*self.info.warnings, text])

    def update(self, **changes: Any) -> None:
        """Change what is known about the recording (``anchors=…``, ``rank=…``), at once and durably."""
        self._check_owner()
        info = dataclasses.replace(self.info, **changes)
        _save(self.path, info)
        self.info = info

    def finish(self, status: Status = "complete", window_ns: tuple[int, int] | None = None) -> None:
        """Seal the tables and say how it ended. A table that cannot be sealed stays readable as it is."""
        self._check_owner()
        self.close()
        try:
            sealed, problems = self._seal_all()
            warnings = [*self.info.warnings, *(problem.message for problem in problems)]
            window = window_ns or self.info.window_ns
            self.update(status=status, window_ns=window, warnings=warnings, **self._listed(sealed))
            for name in _open_tables(self.path):
                if name + tables.PARQUET in self.info.files:
                    tables.discard_open(self.path / name)
        finally:
            self._release()
        if problems:
            raise problems[0]

    def _seal_all(self) -> tuple[dict[str, list[Part]], list[RecordingError]]:
        sealed, problems = dict[str, list[Part]](), list[RecordingError]()
        for name in _open_tables(self.path):
            if name + tables.PARQUET in self.info.files:
                continue
            try:
                parts = tables.seal(self.path / name)
            except RecordingError as error:
                problems.append(error)
            else:
                sealed.update({name + tables.PARQUET: parts} if parts else {})
        return sealed, problems

    def _append(self, name: str, table: pa.Table, order: Order = "any") -> None:
        self._check_owner()
        known = name in self._tables
        super()._append(name, table, order)
        if not known:  # from now on it would be missed
            self.update(files={**self.info.files, name + tables.ARROWS: []})

    def _is_sealed(self, name: str) -> bool:
        # A file that is not listed was left by an attempt that failed: it does not count.
        return name + tables.PARQUET in self.info.files

    def _check_owner(self) -> None:
        if self._lock is None:
            raise RecordingError(f"{self.path} is finished.", "Start another recording.")
        if os.getpid() != self._pid:
            raise RecordingError(
                f"{self.path} belongs to the process that started it, not to a forked child.",
                "Add tables from other processes with a RecordingAppender of their own.",
            )

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is None or os.getpid() != self._pid:
            return
        if error is None:
            self.finish()
        else:
            with suppress(RecordingError):  # the program's own exception is the one to be seen
                self.finish("interrupted")


def _now_sealed(name: str, files: Mapping[str, list[Part]]) -> bool:
    return name.endswith(tables.ARROWS) and _stem(name) + tables.PARQUET in files


def _save(folder: Path, info: RecordingInfo) -> None:
    content = info.to_json().encode()
    for name in (INFO, BACKUP):
        tables.replace(folder / name, lambda path: _write(path, content))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _lock_folder(folder: Path) -> int:
    with tables.writing(folder):
        handle = os.open(folder, os.O_RDONLY)
    if tables.lock(handle):
        return handle
    os.close(handle)
    raise RecordingError(
        f"{folder} is being written by another process.", "Wait until it ends, or choose another name."
    )


def _check_replaceable(folder: Path, overwrite: bool) -> None:
    """Refuse to write over anything but a recording, and over that unless it is wanted."""
    if not folder.is_dir():
        raise RecordingError(f"{folder} exists and is not a folder.", "Choose another name.")
    ours = _files_of(folder)
    others = [path for path in folder.rglob("*") if path.relative_to(folder).as_posix() not in ours]
    others = [path for path in others if path.is_symlink() or not path.is_dir()]
    if others or (ours and not _looks_ours(folder)):
        what = others[0] if others else folder / ours[0]
        raise RecordingError(
            f"{folder} exists and is not a recording: {what.name} is no part of one.",
            "Nothing was touched. Choose another name.",
        )
    if ours and not overwrite:
        raise RecordingError(f"{folder} exists.", "Choose another name, or overwrite it with --overwrite.")


def _looks_ours(folder: Path) -> bool:
    """Whether there is a recording.json that was ours, be it damaged."""
    found = [path for path in (folder / INFO, folder / BACKUP) if path.is_file()]
    return any(b'"format"' in path.read_bytes() for path in found)


def _clear(folder: Path) -> None:
    """Remove all but recording.json: until that is replaced, it says that the rest is missing."""
    with tables.writing(folder):
        for name in _files_of(folder):
            if name != INFO:
                (folder / name).unlink()
        for path in folder.iterdir():
            if path.is_dir():
                path.rmdir()
