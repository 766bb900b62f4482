"""Which layer and phase each event on the CPU belongs to: from the ranges around it, and for the backward
pass from the forward operation that it differentiates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks import kineto_names as names
from joulemap.frameworks.imported import ACCUMULATION
from joulemap.frameworks.kineto_calls import NONE, Calls
from joulemap.frameworks.kineto_names import Paths, Role
from joulemap.frameworks.kineto_places import in_optimizer, places
from joulemap.frameworks.nesting import NO_PARENT, Forest
from joulemap.traces import PHASES, Int64, Steps

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = range(len(PHASES))
_PHASES = {names.CLIPPING: OPTIMIZER, names.SCALING: OPTIMIZER} | dict.fromkeys(
    (names.INPUT, names.LOADER, names.CUDA_GRAPH), OTHER
)
"""Of places outside every module; elsewhere the phase is that of what is around."""


@dataclass(frozen=True, eq=False)
class Scopes:
    """Path (a number in ``paths``) and phase (an index into ``PHASES``) of every event on the CPU; the rows
    of the backward pass, and for each the row that it differentiates, or ``NONE``."""

    path: Int64
    phase: Int64
    backward: Int64
    origin: Int64


_THREAD = 44
"""The bits of a sequence number, above which is its thread."""


def scopes(calls: Calls, forest: Forest, paths: Paths, steps: Steps) -> Scopes:
    """Where every event on the CPU belongs."""
    path, phase = _descend(calls, forest, paths, np.full(len(calls.start_ns), NONE, np.int64))
    # Forward operations know their layer now; the backward pass gets its layers from them.
    backward, origin = _differentiated(calls)
    origin, first = _of_first_order(calls, forest, phase, backward, origin)
    given = places(calls, forest, paths, path, backward[origin != NONE], origin[origin != NONE])
    inherited = forest.inherit(given)
    unclaimed = (path == Paths.NOWHERE) | in_optimizer(calls, paths, path)
    path = np.where(unclaimed & (inherited != NONE), inherited, path)
    of_backward = _paths_of_backward(calls, paths, path, backward, first)
    path, phase = _descend(calls, forest, paths, np.where(given != NONE, given, of_backward))
    phase = _of_places(paths, path, phase)
    phase = _with_forward(calls, forest, paths, path, phase, steps)
    phase[calls.role == Role.OVERHEAD] = OTHER
    return Scopes(path, phase, backward, origin)


def _descend(calls: Calls, forest: Forest, paths: Paths, given: Int64) -> tuple[Int64, Int64]:
    """Hand path and phase down from ranges to what they enclose, level by level.

    ``given`` holds the paths of the backward pass and of places; a module range inside the backward pass
    is a forward operation that is run again.
    """
    path = np.full(len(calls.start_ns), Paths.NOWHERE, np.int64)
    phase = np.full(len(calls.start_ns), OTHER, np.int64)
    backward = calls.is_backward | calls.is_named(names.WITH_GRADIENTS)
    for rows in forest.levels:
        above, role = forest.parent[rows], calls.role[rows]
        outermost = above == NO_PARENT
        path[rows] = np.where(outermost, Paths.NOWHERE, path[above])
        phase[rows] = np.where(outermost, OTHER, phase[above])
        full = rows[(role == Role.MODULE) | (role == Role.OPTIMIZER)]
        path[full] = paths.absolute(full)
        part = rows[(role == Role.RANGE) | (role == Role.PYTHON_MODULE)]
        path[part] = paths.within(path[part], part)
        kernel = rows[role == Role.COMPILED]
        path[kernel] = paths.of_kernels(path[kernel], kernel)
        known = rows[given[rows] != NONE]
        path[known] = given[known]
        module = rows[(role == Role.MODULE) | (role == Role.PYTHON_MODULE)]
        again = (phase[module] == BACKWARD) | (phase[module] == RECOMPUTE)
        phase[module] = np.where(again, RECOMPUTE, FORWARD)
        phase[rows[role == Role.OPTIMIZER]] = OPTIMIZER
        phase[rows[backward[rows]]] = BACKWARD
    return path, phase


def _differentiated(calls: Calls) -> tuple[Int64, Int64]:
    """The rows of the autograd engine, and for each the operation that it differentiates, which may have run
    in a backward pass itself."""
    of_engine = calls.is_backward
    backward = np.flatnonzero(of_engine)
    forward = np.flatnonzero((calls.role == Role.OP) & (calls.sequence >= 0) & ~of_engine)
    origin = _newest_before(
        _pairs(calls.thread[forward], calls.sequence[forward]),
        calls.start_ns[forward],
        _asked(calls, backward),
        calls.start_ns[backward],
    )
    found = origin != NONE
    origin[found] = forward[origin[found]]
    numbered = _Numbered.of(calls, forward)
    scripted = np.flatnonzero(~found & calls.is_named(names.SCRIPTED)[backward])
    origin[scripted] = numbered.after(_asked(calls, backward[scripted]))
    rebased = np.flatnonzero(~found & calls.is_named(names.REBASED)[backward])
    origin[rebased] = numbered.before(_asked(calls, backward[rebased]))
    return backward, origin


def _asked(calls: Calls, backward: Int64) -> Int64:
    """The thread and number of what some rows of the engine differentiate."""
    return _pairs(calls.forward_thread[backward] * (calls.thread[backward] != 0), calls.sequence[backward])


@dataclass(frozen=True, eq=False)
class _Numbered:
    """Forward operations in the order of their threads and numbers, for nodes that none has the number of."""

    keys: Int64
    rows: Int64

    @classmethod
    def of(cls, calls: Calls, forward: Int64) -> _Numbered:
        keys = _pairs(calls.thread[forward], calls.sequence[forward])
        order = np.lexsort((calls.start_ns[forward], keys))
        return cls(keys[order], forward[order])

    def after(self, wanted: Int64) -> Int64:
        """The first with a greater number. Graphs of TorchScript take theirs before they capture their
        inputs, which is the next operation of their thread."""
        return self._at(np.searchsorted(self.keys, wanted, side="right"), wanted)

    def before(self, wanted: Int64) -> Int64:
        """The last with a smaller number: it made two nodes, or more, and has the number of the first."""
        return self._at(np.searchsorted(self.keys, wanted) - 1, wanted)

    def _at(self, place: NDArray[np.intp], wanted: Int64) -> Int64:
        """The rows there, where they are of the thread that is wanted."""
        if not len(self.keys):
            return np.full(len(wanted), NONE, np.int64)
        inside = np.clip(place, 0, len(self.keys) - 1)
        fits = (inside == place) & (self.keys[inside] >> _THREAD == wanted >> _THREAD)
        return np.where(fits, self.rows[inside], NONE)


def _of_first_order(
    calls: Calls, forest: Forest, phase: Int64, backward: Int64, origin: Int64
) -> tuple[Int64, Int64]:
    """The origins that are forward operations, and with them those that the others come down to.

    What was differentiated inside a backward pass (``create_graph=True``) belongs where the row of the engine
    around it belongs, and so on, as often as something was differentiated.
    """
    again = (origin != NONE) & (phase[origin] == BACKWARD)
    forward, first = np.where(again, NONE, origin), origin.copy()
    if not again.any():
        return forward, first
    around = np.full(len(phase), NONE, np.int64)
    around[backward] = np.arange(len(backward))
    around = forest.inherit(around)
    start_ns = calls.start_ns[backward]
    while again.any():
        rows = np.flatnonzero(again)
        before = around[first[rows]]
        first[rows] = np.where(start_ns[before] < start_ns[rows], first[before], NONE)
        again = (first != NONE) & (phase[first] == BACKWARD)
    return forward, first


def _paths_of_backward(calls: Calls, paths: Paths, path: Int64, backward: Int64, origin: Int64) -> Int64:
    """The layer of each event of the autograd engine, ``NONE`` for all other events."""
    given = np.full(len(path), NONE, np.int64)
    found = origin != NONE
    given[backward[found]] = path[origin[found]]
    given[backward[~found & (calls.role[backward] == Role.EVALUATE)]] = Paths.NOWHERE
    adding = _adding(calls, backward)
    finished = finished_by(calls, backward, adding)
    given[adding] = np.where(finished == NONE, paths.code(ACCUMULATION), given[finished])
    return given


def _adding(calls: Calls, backward: Int64) -> Int64:
    """AccumulateGrad has no forward operation: it adds a finished gradient to its parameter."""
    adding: Int64 = backward[(calls.role[backward] == Role.EVALUATE) & (calls.sequence[backward] < 0)]
    return adding


def finished_by(calls: Calls, backward: Int64, adding: Int64) -> Int64:
    """The rows that finished gradients which are then added to parameters; ``NONE`` where there is none.

    The engine has nothing more urgent to do than that: it is the last row before on the same thread.
    """
    nodes = backward[calls.sequence[backward] >= 0]
    before = _newest_before(
        calls.lane[nodes], calls.start_ns[nodes], calls.lane[adding], calls.start_ns[adding]
    )
    return np.where(before == NONE, NONE, nodes[before] if len(nodes) else NONE)


def _of_places(paths: Paths, path: Int64, phase: Int64) -> Int64:
    """The phases with those of the places that have their own."""
    for place, its in _PHASES.items():
        phase = np.where(path == paths.code(place), its, phase)
    return np.where((path == paths.code(names.LOSS)) & (phase == OPTIMIZER), FORWARD, phase)


def _pairs(thread: Int64, sequence: Int64) -> Int64:
    """A thread and a sequence number as one number; sequence numbers count the operations of one thread."""
    return np.where(sequence < 0, NONE, (thread << _THREAD) + sequence)


def _newest_before(keys: Int64, t_ns: Int64, wanted: Int64, until_ns: Int64) -> Int64:
    """For each wanted key the index of the newest row with that key that is not after ``until_ns``."""
    key = np.concatenate((keys, wanted))
    asks = np.concatenate((np.zeros(len(keys), bool), np.ones(len(wanted), bool)))
    order = np.lexsort((asks, np.concatenate((t_ns, until_ns)), key))
    place = np.arange(len(order))
    last = np.maximum.accumulate(np.where(asks[order], -1, place))
    fits = (last >= 0) & (key[order[last]] == key[order])
    newest = np.full(len(order), NONE, np.int64)
    newest[order] = np.where(fits, order[last], NONE)
    return newest[len(keys) :]


def _with_forward(
    calls: Calls, forest: Forest, paths: Paths, path: Int64, phase: Int64, steps: Steps
) -> Int64:
    """Operations that no range claims are forward when their step's backward pass has not begun.

    Without steps the ones with a sequence number are: they ran with gradients on.
    """
    if len(steps):
        step = steps.at(calls.start_ns)
        begins = np.full(len(steps) + 1, np.iinfo(np.int64).max)
        backward = np.flatnonzero(calls.is_backward & (step >= 0))
        np.minimum.at(begins, step[backward], calls.start_ns[backward])
        forward = (step >= 0) & (calls.start_ns < begins[step])
    else:
        own = np.where((calls.sequence >= 0) | (path != Paths.NOWHERE), 1, NONE)
        forward = forest.inherit(own) == 1
    claimed = (phase != OTHER) | (calls.role == Role.STEP) | (calls.role == Role.OVERHEAD)
    claimed |= np.isin(path, [paths.code(place) for place in (*_PHASES, names.COMMUNICATION)])
    return np.where(~claimed & forward, FORWARD, phase)
