"""What runs inside regions of ``torch.compile``, each kernel below the module that it came from.

Generated code calls kernels in one order, which was written down when it was made (``provenance``).
Operations of libraries and kernels of Triton show in a trace, C++ kernels do not. Where what shows is in that
order, to the last call, every one has its module, and the time between two belongs to the C++ kernels that
are called there. Otherwise nothing is said, and the region stays one line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from joulemap.frameworks.kineto import KinetoColumns
from joulemap.frameworks.kineto_names import KERNEL_PLACE
from joulemap.frameworks.nesting import NO_PARENT, Forest
from joulemap.frameworks.torch.origins import common_parts
from joulemap.frameworks.torch.provenance import FILE, FORMAT
from joulemap.frameworks.torch.updates import GRAPH, with_updates
from joulemap.labels import Labels
from joulemap.traces import Int64

_OPERATION, _RANGE = "cpu_op", "user_annotation"


@dataclass(frozen=True)
class KernelCall:
    """A call in compiled code: the kernel, the event that it shows as, and the path of its module with dots
    (empty for the outermost one, None where it is not known)."""

    kernel: str
    event: str
    path: str | None


class Graph(NamedTuple):
    """A compiled graph: its calls in order, and whether it is an optimizer's step."""

    calls: Sequence[KernelCall]
    is_update: bool = False


Graphs = Mapping[str, Sequence[Graph]]
"""By the key of a compiled graph, the graphs of that key."""


Codes = Mapping[tuple[str, bool], Sequence[str]]
"""By a kernel's name, and whether it is of a backward pass, the files that it may be in."""


class _Row(NamedTuple):
    """An event to be added; ``graph`` is the row of the graph's own event."""

    name: str
    category: str
    graph: int
    start_ns: int
    end_ns: int


def read_graphs(folder: Path) -> Graphs:
    """What the live adapter has left below ``folder``; nothing where there is nothing, or it is damaged."""
    said = _said(folder)
    prefixes = _prefixes(said)
    graphs: dict[str, list[Graph]] = {}
    for graph in said:
        calls = [_call(call, prefixes) for call in graph["calls"]]
        graphs.setdefault(graph["key"], []).append(Graph(calls, graph.get("optimizer", False)))
    return graphs


def read_codes(folder: Path) -> Codes:
    """The files with the generated code of every kernel that is inductor's own."""
    codes: dict[tuple[str, bool], list[str]] = {}
    for graph in _said(folder):
        code = graph.get("code", {"path": "", "backward": False})
        for call in graph["calls"]:
            found = codes.setdefault((call["kernel"], code["backward"]), [])
            if call["kernel"] == call["event"] and code["path"] not in found:
                found.append(code["path"])
    return {key: sorted(found) for key, found in codes.items() if found}


def _said(folder: Path) -> list[Mapping[str, Any]]:
    try:
        said = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return []
    return list(said["graphs"]) if said["format"] == FORMAT else []


def _prefixes(graphs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """What paths begin with where compiled functions call several models: their classes, and numbers."""
    calls = (call for graph in graphs for call in graph["calls"] if call["path"] is not None)
    outermost = dict.fromkeys(tuple(call["outermost"]) for call in calls if "outermost" in call)
    met: Counter[str] = Counter()
    prefixes = {}
    for kind, variable in outermost if len(outermost) > 1 else ():
        met[kind] += 1
        prefixes[kind, variable] = f"{kind} ({met[kind]})" if met[kind] > 1 else kind
    return prefixes


def _call(said: Mapping[str, Any], prefixes: Mapping[tuple[str, str], str]) -> KernelCall:
    path = said["path"]
    if path is not None and "outermost" in said:
        path = ".".join(filter(None, (prefixes.get(tuple(said["outermost"])), path)))
    return KernelCall(said["kernel"], said["event"], path)


def with_kernels(columns: KinetoColumns, graphs: Graphs) -> KinetoColumns:
    """The events, and behind them: ranges that say which module a kernel is of, and C++ kernels. Regions that
    are steps of optimizers are called so."""
    rows = list(_found(columns, graphs)) if graphs else []
    columns = with_updates(
        columns, [key for key, made in graphs.items() if all(one.is_update for one in made)]
    )
    return _with(columns, rows) if rows else columns


def _found(columns: KinetoColumns, graphs: Graphs) -> Iterator[_Row]:
    keys = [match and match["key"] for match in map(GRAPH.match, columns.name.words)]
    known = np.array([key in graphs for key in keys], bool)
    called = known[columns.name.codes] if len(known) else np.zeros(len(columns), bool)
    called &= columns.category.isin([_OPERATION, _RANGE])  # which of these it is, versions differ
    calls = np.flatnonzero(called)
    if not len(calls):
        return
    operations = np.flatnonzero(columns.category.isin([_OPERATION]) | called)
    inside = _inside(columns, operations, calls)
    for row in calls.tolist():
        key = keys[columns.name.codes[row]]
        yield from _rows_of(columns, row, inside[row], graphs[key or ""])


def _inside(columns: KinetoColumns, operations: Int64, calls: Int64) -> dict[int, Int64]:
    """The operations directly inside each of some, in order."""
    start, end = columns.start_ns[operations], columns.end_ns[operations]
    around = Forest.of(columns.lane.codes[operations], start, end).parent
    parent = np.where(around == NO_PARENT, NO_PARENT, operations[around])
    order = np.lexsort((start, parent))
    begin, stop = (np.searchsorted(parent[order], calls, side) for side in ("left", "right"))
    return {
        row: operations[order[a:b]]
        for row, a, b in zip(calls.tolist(), begin.tolist(), stop.tolist(), strict=True)
    }


def _rows_of(
    columns: KinetoColumns, graph: int, inside: Int64, candidates: Sequence[Graph]
) -> Iterator[_Row]:
    """The rows for one call of a graph, where one of the candidates fits, and only one."""
    names = list(columns.name[inside])
    fitting = [candidate.calls for candidate in candidates if _fits(candidate.calls, names)]
    if len(fitting) != 1:
        return
    [calls] = fitting
    known = {call.event for call in calls}
    shown = iter([row for row, name in zip(inside.tolist(), names, strict=True) if name in known])
    since_ns, unseen = int(columns.start_ns[graph]), list[KernelCall]()
    for call in calls:
        if call.event not in names:
            unseen.append(call)
            continue
        row = next(shown)
        start_ns, end_ns = int(columns.start_ns[row]), int(columns.end_ns[row])
        yield from _between(graph, unseen, since_ns, start_ns - 1)
        yield from _place(graph, call.path, start_ns - 1, end_ns)
        since_ns, unseen = end_ns, []
    yield from _between(graph, unseen, since_ns, int(columns.end_ns[graph]))


def _fits(calls: Sequence[KernelCall], names: Sequence[str]) -> bool:
    """Whether the calls that can be seen are those that were made."""
    known, shown = {call.event for call in calls}, set(names)
    return [name for name in names if name in known] == [call.event for call in calls if call.event in shown]


def _between(graph: int, unseen: Sequence[KernelCall], since_ns: int, until_ns: int) -> Iterator[_Row]:
    """C++ kernels that run between two operations are one event, below the module that all of them are in."""
    if not unseen or until_ns <= since_ns:
        return
    paths = [call.path for call in unseen]
    known = [path.split(".") for path in paths if path is not None]
    if len(known) == len(paths):
        yield from _place(graph, ".".join(common_parts(known)), since_ns, until_ns)
    yield _Row(" + ".join(call.kernel for call in unseen), _OPERATION, graph, since_ns, until_ns)


def _place(graph: int, path: str | None, start_ns: int, end_ns: int) -> Iterator[_Row]:
    if path is not None:
        yield _Row(KERNEL_PLACE + path, _RANGE, graph, start_ns, end_ns)


def _with(columns: KinetoColumns, rows: Sequence[_Row]) -> KinetoColumns:
    graph = np.array([row.graph for row in rows], np.int64)
    none = np.zeros(len(rows), np.int64)
    thread = columns.thread_number
    return KinetoColumns(
        name=_joined(columns.name, [row.name for row in rows]),
        category=_joined(columns.category, [row.category for row in rows]),
        start_ns=np.append(columns.start_ns, [row.start_ns for row in rows]),
        end_ns=np.append(columns.end_ns, [row.end_ns for row in rows]),
        device=np.append(columns.device, none - 1),
        lane=Labels.joined([columns.lane, columns.lane[graph]]),
        op_id=np.append(columns.op_id, none),
        correlation=np.append(columns.correlation, none),
        sequence=np.append(columns.sequence, none - 1),
        forward_thread=np.append(columns.forward_thread, none),
        thread_number=None if thread is None else np.append(thread, thread[graph]),
    )


def _joined(labels: Labels, words: Sequence[str]) -> Labels:
    return Labels.joined([labels, Labels.of(words)])
