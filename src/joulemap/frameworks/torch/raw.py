"""What the live adapter left behind, read after the program has ended: the events of some steps."""

from __future__ import annotations

import json
import math
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
from joulemap.frameworks.nesting import Forest
from joulemap.frameworks.torch.caches import Cold, read_cold
from joulemap.frameworks.torch.compiled import Codes, read_codes, read_graphs, with_kernels
from joulemap.frameworks.torch.edges import Flow, edges
from joulemap.frameworks.torch.extract import FILE, FORMAT, NO_CATEGORY
from joulemap.frameworks.torch.inputs import tensors_of
from joulemap.frameworks.torch.launched import BETWEEN, PREFIX
from joulemap.frameworks.torch.names import MODULE, NOBODY
from joulemap.frameworks.torch.values import Values, held_by, read_values
from joulemap.labels import Labels
from joulemap.program import Edge, Program
from joulemap.traces import KINDS, EventTrace, Int64, Steps

_RATE = 1e-3
"""Stands for every factor of an optimizer: a learning rate, a decay, a step's correction."""
_EXPONENTS = ("norm", "pow")
"""In the names of operations whose numbers choose how they are computed: a norm of 2 is a sum of squares, and
one of any other power takes fifty times as long on a CPU."""

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
    signatures: Counter[tuple[str, str, str, str]] = Counter()
    for number, session in enumerate(sessions):
        columns = _columns(session, prefixes)
        ranges = _has(Labels(session.columns["category"], tuple(session.categories)), (GPU_RANGES,))
        compiling = _compiling(columns, compiled_ns)
        kept = ~(ranges | compiling)
        trace = trace_of(with_kernels(columns.take(kept), graphs))
        events += [trace.events, _compilation(columns.take(compiling & ~ranges & _on_gpu(columns)))]
        notes += trace.notes
        for phase, edge in _edges(session, trace, prefixes):
            phases.setdefault(edge, set()).update(filter(None, (phase,)))
        signatures.update(_signatures(session, kept, trace, codes))
        signatures.update(_generated(trace.events, codes))
        if progress is not None:
            progress((number + 1) / len(sessions))
    cold, values = read_cold(folder), read_values(folder)
    none = np.zeros(0, np.int64)
    empty = EventTrace.from_columns(name="", device="CPU", start_ns=none, end_ns=none, lane="")
    whole = EventTrace.joined(events or [empty])
    known = tuple(
        _signature(name, op, phase, said, calls, cold)
        for (name, op, phase, said), calls in sorted(signatures.items())
    )
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
    on_gpu = _has(category, (*GPU_CATEGORIES, "gpu"))
    if NO_CATEGORY in session.categories:
        category = kineto_names.guess_categories(name, on_gpu, linked)
    launched = on_gpu | _has(category, ("cuda_runtime", "cuda_driver"))
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


def _signatures(
    session: _Session, kept: NDArray[np.bool_], trace: KinetoTrace, codes: Codes
) -> Counter[tuple[str, str, str, str]]:
    """How often each operation was called with what: name, operation, phase, signature as written. One that
    is not aten's has its namespace, unlike in names."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    if "signature" not in session.columns:
        return found
    own = trace.host_rows[trace.host_rows < kept.sum()]  # kernels that were added behind have none
    said, label = (session.columns[column][kept][own] for column in ("signature", "name"))
    events = trace.events
    rows = np.flatnonzero(np.array([bool(word) for word in session.signatures], bool)[said])
    nested = Forest.of_events(events, rows)
    rows = rows[~nested.holds_its_like(events.name.codes[rows].astype(np.int64))]  # they only pass on
    columns = (events.name.codes, events.op.codes, events.phase.codes, said, label)
    distinct, calls = np.unique(np.stack([one[rows] for one in columns]), axis=1, return_counts=True)
    kernels = {kernel for kernel, _ in codes}
    for (a, b, c, d, e), count in zip(distinct.T.tolist(), calls.tolist(), strict=True):
        if events.op.words[b] not in kernels:
            op = kineto_names.foreign(session.names[e]) or events.op.words[b]
            found[events.name.words[a], op, events.phase.words[c], session.signatures[d]] += count
    return found


def _generated(events: EventTrace, codes: Codes) -> Counter[tuple[str, str, str, str]]:
    """How often kernels of inductor's own ran: what they are called with is in their code."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    known = {kernel for kernel, _ in codes}
    own = [word for word in events.op.words if known.issuperset(word.split(BETWEEN))]
    rows = np.flatnonzero((events.kind.codes == KINDS.index("op")) & _has(events.op, own))
    for name, op, phase in zip(events.name[rows], events.op[rows], events.phase[rows], strict=True):
        files = {file for one in op.split(BETWEEN) for file in codes.get((one, phase == "backward"), ())}
        said = json.dumps([[], [], [], sorted(files)])
        found[name, PREFIX + op, phase, said] += 1
    return found


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


def _signature(name: str, op: str, phase: str, said: str, calls: int, cold: Cold) -> Signature:
    shapes, strides, types, scalars = _unpacked(said, op, phase)
    there = cold.get((op, tensors_of(shapes, types)), "") if cold else ""
    return Signature(name, op, phase, shapes, strides, types, scalars, calls, there)


def _held(signatures: Iterable[Signature], values: Values) -> tuple[Held, ...]:
    """What operations were given, once for each kind of call."""
    called = sorted({(one.op, one.shapes, one.strides, one.types) for one in signatures})
    found = ((call, held_by(values, call[0], tensors_of(call[1], call[3]))) for call in called)
    return tuple(Held(*call, pieces) for call, pieces in found if any(pieces))


def _unpacked(signature: str, op: str, phase: str) -> tuple[str, str, str, str]:
    """Shapes, strides, types and scalars, each as JSON."""
    shapes, strides, types, scalars = json.loads(signature)
    if not any(word in op for word in _EXPONENTS):
        scalars = [_rounded(one, phase == "optimizer") for one in scalars]
    return json.dumps(shapes), json.dumps(strides), json.dumps(types), json.dumps(scalars)


def _rounded(scalar: Any, coarse: bool) -> Any:
    """A factor that changes from step to step costs the same in each, and so do all of an optimizer's."""
    if isinstance(scalar, list):
        return [_rounded(one, coarse) for one in scalar]
    if not isinstance(scalar, float) or not math.isfinite(scalar):
        return scalar
    return math.copysign(_RATE, scalar) if coarse and scalar not in (0.0, 1.0) else float(f"{scalar:.1g}")


def _has(labels: Labels, words: Sequence[str]) -> NDArray[np.bool_]:
    among = np.array([word in words for word in labels.words], bool)
    return among[labels.codes] if len(labels) else np.zeros(0, bool)


def _module_path(word: str, prefixes: Sequence[str]) -> str:
    """``M:2:encoder.0`` is ``M:Discriminator.encoder.0`` where there are several outermost modules."""
    number, path = _split(word)
    return word if number is None else MODULE + ".".join(filter(None, (prefixes[number], path)))


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
