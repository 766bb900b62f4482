"""A session's events, taken out of the profiler as columns and written down: nothing is understood here.

torch hands out one object an event. Each column is one pass of its getter over all of them, without a line
of Python for an event in between.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count, repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.torch.dataflow import Dataflow
from joulemap.frameworks.torch.flags import AUTOCAST, current
from joulemap.frameworks.torch.inputs import LIST, Inputs, filled_in, inputs_of

FILE = "events.npz"
FORMAT = 1
NO_CATEGORY = ""
RANGE = "user_annotation"
_ALL_BITS = 2**64 - 1
Word = TypeVar("Word", bound=Hashable)
_WITHOUT_REFERENCES = 2
"""The last of marshal's formats that packs a word alike whether or not it was packed before."""
_ON_ALL = ("start_ns", "duration_ns", "device_resource_id", "sequence_nr")


def write_events(
    events: Sequence[Any],
    folder: Path,
    classes: Sequence[str],
    flow: Dataflow | None = None,
    tree: Callable[[], Sequence[Any]] = tuple,
) -> None:
    """Write ``events.npz`` below ``folder``, whole or not at all; shapes where the dataflow is known too.
    ``tree`` gives the same events in the profiler's other form, which says more of what they were given."""
    kind = type(events[0]) if len(events) else None
    columns: dict[str, NDArray[Any]] = {name: _numbers(kind, name, events) for name in _ON_ALL}
    columns["name"], names = _words(map(kind.name, events) if kind else ())
    columns["category"], categories = _words(_categories(kind, events))
    off_host = _off_host(columns["category"], categories)
    columns["off_host"] = off_host
    elsewhere = [events[row] for row in off_host.tolist()]
    columns["linked"] = _numbers(kind, "linked_correlation_id", elsewhere)
    columns["device"] = _numbers(kind, "device_index", elsewhere)
    columns |= _threads(kind, events, columns)
    columns["correlation_id"] = _numbers(kind, "correlation_id", events if elsewhere else [], len(events))
    said: dict[str, Any] = {"format": FORMAT, "names": names, "categories": categories}
    said |= {"classes": list(classes), "signatures": []}
    if flow is not None:
        columns["signature"], said["signatures"] = _signatures(kind, events, tree)
        columns["node_sequence"], said["nodes"], columns["node_edges"] = flow.graph.columns()
        said |= {"passes": list(flow.passes), "taken_in": list(flow.taken_in)}
        said |= {"handed_out": list(flow.handed_out), "flags": {**current(), AUTOCAST: flow.autocast}}
    columns["words"] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    part = folder / f"{FILE}.part"
    with part.open("wb") as file:
        np.savez(file, allow_pickle=False, **columns)
    part.replace(folder / FILE)


def _numbers(kind: Any, name: str, events: Sequence[Any], rows: int | None = None) -> NDArray[np.int64]:
    """What a getter says of every event; zeros for ``rows`` that are not asked. Some have numbers without a
    sign in torch: of threads, and how long what has not ended took."""
    if not len(events):
        return np.zeros(rows or 0, np.int64)
    try:
        return np.fromiter(map(getattr(kind, name), events), np.int64, len(events))
    except OverflowError:
        said = (one & _ALL_BITS for one in map(getattr(kind, name), events))
        return np.fromiter(said, np.uint64, len(events)).view(np.int64)


def _threads(
    kind: Any, events: Sequence[Any], columns: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.int64]]:
    """torch's own numbers for threads. One event of each thread tells its number, and only what is
    differentiated tells which thread its forward pass was on."""
    place = columns["device_resource_id"] * 2
    place[columns["off_host"]] += 1  # a stream may have the number of a thread
    _, first, which = np.unique(place, return_index=True, return_inverse=True)
    ids = _numbers(kind, "start_thread_id", [events[row] for row in first.tolist()])
    forward = np.zeros(len(events), np.int64)
    asked = np.flatnonzero(columns["sequence_nr"] >= 0)
    forward[asked] = _numbers(kind, "fwd_thread_id", [events[row] for row in asked.tolist()])
    return {"start_thread_id": ids[which.reshape(-1)], "fwd_thread_id": forward}


def _words(values: Iterable[Word]) -> tuple[NDArray[np.int32], list[Word]]:
    """Numbers for words, and the words."""
    index: dict[Word, int] = {}
    numbers = count()
    # setdefault takes the next number for a new word, and throws it away for a known one
    codes = np.fromiter(map(index.setdefault, values, numbers), np.int64)
    order, codes = np.unique(codes, return_inverse=True)
    words = {number: word for word, number in index.items()}
    return codes.astype(np.int32), [words[number] for number in order.tolist()]


def _categories(kind: Any, events: Sequence[Any]) -> Iterable[str]:
    """What torch says an event is; older ones say only whether it was on a GPU, and what is a range."""
    if hasattr(kind, "activity_type"):
        return map(kind.activity_type, events)
    if kind is None:
        return ()
    from torch._C._profiler import RecordScope
    from torch.autograd import DeviceType

    scopes: Any = RecordScope
    on_cpu, ranges = DeviceType.CPU, int(scopes.USER_SCOPE)
    said = zip(map(kind.device_type, events), map(kind.scope, events), strict=True)
    return ("gpu" if on != on_cpu else RANGE if scope == ranges else NO_CATEGORY for on, scope in said)


def _off_host(codes: NDArray[np.int32], categories: Sequence[str]) -> NDArray[np.int64]:
    """The rows that are no operations: kernels, copies, and the calls that launched them."""
    on_host = np.array([word in ("cpu_op", RANGE, "python_function") for word in categories], bool)
    return np.flatnonzero(~on_host[codes]) if len(codes) else np.zeros(0, np.int64)


_SIGNED_BY = ("structured_input_shapes", "structured_input_strides", "dtypes", "concrete_inputs")


def _signatures(
    kind: Any, events: Sequence[Any], tree: Callable[[], Sequence[Any]]
) -> tuple[NDArray[np.int32], list[str]]:
    """What every event was called with, as numbers, and each signature in words once: there are few."""
    if kind is None:
        return np.zeros(0, np.int32), []
    has_all = hasattr(kind, _SIGNED_BY[0])  # since torch 2.13
    wanted = _SIGNED_BY if has_all else ("shapes", *_SIGNED_BY[2:])
    getters = [getattr(kind, name) for name in wanted if hasattr(kind, name)]
    said = _packed(zip(*(map(one, events) for one in getters), strict=True))
    with_lists = [row for row, types in enumerate(map(kind.dtypes, events)) if LIST in types]
    unsaid: Sequence[int] = with_lists if has_all else range(len(events))
    inputs = inputs_of(tree(), {events[row].correlation_id() for row in unsaid}) if unsaid else {}
    for row in unsaid:
        said[row] += str(inputs.get(events[row].correlation_id(), "")).encode()
    codes, _ = _words(said)
    _, first = np.unique(codes, return_index=True)
    return codes, [_signature(events[row], inputs) for row in first.tolist()]


def _packed(said: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """The same bytes for the same lists, in a third of the time that ``str`` takes for theirs."""
    every = list(said)
    try:
        return list(map(marshal.dumps, every, repeat(_WITHOUT_REFERENCES)))
    except ValueError:  # an object of torch's
        return [str(one).encode() for one in every]


def _signature(event: Any, inputs: Mapping[int, Inputs] | None = None) -> str:
    """Shapes, strides, types and scalars of what an operation was called with, in one line."""
    types = list(event.dtypes())
    if not types:
        return ""
    shapes = _asked(event, "structured_input_shapes") or event.shapes()
    strides = _asked(event, "structured_input_strides")
    filled_in(shapes, strides, types, (inputs or {}).get(event.correlation_id(), []))
    given = [shapes, strides, types, _asked(event, "concrete_inputs")]
    return json.dumps(given, separators=(",", ":"), default=str)


def _asked(event: Any, name: str) -> Any:
    """What an event says if it is asked; older versions of torch know less."""
    getter = getattr(event, name, None)
    return [] if getter is None else getter()
