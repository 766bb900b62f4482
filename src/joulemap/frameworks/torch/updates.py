"""Regions of ``torch.compile`` in which optimizers make their steps.

Torch's own range around such a step is not in compiled code. What is known instead is which graphs were made
from an optimizer's code alone (``provenance``): a region that runs such graphs and nothing else is a step.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.kineto import KinetoColumns
from joulemap.frameworks.kineto_names import COMPILED_REGION, COMPILED_STEP, Role, roles
from joulemap.frameworks.nesting import Forest
from joulemap.labels import Labels
from joulemap.traces import Int64

GRAPH = re.compile(r"## Call CompiledFxGraph (?P<key>\S+) ##")
_SAYS_NOTHING = (Role.LEFT_OUT, Role.KERNEL, Role.RUNTIME, Role.OVERHEAD, Role.STEP)
"""Of where an event is called, or of what else there is."""


def with_updates(columns: KinetoColumns, keys: Collection[str]) -> KinetoColumns:
    """The events, with regions that run only graphs of these keys as ranges of optimizers."""
    made = [GRAPH.match(word) for word in columns.name.words]
    if not any(match and match["key"] in keys for match in made):
        return columns
    role = roles(columns.name, columns.category)
    rows = np.flatnonzero(~np.isin(role, _SAYS_NOTHING))
    codes, role = columns.name.codes[rows], role[rows]
    graph = np.array([match is not None for match in made], bool)[codes]
    update = np.array([match is not None and match["key"] in keys for match in made], bool)[codes]
    region = np.array([bool(COMPILED_REGION.match(word)) for word in columns.name.words], bool)[codes]
    forest = Forest.of(columns.lane.codes[rows], columns.start_ns[rows], columns.end_ns[rows])
    around = region | (role == Role.OPTIMIZER) | ((role == Role.GLUE) & ~graph)
    return _renamed(columns, rows[region & _all_updates(forest, update, around)])


def _all_updates(forest: Forest, update: NDArray[np.bool_], around: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows have updates inside them, and besides these only what may be around one."""
    inside = forest.inherit(np.where(update, 1, -1)) == 1
    return forest.around(np.flatnonzero(update)) & ~forest.around(np.flatnonzero(~inside & ~around))


def _renamed(columns: KinetoColumns, rows: Int64) -> KinetoColumns:
    both = Labels.joined([columns.name, Labels.of([COMPILED_STEP])])
    codes = both.codes[:-1].copy()
    codes[rows] = both.codes[-1]
    return replace(columns, name=Labels(codes, both.words))
