"""Operations outside every module that can be told nonetheless: by their names, or by when they ran.

- What is differentiated although no module holds it is the loss; an optimizer differentiates nothing itself,
  so that holds for what its closure does too. Where no module takes part from one step of an optimizer to the
  next, there is nothing to tell the loss from.
- What computes norms after the backward pass and before the optimizer's step clips gradients, and so does
  what clamps in place there.
- Input pipelines, collectives and gradient scaling have names that say so.
- What brings data to a GPU, and has it do nothing else, feeds it.
- A CUDA graph that is replayed does not say what is in it, and stands for itself.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks import kineto_names as names
from joulemap.frameworks.kineto_calls import NONE, Calls
from joulemap.frameworks.kineto_names import Paths, Role
from joulemap.frameworks.nesting import NO_PARENT, Forest
from joulemap.program import SEPARATOR
from joulemap.traces import Int64

_LOSS = re.compile(r"aten::\w*(_loss|cross_entropy|kl_div)")
_NORM = re.compile(r"aten::\w*norm")
_CLAMP = re.compile(r"aten::(_foreach_)?clamp(_min|_max)?_$")
"""In place: who clamps anything else than gradients then, to look at it, makes a copy."""


def places(
    calls: Calls, forest: Forest, paths: Paths, path: Int64, backward: Int64, differentiated: Int64
) -> Int64:
    """A path for every event that has one of its own by these rules, ``NONE`` for the others.

    ``path`` are the paths that ranges give, ``backward`` the rows that differentiate ``differentiated``.
    """
    given = np.full(len(path), NONE, np.int64)
    outside = (path == Paths.NOWHERE) & (calls.role == Role.OP)
    above = _outermost_operation(calls, forest)
    top = outside & (above == np.arange(len(path)))
    beside = _beside_modules(calls, forest, backward, differentiated)
    lost = differentiated[(beside & (outside | in_optimizer(calls, paths, path)))[differentiated]]
    given[above[lost]] = paths.code(names.LOSS)
    given[beside & top & calls.is_named(_LOSS)] = paths.code(names.LOSS)
    replays = (path == Paths.NOWHERE) & (calls.role == Role.RUNTIME) & calls.is_named(names.GRAPH_LAUNCH)
    given[replays] = paths.code(names.CUDA_GRAPH)
    of_engine = forest.inherit(np.where(calls.is_backward, 1, NONE)) == 1
    given[_clipping(calls, top & (given == NONE) & ~of_engine)] = paths.code(names.CLIPPING)
    for word, name in enumerate(calls.name.words):
        where = names.place(name)
        if where is not None:
            given[calls.name.codes == word] = paths.code(where)
    return given


def feeding(calls: Calls, forest: Forest, path: Int64, copying: Int64, computing: Int64) -> NDArray[np.bool_]:
    """Which rows outside every range only bring data to a GPU, with all that is inside them.

    ``copying`` are rows that launch copies to it, ``computing`` those that launch anything else.
    """
    if not len(copying):
        return np.zeros(len(path), bool)
    outside = (path == Paths.NOWHERE) & ((calls.role == Role.OP) | (calls.role == Role.RUNTIME))
    feeds = outside & forest.around(copying) & ~forest.around(computing)
    return np.asarray(outside & (forest.inherit(np.where(feeds, 1, NONE)) == 1))


def in_optimizer(calls: Calls, paths: Paths, path: Int64) -> NDArray[np.bool_]:
    """The operations inside an optimizer's step."""
    words = np.array([word.startswith(f"{names.OPTIMIZER}{SEPARATOR}") for word in paths.words], bool)
    return np.asarray(words[path] & (calls.role == Role.OP))


def _outermost_operation(calls: Calls, forest: Forest) -> Int64:
    """For every row the outermost operation around it that is in no range; itself where there is none."""
    outermost = np.arange(len(calls.role))
    for rows in forest.levels[1:]:
        above = forest.parent[rows]
        inside = (above != NO_PARENT) & (calls.role[above] == Role.OP)
        outermost[rows[inside]] = outermost[above[inside]]
    return outermost


def _beside_modules(
    calls: Calls, forest: Forest, backward: Int64, differentiated: Int64
) -> NDArray[np.bool_]:
    """The rows before or after which a module was called, or something in one differentiated, since an
    optimizer began its last step, and until one begins its next."""
    part = np.searchsorted(_optimizers(calls), calls.start_ns, side="right")
    in_module = forest.inherit(np.where(calls.role == Role.MODULE, 1, NONE)) == 1
    taking_part = np.concatenate((np.flatnonzero(in_module), backward[in_module[differentiated]]))
    return np.asarray(np.isin(part, part[taking_part]))


def _optimizers(calls: Calls) -> Int64:
    """When each step of an optimizer began."""
    steps = (calls.role == Role.OPTIMIZER) & calls.is_named(names.OPTIMIZER_STEP)
    return np.sort(calls.start_ns[steps])


def _clipping(calls: Calls, free: NDArray[np.bool_]) -> Int64:
    """Of the free rows between a backward pass and the next optimizer step those that clamp, and all of them
    where one is a norm, since gradients are scaled with what comes of it."""
    optimizers = _optimizers(calls)
    backward = np.sort(calls.start_ns[calls.is_backward])
    rows = np.flatnonzero(free)
    follows = np.searchsorted(optimizers, calls.start_ns[rows])
    rows, follows = rows[follows < len(optimizers)], follows[follows < len(optimizers)]
    begun = np.searchsorted(backward, calls.start_ns[rows])
    over = begun == np.searchsorted(backward, optimizers[follows])
    before = np.where(follows > 0, optimizers[np.maximum(follows, 1) - 1], np.iinfo(np.int64).min)
    since = begun > np.searchsorted(backward, before) if len(optimizers) else over
    rows, follows = rows[over & since], follows[over & since]
    by_norm = np.unique(follows[calls.is_named(_NORM)[rows]])
    clips: Int64 = rows[np.isin(follows, by_norm) | calls.is_named(_CLAMP)[rows]]
    return clips
