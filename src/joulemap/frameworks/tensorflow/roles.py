"""What the events of TensorFlow's host profile are, by their names."""

from __future__ import annotations

import re
from enum import IntEnum

from joulemap.frameworks.xplane.plane import Described

SCOPE, PHASE = "joulemap:", "joulemap-phase:"
"""Ranges that the live adapter draws around eager code: a layer's path, and a phase."""

EAGER = "EagerLocalExecute: "
SESSION_RUN = "SessionRun"
RECORD, START, STOP = (f"ThreadpoolListener::{what}" for what in ("Record", "StartRegion", "StopRegion"))

_FUNCTION = re.compile(r"__(?:inference|forward|backward)_")
_NO_WORK = frozenset(
    {"MemoryAllocation", "MemoryDeallocation", "ParallelFor", "EagerExecute", "EagerKernelExecute"}
    | {
        "KernelAndDeviceFunc::Run",
        "ExecutorState::ProcessAsync::Start",
        SESSION_RUN,
        "TFE_DeleteTensorHandle",
    }
)
"""Marks without length, and ranges that only wait: for what runs inside them or elsewhere, and where the last
handle of an iterator is deleted, for the pipeline's threads to end."""

_WAITING = re.compile(
    r"Iterator::(?:.*::)?(?:Root|Prefetch|Parallel\w+|MapAndBatch\w*)$|IteratorGetNextOp::DoCompute$|\w+Consume$"
)
"""Parts of the input pipeline that only take over what other threads have made."""

_CALLS = re.compile(
    r"(?:Stateful)?PartitionedCall|(?:Stateless)?(?:While|If|Case)|_?Xla\w*(?:Run|Launch)\w*|__inference_.+"
)
"""Nodes that run other nodes, and wait for them."""

_TRANSFER = re.compile(r"(?:.*:)?(?P<op>_(?:Host)?(?:Send|Recv))(?: input \d+ from .+)?$")
"""What hands a tensor from one device, or one part of a graph, to another."""

_DATA = re.compile(r"Iterator(?:::|GetNextOp)|MakeIterator::|(?:Prefetch|ParallelMap|MapAndBatch)\w*$")
_DATA_OP = re.compile(r"\w*(?:Dataset(?:V\d)?|Iterator\w*|Optional\w+)$")
_COMPILING = re.compile(
    r"tf\.function-graph_building|\w*Compiler::|JitCompiler|ThunkEmitter|Codegen$|HLO passes|mlir::|\w+Pass$"
)


class Role(IntEnum):
    """What an event is to the reading."""

    LEFT_OUT = 0
    NODE = 1
    """A graph's node runs."""
    EAGER = 2
    """An operation runs eagerly."""
    HLO = 3
    """An instruction that XLA compiled runs."""
    DATA = 4
    """The input pipeline works."""
    WAITING = 5
    """The input pipeline waits for itself."""
    COMPILING = 6
    PROCESS = 7
    """The executor goes through a graph's nodes."""
    RUN = 8
    """A function's run is set off."""
    FUNCTION = 9
    """A function is called eagerly; waits for its run."""
    SCOPE = 10
    PHASE = 11
    RECORD = 12
    START = 13
    STOP = 14
    TASK = 15
    """A pool's thread works off what was handed to the pool; made of START and STOP."""
    KERNEL = 16
    """Work on a GPU."""
    RANGE = 17
    """Anything else: the user's own ranges, and what newer versions add."""


WORK = (Role.NODE, Role.EAGER, Role.HLO, Role.DATA, Role.COMPILING)
_EXACT = {
    RECORD: Role.RECORD,
    START: Role.START,
    STOP: Role.STOP,
    "ExecutorState::Process": Role.PROCESS,
    "FunctionRun": Role.RUN,
} | dict.fromkeys(_NO_WORK, Role.LEFT_OUT)


def node_and_op(name: str, display: str | None = None) -> tuple[str, str] | None:
    """``layer/MatMul`` and ``MatMul`` of ``layer/MatMul:MatMul``; None for what is no graph's node.

    ``display`` is the operation's type once more, where the profile has that.
    """
    node, _, op = name.rpartition(":")
    if not node or not op or node.endswith(":") or (display is not None and display != op):
        return None
    return node, op


def role(described: Described) -> Role:
    """What events of this name are."""
    name = described.name
    if name in _EXACT:
        return _EXACT[name]
    if name.startswith(EAGER):
        return _eager_role(name.removeprefix(EAGER))
    if name.startswith(SCOPE):
        return Role.SCOPE
    if name.startswith(PHASE):
        return Role.PHASE
    if name.startswith(("TFE_Py_", "end: ")):
        return Role.LEFT_OUT
    return _working_role(described)


def transfer(name: str) -> str | None:
    """``_Send`` of ``_send_dense/MatMul_0:_Send`` and of ``_Send input 0 from … to …``; None for others."""
    found = _TRANSFER.match(name)
    return found["op"] if found else None


def is_data_op(op: str) -> bool:
    """Whether an operation is the input pipeline's."""
    return bool(_DATA_OP.match(op))


def _eager_role(op: str) -> Role:
    if _FUNCTION.match(op):
        return Role.FUNCTION
    if op == "IteratorGetNext":
        return Role.WAITING
    return Role.DATA if is_data_op(op) else Role.EAGER


def _working_role(described: Described) -> Role:
    if _WAITING.match(described.name):
        return Role.WAITING
    if node := node_and_op(described.name, described.display):
        return Role.RANGE if _CALLS.fullmatch(node[1]) or transfer(described.name) else Role.NODE
    if _DATA.match(described.name):
        return Role.DATA
    return Role.COMPILING if _COMPILING.match(described.name) else Role.RANGE
