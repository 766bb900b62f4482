"""A GPU's part of a profile: kernels, copies and sets, named by the operations that launched them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joulemap.frameworks.imported import UNNAMED
from joulemap.frameworks.tensorflow import roles
from joulemap.frameworks.tensorflow.roles import Role
from joulemap.frameworks.tensorflow.subjects import Context, Named, NamedRows, Namer, Subject
from joulemap.frameworks.xplane.events import Events
from joulemap.labels import Labels
from joulemap.traces import EventTrace, Int64

_STREAM = "Stream"
_TEXTS = ("tf_op", "hlo_op", "name")


def kernel_events(
    events: Events, device: str, session: str, name: Namer, launches: Mapping[int, Named]
) -> EventTrace:
    """The rows of one GPU, a lane for each stream.

    Lines that are no streams repeat the kernels in other words, and are left out. ``launches`` is the host's
    knowledge of who launched what, for kernels that carry no name themselves.
    """
    streams = np.array([line.name.startswith(_STREAM) for line in events.lines] or [False])
    row = np.flatnonzero(streams[events.line])
    named = _named(events, row, name, launches)
    return EventTrace.from_columns(
        name=named.name,
        device=device,
        start_ns=events.start_ns[row],
        end_ns=events.end_ns[row],
        lane=Labels(events.line[row], tuple(f"{session}/{device}/{i}" for i in range(len(events.lines)))),
        kind="kernel",
        op=named.op,
        phase=named.phase,
    )


def _named(events: Events, row: Int64, name: Namer, launches: Mapping[int, Named]) -> NamedRows:
    """The table of names is made for every distinct set of what kernels carry."""
    words = [events.name, *(events.texts(key) for key in _TEXTS)]
    program, launch = events.numbers("program_id")[row], events.numbers("correlation_id")[row]
    launch = np.where(np.isin(launch, list(launches)), launch, 0)
    key = np.unique(np.column_stack((program, launch)), axis=0, return_inverse=True)[1].reshape(-1)
    for column in words:
        key = key * len(column.words) + column.codes[row]
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    asked = [
        (_subject(int(program[one]), *(column.words[column.codes[row[one]]] for column in words)), Context())
        for one in first.tolist()
    ]
    table = [
        launches.get(int(launch[one]), named) if named.name.startswith(UNNAMED) else named
        for one, named in zip(first.tolist(), name(asked), strict=True)
    ]
    return NamedRows(place.astype(np.int32), table)


def _subject(program: int, kernel: str, tf_op: str, instruction: str, path: str) -> Subject:
    node, op = roles.node_and_op(tf_op) or ("", "")
    return Subject(Role.KERNEL, kernel, node, op, program, instruction, path)
