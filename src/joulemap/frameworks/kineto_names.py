"""The words in Kineto's events: what an event is by its name, and how its qualified name reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.imported import UNNAMED
from joulemap.labels import Labels
from joulemap.program import SEPARATOR, apart
from joulemap.traces import Int64

MODEL = "(model)"
STEP = "(step)"
PYTHON = "(python)"
AUTOGRAD = "/(autograd)"
INPUT, LOADER = "input pipeline", "input pipeline/DataLoader"
COPY = "Memcpy HtoD"
INPUT_COPY = f"{INPUT}/{COPY}"
COMMUNICATION = "communication"
SCALING = "gradient scaling"
CLIPPING = "gradient clipping"
LOSS = "loss"
CUDA_GRAPH = "CUDA graph"
OPTIMIZER, ZERO_GRAD = "optimizer", "zero_grad"
ACCUMULATE = "AccumulateGrad"

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
GPU_RANGES = "gpu_user_annotation"
MODULE_CLASS = "nn.Module: "
KERNEL_PLACE = "C:"
"""Of ranges of ours around a compiled kernel, with the path below the module that its region is in."""
_EVALUATE = "autograd::engine::evaluate_function"
_NOT_ATEN = re.compile(r"(?!aten::)[\w.]+::[\w.]+$")
_RUNTIME = re.compile(r"(cuda|cu|hip)[A-Z]")
_STEP = re.compile(r"(ProfilerStep|STEP)#\d+$")
_OPTIMIZER = re.compile(r"Optimizer\.(?P<what>step|zero_grad)#(?P<optimizer>[^.]*)")
COMPILED_REGION = re.compile(r"Torch-Compiled Region(: (?P<frame>\d+)/(?P<again>\d+)|$)")
"""Which one it is, older versions do not say."""
SCRIPTED = re.compile(r"(autograd::engine::evaluate_function: )?torch::jit::.*DifferentiableGraphBackward")
REBASED = re.compile(
    r"(autograd::engine::evaluate_function: )?((torch::autograd::)?CopySlices|AsStridedBackward)"
)
"""Made for views of what is written in place, beside what the operation that writes or reads made itself."""
_REDUCER = r"torch(::|\.)distributed(::|\.ddp\.)reducer::"
WITH_GRADIENTS = re.compile(_REDUCER + r"(mul|copy)|FSDP::(root_)?(pre|post)_backward")
"""What data parallelism does with gradients, some of it when the engine has ended."""
GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")
COMPILED_STEP = "Optimizer.step#compiled"
"""Of regions in which a compiled optimizer makes its step, in the way of torch's own ranges of steps."""
_PLACES = (
    (re.compile(r"enumerate\(DataLoader\)#"), LOADER),
    (re.compile(r"aten::_?pin_memory$"), INPUT),
    (
        re.compile(
            r"(nccl|gloo|mpi|ucc|c10d|_c10d_functional|record_param_comms)\b:?|nccl(Dev)?Kernel|" + _REDUCER
        ),
        COMMUNICATION,
    ),
    (re.compile(r"aten::_amp_"), SCALING),
)
"""Names that say where something belongs, whatever is around it."""
_GLUE = re.compile(
    r"## Call CompiledFxGraph|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher|"
    r"(Distributed)?DataParallel\.forward"
)
"""Ranges of torch itself that are no part of a program's structure."""


class Role(IntEnum):
    """What an event is to the reading. Ranges open a part of the path; the rest happens inside them."""

    LEFT_OUT = 0
    OP = 1
    KERNEL = 2
    RUNTIME = 3
    OVERHEAD = 4
    STEP = 5
    MODULE = 6
    PYTHON_MODULE = 7
    RANGE = 8
    OPTIMIZER = 9
    EVALUATE = 10
    GLUE = 11
    COMPILED = 12


_BY_CATEGORY = {
    "cpu_op": Role.OP,
    "user_annotation": Role.RANGE,
    "cuda_runtime": Role.RUNTIME,
    "cuda_driver": Role.RUNTIME,
    "overhead": Role.OVERHEAD,
    "python_function": Role.LEFT_OUT,
} | dict.fromkeys(GPU_CATEGORIES, Role.KERNEL)


def roles(name: Labels, category: Labels) -> NDArray[np.int64]:
    """The ``Role`` of every event: a category's, or where a name says more, the name's."""
    by_category = np.array([_BY_CATEGORY.get(word, Role.LEFT_OUT) for word in category.words], np.int64)
    by_name = np.array([_role_of_name(word) for word in name.words], np.int64)
    given, told = by_category[category.codes], by_name[name.codes]
    open_to_names = (given == Role.OP) | (given == Role.RANGE)
    in_python = (category.codes == category.code("python_function")) & (told == Role.PYTHON_MODULE)
    return np.where((open_to_names & (told != Role.LEFT_OUT)) | in_python, told, given)


def _role_of_name(name: str) -> Role:
    if name.startswith("M:"):
        return Role.MODULE
    if name.startswith(KERNEL_PLACE):
        return Role.COMPILED
    if name.startswith(MODULE_CLASS):
        return Role.PYTHON_MODULE
    if name.startswith(_EVALUATE):
        return Role.EVALUATE
    if _STEP.match(name):
        return Role.STEP
    if _OPTIMIZER.match(name):
        return Role.OPTIMIZER
    if _GLUE.match(name):
        return Role.GLUE
    if COMPILED_REGION.match(name):
        return Role.RANGE
    return Role.RUNTIME if _RUNTIME.match(name) else Role.LEFT_OUT


def place(name: str) -> str | None:
    """Where an event belongs by its name alone."""
    return next((where for pattern, where in _PLACES if pattern.match(name)), None)


def guess_categories(
    name: Labels, is_gpu: NDArray[np.bool_], launched_by: Int64, is_range: NDArray[np.bool_] | None = None
) -> Labels:
    """Categories for events that came without, but for ranges where those are known: GPU rows that no
    operation launched are echoes of these."""
    words = (*GPU_CATEGORIES, GPU_RANGES, "cuda_runtime", "overhead", "cpu_op", "user_annotation")
    on_cpu = np.array([words.index(_guess_on_cpu(word)) for word in name.words], np.int32)
    on_gpu = np.array([words.index(_guess_on_gpu(word)) for word in name.words], np.int32)
    ranges = np.int32(words.index(GPU_RANGES))
    of_cpu = np.where(
        False if is_range is None else is_range, words.index("user_annotation"), on_cpu[name.codes]
    )
    codes = np.where(is_gpu, np.where(launched_by == 0, ranges, on_gpu[name.codes]), of_cpu)
    return Labels(codes.astype(np.int32), words)


def _guess_on_cpu(name: str) -> str:
    if name in ("Activity Buffer Request", "Buffer Flush", "Resource"):
        return "overhead"
    if _role_of_name(name) in (Role.STEP, Role.OPTIMIZER):
        return "user_annotation"
    return "cuda_runtime" if _RUNTIME.match(name) else "cpu_op"


def _guess_on_gpu(name: str) -> str:
    return {"Memcp": "gpu_memcpy", "Memse": "gpu_memset"}.get(name[:5], "kernel")


def operation(name: str) -> str:
    """``aten::addmm`` is ``addmm``, ``…evaluate_function: torch::autograd::AccumulateGrad`` its last part."""
    if name.startswith(_EVALUATE):
        name = name.partition(": ")[2] or name
    short = name.rpartition("::")[2] if " " not in name else name
    return (short or name).replace(SEPARATOR, ":")


def foreign(name: str) -> str:
    """``mine::relu`` as it is, since another one may be called ``relu``; nothing for aten's, which needs no
    namespace, and for what is no operation."""
    return name if _NOT_ATEN.match(name) else ""


def kernel(name: str) -> str:
    """A kernel's own name without return type, namespaces, template and call arguments."""
    if name.startswith(("Memcpy", "Memset")):
        return name.partition(" (")[0].replace(SEPARATOR, ":")
    plain = name.replace("(anonymous namespace)", "anonymous").removeprefix("void ")
    plain = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    return (plain.rpartition("::")[2] or name).replace(SEPARATOR, ":")


def leaves(name: Labels, role: NDArray[np.int64]) -> Labels:
    """The last part of every event's qualified name."""
    tables: dict[int, Sequence[str]] = {
        Role.OP: [operation(word) for word in name.words],
        Role.EVALUATE: [operation(word) + AUTOGRAD for word in name.words],
        Role.RUNTIME: name.words,
        Role.OVERHEAD: name.words,
    }
    words = [PYTHON]
    codes = np.zeros(len(name), np.int32)
    for each, table in tables.items():
        rows = np.flatnonzero(role == each)
        codes[rows] = len(words) + name.codes[rows]
        words.extend(table)
    return Labels(codes, tuple(words)).mapped(words)


class Paths:
    """Layer paths by number, made as they are met. ``NOWHERE`` is outside every range, ``ROOT`` the model."""

    NOWHERE, ROOT = 0, 1

    def __init__(self, name: Labels) -> None:
        self._name = name
        self._codes: dict[str, int] = {}
        self._around: dict[int, int] = {}
        """What each compiled region is in."""
        self.words: list[str] = [UNNAMED, MODEL]

    def code(self, path: str) -> int:
        """The number of a path; the empty one is the model itself."""
        if not path:
            return self.ROOT
        known = self._codes.setdefault(path, len(self.words))
        if known == len(self.words):
            self.words.append(path)
        return known

    def absolute(self, rows: Int64) -> Int64:
        """The paths that module ranges (``M:a.b``) and optimizer ranges name in full."""
        used, where = np.unique(self._name.codes[rows], return_inverse=True)
        return np.array([self.code(_full_path(self._name.words[word])) for word in used], np.int64)[where]

    def within(self, above: Int64, rows: Int64) -> Int64:
        """The paths that ranges open inside the paths around them."""
        return self._each(self._opened, above, rows)

    def of_kernels(self, region: Int64, rows: Int64) -> Int64:
        """The paths of compiled kernels' ranges (``C:a.b``): beside their regions, not inside them."""
        return self._each(self._of_kernel, region, rows)

    def _each(self, path_of: Callable[[int, str], int], above: Int64, rows: Int64) -> Int64:
        """``path_of`` what is above a row and the row's name, asked once for every pair."""
        words = len(self._name.words)
        used, where = np.unique(above * words + self._name.codes[rows], return_inverse=True)
        pairs = ((pair // words, self._name.words[pair % words]) for pair in used.tolist())
        return np.array([path_of(path, word) for path, word in pairs], np.int64)[where]

    def _opened(self, above: int, range_name: str) -> int:
        code = self.code(self.joined(above, _part(range_name)))
        if COMPILED_REGION.match(range_name):
            self._around[code] = above
        return code

    def _of_kernel(self, region: int, range_name: str) -> int:
        around = region
        while around in self._around:  # regions are inside each other where a graph is broken
            around = self._around[around]
        first, dot, rest = range_name.removeprefix(KERNEL_PLACE).partition(".")
        # nobody says whether it is a loss of torch's that is called so; that has nothing inside
        own = around in (self.NOWHERE, self.ROOT) and (rest or first != LOSS)
        path = f"{apart(first) if own else first}{dot}{rest}".replace(".", SEPARATOR)
        return self.code(self.joined(around, path)) if path else max(around, self.ROOT)

    def joined(self, path: int, part: str) -> str:
        """A part below a path; directly in the model or outside every range it starts a path of its own."""
        return part if path in (self.NOWHERE, self.ROOT) else f"{self.words[path]}{SEPARATOR}{part}"


def qualified(prefix: Int64, prefixes: Sequence[str], leaf: Labels) -> Labels:
    """``prefixes[prefix[i]]/leaf[i]`` for every row."""
    words = max(len(leaf.words), 1)
    used, where = np.unique(prefix * words + leaf.codes, return_inverse=True)
    pairs = [(prefixes[pair // words], leaf.words[pair % words]) for pair in used.tolist()]
    joined = [SEPARATOR.join(pair) for pair in pairs]
    return Labels(where.astype(np.int32), tuple(joined)).mapped(joined)


def layer(range_name: str) -> str:
    """The layer that a module's range (``M:a.b``) stands for."""
    return _full_path(range_name) or MODEL


def _full_path(range_name: str) -> str:
    match = _OPTIMIZER.match(range_name)
    if match is None:
        return range_name.removeprefix("M:").replace(".", SEPARATOR)
    return f"{OPTIMIZER}{SEPARATOR}{match['optimizer'] if match['what'] == 'step' else ZERO_GRAD}"


def _part(range_name: str) -> str:
    compiled = COMPILED_REGION.match(range_name)
    if compiled is not None:
        return f"compiled region {compiled['frame'] or ''}".strip()
    parts = range_name.removeprefix(MODULE_CLASS).strip(SEPARATOR + " ")
    return parts or UNNAMED
