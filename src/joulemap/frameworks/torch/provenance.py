"""What ``torch.compile`` knows of the kernels that it makes, written down as it makes them.

Inductor tells itself, call by call, which nodes of its graph a kernel was made from, in the order in which
the generated code calls them. We listen there: its configuration, what it generates and the keys of its
caches are what they were. A graph that comes out of a cache is not made again. So what is known of one is
kept beside its generated code, in inductor's own folder; of one that was made without us, comments tell some.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.aside import aside, unseen
from joulemap.frameworks.torch.generated import calls_in, is_backward
from joulemap.frameworks.torch.origins import (
    MadeCall,
    Origin,
    is_update,
    origin_of,
    origin_of_stack,
    stack_of,
)
from joulemap.frameworks.watch import Watch

FILE = "compiled.json"
FORMAT = 1
_BESIDE = "joulemap.json"
_TELLS = "set_kernel_post_grad_provenance_tracing"


@dataclass(frozen=True)
class _Function:
    """A function that was compiled: the origins of its nodes by name, whether a module called it, and whether
    it is an optimizer's step."""

    origins: Mapping[str, Origin]
    in_module: bool
    is_update: bool

    def knows(self, calls: Sequence[MadeCall]) -> bool:
        """Whether these modules are this function's: equal code may have been made for others."""
        parts = {one.parts[:size] for one in self.origins.values() for size in range(len(one.parts) + 1)}
        return all(call.origin is None or call.origin.parts in parts for call in calls)


class Provenance:
    """Listens to inductor; ``write`` leaves the file that the reading of raw traces wants."""

    def __init__(self, watch: Watch, folder: Path, in_module: Callable[[], bool]) -> None:
        self._watch, self._folder, self._in_module = watch, folder, in_module
        self._functions: dict[str, _Function] = {}
        self._being_made: weakref.WeakKeyDictionary[Any, list[MadeCall]] = weakref.WeakKeyDictionary()
        self._branching: weakref.WeakSet[Any] = weakref.WeakSet()
        self._made: dict[str, list[MadeCall]] = {}
        self._graphs: dict[str, None] = {}
        self._written = 0

    def hook(self, patches: Patches) -> None:
        """Listen. An older torch, which does not tell itself, leaves compiled regions as they are."""
        from torch._inductor import compile_fx

        if not tells():
            compiles = self._told(compile_fx.compile_fx, self._nothing_is_told)
            patches.put(compile_fx, "compile_fx", compiles)
            return
        from torch._inductor import debug, output_code
        from torch._inductor.codegen import cpp, triton

        told = self._told(getattr(debug, _TELLS), self._kernel_is_made)
        for module in (debug, cpp, triton):
            patches.put(module, _TELLS, told)
        compiles = self._told(compile_fx.compile_fx, self._function_is_compiled)
        patches.put(compile_fx, "compile_fx", compiles)
        graph = output_code.CompiledFxGraph
        patches.put(graph, "__init__", self._told(graph.__init__, self._graph_is_made))
        patches.put(graph, "post_compile", self._told(graph.post_compile, self._graph_is_ready))

    def write(self) -> None:
        """Write down what is known of all graphs, if that is more than the last time."""
        if len(self._graphs) == self._written:
            return
        graphs = ", ".join(self._graphs)
        _write_whole(self._folder / FILE, f'{{"format": {FORMAT}, "graphs": [{graphs}]}}')
        self._written = len(self._graphs)

    def _told(self, original: Callable[..., Any], hear: Callable[..., None]) -> Callable[..., Any]:
        attempt = aside(self._watch)

        @functools.wraps(original)
        def told(*args: Any, **kwargs: Any) -> Any:
            attempt(hear, *args, **kwargs)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise

        return unseen(told)

    def _nothing_is_told(self, *_: Any, **__: Any) -> None:
        from torch import __version__

        self._watch.note(
            f"The compiler of PyTorch {__version__} does not tell what its kernels are made from: what "
            "torch.compile has made is in compiled regions, and in no layer. A newer PyTorch tells."
        )

    def _function_is_compiled(self, model: Any, *_: Any, **__: Any) -> None:
        """What the compiler has seen in the program, before anything is made of it."""
        origins = {node.name: origin_of_stack(stack_of(node)) for node in model.graph.nodes}
        self._functions[_compile_id()] = _Function(origins, self._in_module(), is_update(model.graph.nodes))

    def _kernel_is_made(self, nodes: Any, kernel: str, is_extern: bool = False) -> None:
        """A call of a kernel comes next in the generated code; ``nodes`` is what it does. What code with
        branches will run is not known: nothing is told of it."""
        from torch._inductor.graph import SubgraphLowering
        from torch._inductor.virtualized import V

        graph = V.graph
        while isinstance(graph, SubgraphLowering):
            graph = graph.parent
            self._branching.add(graph)
        call = _extern_call(nodes, kernel) if is_extern else _fused_call(nodes, kernel)
        self._being_made.setdefault(graph, []).append(call)

    def _graph_is_made(self, _: Any, __: Any, graph: Any, *___: Any, **____: Any) -> None:
        """All code of a graph is generated."""
        calls = self._being_made.pop(graph, [])
        self._made[graph.cache_key] = [] if graph in self._branching else calls

    def _graph_is_ready(self, compiled: Any, *_: Any, **__: Any) -> None:
        """A graph was made, or found in a cache."""
        from torch._inductor.codecache import get_path

        function = self._functions.get(_compile_id())
        if function is None:
            return
        beside = Path(get_path(compiled.cache_key, _BESIDE)[2])
        calls = self._made.pop(compiled.cache_key, None)
        if calls:
            _keep(beside, calls)
        else:
            calls = _kept(beside)
        if calls is None or not function.knows(calls):
            calls = calls_in(compiled.source_code, function.origins)
        said = [_said(call, function.in_module) for call in calls]
        code = {"path": get_path(compiled.cache_key, "py")[2], "backward": is_backward(compiled.source_code)}
        key, optimizer = str(compiled._fx_graph_cache_key), function.is_update
        graph = json.dumps({"key": key, "calls": said, "code": code, "optimizer": optimizer})
        self._graphs.setdefault(graph)


def tells() -> bool:
    """Whether inductor tells what kernels are made from. Older ones do not, or where they are set to."""
    from torch._inductor.codegen import triton

    return hasattr(triton, _TELLS)


def _compile_id() -> str:
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id())


def _extern_call(kernel: Any, name: str) -> MadeCall:
    """A library's operation: the node that it is, where there is one, and not what it takes in."""
    nodes = [kernel.origin_node] if kernel.origin_node is not None else kernel.origins
    event = _event(kernel.op_overload, name)
    return MadeCall(event.rpartition(":")[2], event, origin_of(nodes))


def _event(overload: Any, name: str) -> str:
    from torch._ops import OpOverload

    if isinstance(overload, OpOverload):
        return str(overload._schema.name)
    return f"aten::{name.rpartition('.')[2]}" if "." in name else name


def _fused_call(scheduled: Any, name: str) -> MadeCall:
    """A kernel of inductor's own, from all nodes that are fused in it."""
    from torch._inductor.scheduler import BaseSchedulerNode

    buffers = [one.node for one in scheduled if isinstance(one, BaseSchedulerNode) and one.node is not None]
    return MadeCall(name, name, origin_of({node: None for one in buffers for node in one.origins}))


def _said(call: MadeCall, in_module: bool) -> dict[str, Any]:
    """As the reading wants it: the path below the module around or, where there is none, below the outermost
    module that is called, which must then be told from others."""
    origin, said = call.origin, {"kernel": call.kernel, "event": call.event}
    if origin is None:
        return {**said, "path": None}
    if in_module:
        return {**said, "path": origin.below_module()}
    return {**said, "path": origin.below_outermost(), "outermost": [origin.kind, ".".join(origin.outermost)]}


def _keep(path: Path, calls: Sequence[MadeCall]) -> None:
    said = [[call.kernel, call.event, call.origin and vars(call.origin)] for call in calls]
    try:
        _write_whole(path, json.dumps({"format": FORMAT, "calls": said}))
    except OSError:
        return  # a folder that is not ours to write to


def _kept(path: Path) -> list[MadeCall] | None:
    try:
        said = json.loads(path.read_text())
        if said["format"] != FORMAT:
            return None
        return [MadeCall(kernel, event, _origin(where)) for kernel, event, where in said["calls"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _origin(said: Mapping[str, Any] | None) -> Origin | None:
    return None if said is None else Origin(tuple(said["parts"]), tuple(said["outermost"]), said["kind"])


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)
