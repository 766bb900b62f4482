"""What the live adapter left behind, read after the program has ended: the events of some steps."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.errors import InputError
from joulemap.frameworks import kineto_names
from joulemap.frameworks.imported import Held, ImportedTrace, Signature
from joulemap.frameworks.kineto import KinetoColumns, KinetoTrace, trace_of
from joulemap.frameworks.kineto_names import GPU_CATEGORIES, GPU_RANGES
from joulemap.frameworks.torch.caches import read_cold
from joulemap.frameworks.torch.called import Call, Told, called_with, signature, with_signatures
from joulemap.frameworks.torch.compiled import read_codes, read_graphs, with_kernels
from joulemap.frameworks.torch.edges import Flow, edges
from joulemap.frameworks.torch.extract import FILE, FORMAT, NO_CATEGORY, RANGE
from joulemap.frameworks.torch.inputs import tensors_of
from joulemap.frameworks.torch.launched import PREFIX
from joulemap.frameworks.torch.names import MODULE, NOBODY
from joulemap.frameworks.torch.values import Values, held_by, held_by_kernel, read_values
from joulemap.labels import Labels
from joulemap.program import APART, Edge, Program
from joulemap.traces import KINDS, EventTrace, Int64, Steps

COMPILATION = "(compilation)"


@dataclass(frozen=True, eq=False)
class _Session:
    """The columns of one session's file, and the words in them."""

    columns: Mapping[str, NDArray[Any]]
    names: Sequence[str]
    categories: Sequence[str]
    classes: Sequence[str]
    signatures: Sequence[str]
    said: Mapping[str, Any]


def read_raw(
    folder: Path,
    progress: Callable[[float], None] | None = None,
    compiled_ns: Sequence[tuple[int, int]] = (),
) -> ImportedTrace:
    """Read all sessions of a raw folder. Steps are the recorder's to know, so there are none; what runs in
    those of ``compiled_ns``, in which something was compiled, is no module's."""
    files = sorted(folder.rglob(FILE))
    sessions = [_read(path) for path in files]
    prefixes, graphs, codes = _prefixes(sessions), read_graphs(folder), read_codes(folder)
    events: list[EventTrace] = []
    notes: list[str] = []
    phases: dict[Edge, set[str]] = {}
    calls: Counter[Call] = Counter()
    cold, values = read_cold(folder), read_values(folder)
    for number, session in enumerate(sessions):
        columns = _columns(session, prefixes)
        ranges = Labels(session.columns["category"], tuple(session.categories)).isin([GPU_RANGES])
        compiling = _compiling(columns, compiled_ns)
        kept = ~(ranges | compiling)
        trace = trace_of(with_kernels(columns.take(kept), graphs))
        called = called_with(trace.events, _told(session, kept, trace), codes)
        calls.update(called.counts())
        events += [
            with_signatures(trace.events, called, cold),
            _compilation(columns.take(compiling & ~ranges & _on_gpu(columns))),
        ]
        notes += trace.notes
        for phase, edge in _edges(session, trace, prefixes):
            phases.setdefault(edge, set()).update(filter(None, (phase,)))
        if progress is not None:
            progress((number + 1) / len(sessions))
    none = np.zeros(0, np.int64)
    empty = EventTrace.from_columns(name="", device="CPU", start_ns=none, end_ns=none, lane="")
    whole = EventTrace.joined(events or [empty])
    known = tuple(signature(call, count, cold) for call, count in sorted(calls.items()))
    return ImportedTrace(
        events=whole,
        steps=Steps.from_columns(start_ns=none, end_ns=none),
        program=Program.of(_operations(whole), phases, phases),
        framework="torch",
        notes=notes,
        signatures=known,
        values=_held(known, values) if values else (),
        flags=next((session.said["flags"] for session in reversed(sessions) if "flags" in session.said), {}),
    )


def _read(path: Path) -> _Session:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        said = json.loads(columns.pop("words").tobytes())
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged: {error}.", "It was not written to its end.") from error
    if said["format"] != FORMAT:
        raise InputError(f"{path} is of a later format ({said['format']}).", "Use a newer joulemap.")
    return _Session(columns, said["names"], said["categories"], said["classes"], said["signatures"], said)


def _prefixes(sessions: Sequence[_Session]) -> list[str]:
    """What the paths below each outermost module begin with: nothing where there is only one of them, else
    its class, and its number where there are several of the class."""
    classes = max((session.classes for session in sessions), key=len, default=())
    called = {_split(word)[0] for session in sessions for word in session.names} - {NOBODY, None}
    prefixes = [""] * len(classes)
    met: Counter[str] = Counter()
    for number in sorted(filter(None, called)) if len(called) > 1 else ():
        name = classes[number]
        met[name] += 1
        prefixes[number] = f"{name} ({met[name]})" if met[name] > 1 else name
    return prefixes


def _columns(session: _Session, prefixes: Sequence[str]) -> KinetoColumns:
    """The rows of a session as the reading wants them."""
    raw = session.columns
    rows = len(raw["start_ns"])
    linked, device = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
    linked[raw["off_host"]] = raw["linked"]
    device[raw["off_host"]] = raw["device"]
    name = Labels(raw["name"], tuple(session.names))
    category = Labels(raw["category"], tuple(session.categories))
    on_gpu = category.isin([*GPU_CATEGORIES, "gpu"])
    if NO_CATEGORY in session.categories:
        category = kineto_names.guess_categories(name, on_gpu, linked, category.isin([RANGE]))
    launched = on_gpu | category.isin(["cuda_runtime", "cuda_driver"])
    correlation = raw["correlation_id"]
    return KinetoColumns(
        name=name.mapped([_module_path(word, prefixes) for word in name.words]),
        category=category,
        start_ns=raw["start_ns"],
        end_ns=raw["start_ns"] + np.maximum(raw["duration_ns"], 0),
        device=np.where(on_gpu, device, -1),
        lane=_lanes(raw["device_resource_id"], on_gpu),
        op_id=np.where(launched, linked, correlation),
        correlation=np.where(launched, correlation, 0),
        sequence=raw["sequence_nr"],
        forward_thread=raw["fwd_thread_id"],
        thread_number=raw["start_thread_id"],
    )


def _on_gpu(columns: KinetoColumns) -> NDArray[np.bool_]:
    return np.asarray(columns.device >= 0)


def _compiling(columns: KinetoColumns, compiled_ns: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """What began in one of these spans. A GPU's work goes with the call that launched it: it may still be
    at what was called before."""
    inside = np.zeros(len(columns), bool)
    for start_ns, end_ns in compiled_ns:
        inside |= (columns.start_ns >= start_ns) & (columns.start_ns < end_ns)
    on_gpu = _on_gpu(columns)
    launches = ~on_gpu & (columns.correlation != 0)
    known = on_gpu & np.isin(columns.correlation, columns.correlation[launches])
    return np.where(known, np.isin(columns.correlation, columns.correlation[launches & inside]), inside)


def _compilation(kernels: KinetoColumns) -> EventTrace:
    """A GPU's work in steps that compile. On the CPU all their time is theirs, and the recorder names it."""
    return EventTrace.from_columns(
        name=COMPILATION,
        device=[f"GPU:{index}" for index in kernels.device.tolist()],
        start_ns=kernels.start_ns,
        end_ns=kernels.end_ns,
        lane=kernels.lane,
        kind="kernel",
    )


def _told(session: _Session, kept: NDArray[np.bool_], trace: KinetoTrace) -> Told | None:
    """What the session says of its operations; kernels that were added behind them have none of it."""
    if "signature" not in session.columns:
        return None
    own = trace.host_rows[trace.host_rows < kept.sum()]
    signatures, names = (session.columns[column][kept][own] for column in ("signature", "name"))
    return Told(Labels(signatures, tuple(session.signatures)), Labels(names, tuple(session.names)))


def _edges(session: _Session, trace: KinetoTrace, prefixes: Sequence[str]) -> Iterator[tuple[str, Edge]]:
    """What feeds what, by qualified names, where the session has looked."""
    said = session.said
    if "node_edges" not in session.columns:
        return

    def pairs(name: str) -> list[Edge]:
        return [(_layer(source, prefixes), _layer(target, prefixes)) for source, target in said[name]]

    flow = Flow(
        sequence=session.columns["node_sequence"],
        nodes=said["nodes"],
        edges=session.columns["node_edges"],
        passes=pairs("passes"),
        taken_in=pairs("taken_in"),
        handed_out=pairs("handed_out"),
    )
    yield from edges(trace.host, flow)


def _operations(events: EventTrace) -> dict[str, str]:
    """The type of every operation, by its qualified name."""
    rows = np.flatnonzero(events.kind.codes == KINDS.index("op"))
    used, first = np.unique(events.name.codes[rows], return_index=True)
    kinds = events.op[rows[first]]
    return {events.name.words[code]: kind for code, kind in zip(used.tolist(), kinds, strict=True)}


def _held(signatures: Iterable[Signature], values: Values) -> tuple[Held, ...]:
    """What operations were given, once for each kind of call."""
    called = {(one.op, one.shapes, one.strides, one.types, _code(one)) for one in signatures}
    found = [Held(*call[:4], _pieces(values, *call), call[4]) for call in sorted(called)]
    return tuple(one for one in found if any(one.pieces))


def _code(signature: Signature) -> str:
    return signature.scalars if signature.op.startswith(PREFIX) else ""


def _pieces(values: Values, op: str, shapes: str, _strides: str, types: str, code: str) -> tuple[bytes, ...]:
    if code:
        return held_by_kernel(values, op, json.loads(code))
    return held_by(values, op, tensors_of(shapes, types))


def _module_path(word: str, prefixes: Sequence[str]) -> str:
    """``M:2:encoder.0`` is ``M:Discriminator.encoder.0`` where there are several outermost modules."""
    number, path = _split(word)
    if number is None:
        return word
    if prefixes[number]:  # below its class it is no place
        first, dot, rest = path.partition(".")
        path = f"{prefixes[number]}.{first.removesuffix(APART)}{dot}{rest}".rstrip(".")
    return MODULE + path


def _layer(label: str, prefixes: Sequence[str]) -> str:
    """The layer that a label stands for, as events are named."""
    return kineto_names.layer(_module_path(label, prefixes))


def _split(word: str) -> tuple[int | None, str]:
    """The outermost module's number and the path of a range of ours; no number for other events."""
    number, _, path = word.removeprefix(MODULE).partition(":") if word.startswith(MODULE) else ("", "", "")
    return (int(number), path) if number.isdigit() else (None, word)


def _lanes(number: Int64, on_gpu: NDArray[np.bool_]) -> Labels:
    """``thread 453`` and ``stream 7``."""
    used, codes = np.unique(np.stack((on_gpu.astype(np.int64), number)), axis=1, return_inverse=True)
    words = tuple(f"{'stream' if gpu else 'thread'} {one}" for gpu, one in used.T.tolist())
    return Labels(codes.reshape(-1).astype(np.int32), words)
