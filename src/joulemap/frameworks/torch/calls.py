"""Calls of modules: the outermost ones are where steps lie, and all of them are ranges in a trace.

``Module.__call__`` is the one place that every call passes, of modules that exist and of those to come. Hooks
on modules would be seen by the compiler, which breaks its graphs at them, and by whoever copies or
pickles a module. Outside of sessions a call inside a call costs nothing: the function has torch's own code
until the outermost call ends. (A look at a flag took 13 to 29 µs of a step of 5 ms with 200 modules, and one
at the thread's number 54 to 77: such a program leaves little of ours in the processor's caches.) So one
thread's call hides those that other threads begin meanwhile, and what comes after it may be inside of one
that was hidden: the stack says.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from joulemap.frameworks.adapter import Begun, LaneKeeper
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.aside import aside, inlined, instead, unseen
from joulemap.frameworks.torch.dataflow import Dataflow
from joulemap.frameworks.torch.given import counting, given
from joulemap.frameworks.torch.graft import Begins, Ends, grafted
from joulemap.frameworks.torch.graphs import Graphs, is_compiled
from joulemap.frameworks.torch.names import ModuleNames, computes_weight
from joulemap.frameworks.torch.quick import Quick
from joulemap.frameworks.torch.steps import StepFinder
from joulemap.frameworks.watch import Watch


class _Call(NamedTuple):
    """What is to be undone when a call ends."""

    outermost: bool
    range: Any
    above: str
    flow: Dataflow | None


_NOTHING_ELSE = _Call(outermost=True, range=None, above="", flow=None)
"""Of an outermost call outside of sessions."""
_NOTED = _Call(outermost=True, range=None, above="", flow=None)
"""Of one that was only noted: a step of inference like the one before it."""
_NOTED_IN_TRAINING = _Call(outermost=True, range=None, above="", flow=None)
"""The same of training, which goes on after it."""


class Calls:
    """Listens to every module; ``tracing`` while a session is open, with ``flow`` where it is to know what
    feeds what. There is nothing to listen to inside of a call. ``graphs`` knows what was compiled before."""

    def __init__(self, watch: Watch, finder: StepFinder) -> None:
        self._tracing = False
        self._listens = True
        self.graphs = Graphs()
        self.flow: Dataflow | None = None
        self.names = ModuleNames()
        self._watch, self._finder = watch, finder
        self._learns = False
        self._thread = finder.quick.threads
        self._last_thread = 0  # which was the last one to ``_hush``
        self._hear: Callable[[], object] = partial(setattr, self, "_listens", True)
        self._hush: Callable[[], object] = partial(setattr, self, "_listens", False)
        self._captures = gpus.captures
        self._codes: tuple[CodeType, ...] = ()
        self._original: Any = None

    @property
    def tracing(self) -> bool:
        return self._tracing

    @tracing.setter
    def tracing(self, traces: bool) -> None:
        self._tracing = traces
        self._finder.expect_nothing()
        self._hear()

    def hook(self, patches: Patches) -> None:
        """Listen."""
        from torch.nn import Module

        patches.put(Module, "__call__", self._listening(Module.__call__))

    def let_go(self) -> None:
        """Listen no more: whoever holds the function that was hooked has torch's own. Graphs that were made
        meanwhile find what they were made from there, too, or they would be made again."""
        if self.graphs.made and self._original is not None:
            instead(self._original, inlined(self._original))
        self._hush()
        self._hear = self._hush = bool
        self._finder.quick.let_go()

    def is_open(self) -> bool:
        """Whether this thread is inside a module's call."""
        return self._thread.inside or self._finder.quick.inside == get_ident()

    def _listening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The function that torch calls for every module, and ours with it."""
        begins, ends = self._beginning(), self._ending()
        made = None
        if isinstance(original, FunctionType):
            made = grafted(original, begins, ends, self._finder.quick, self._noting())
        called = functools.wraps(original)(made) if made else self._around(original, begins, ends)
        self._codes = (called.__code__,)
        instead(called, inlined(original))
        unseen(called)
        self._original = original
        if made:
            self._codes += (original.__code__,)
            self._hear = partial(setattr, made, "__code__", made.__code__)
            self._hush = partial(setattr, made, "__code__", original.__code__)
            self._finder.quick.replaces(made, original.__code__)
        return called

    def _around(self, original: Callable[..., Any], begins: Begins, ends: Ends) -> Callable[..., Any]:
        """The same where somebody has replaced that function before us, or its source is not there."""

        @functools.wraps(original)
        def called(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            call = begins(module, args, kwargs) if self._listens else None
            output = None
            try:
                output = original(module, *args, **kwargs)
                return output
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                if call is not None:
                    if call.outermost:
                        self._thread.inside = False
                    ends(call, output)

        return called

    def _noting(self) -> dict[str, Any]:
        """What the function needs to note steps itself; nothing where nobody reads that."""
        from torch import is_grad_enabled
        from torch._C import _current_graph_task_id as differentiates
        from torch._C._autograd import _profiler_enabled as profiled

        keeper, quick, attempt = self._watch.steps, self._finder.quick, aside(self._watch)
        if not isinstance(keeper, LaneKeeper):
            return {}
        keeper.take_lane(quick)

        def ends_in_full(begun: Begun, failed: bool) -> None:
            attempt(keeper.lane_ends, begun, failed)

        quick.ends_in_full = unseen(ends_in_full)

        return {
            "now": quick.now_ns,
            "note": quick.times.append,
            **counting(),
            "identity": id,
            "thread": get_ident,
            "grad": is_grad_enabled,
            "profiled": profiled,
            "differentiates": differentiates,
            "ends_in_full": quick.ends_in_full,
        }

    def _beginning(self) -> Begins:
        """What happens when a call begins."""
        from torch import is_grad_enabled
        from torch._C._autograd import _profiler_enabled as profiled

        watch, thread, attempt = self._watch, self._thread, aside(self._watch)
        finder, quick, in_session = self._finder, self._finder.quick, self._beginning_in_session()
        unseen(Quick.fits)
        unseen(given)

        def begins(module: Any, args: Any, kwargs: Any) -> _Call | None:
            if not watch.on:
                return None
            learns, inside = finder.learns, thread.inside or quick.inside == get_ident()
            try:
                alike = id(module) == finder.alike and get_ident() == self._last_thread
                alike = alike and is_grad_enabled() == learns and not profiled()
                alike = alike and (learns or quick.fits(args, kwargs))
                if alike and not self._captures() and attempt(finder.notes):
                    thread.inside = True
                    self._hush()
                    return _NOTED_IN_TRAINING if learns else _NOTED
                outermost = not (inside or attempt(self._is_hidden))
                if outermost:
                    attempt(self._outermost_begins, module, args, kwargs)
                    thread.inside = True
                if not self._tracing:
                    if thread.inside and not profiled():  # torch knows modules by the code that calls them
                        self._last_thread = get_ident()
                        self._hush()
                    return _NOTHING_ELSE if outermost else None
                return in_session(outermost, module, (args, kwargs))
            except BaseException:
                if not inside:
                    self._never_began()
                raise

        return unseen(begins)

    def _beginning_in_session(self) -> Callable[[bool, Any, Any], _Call]:
        """The same while a session is open: every call is a range."""
        from torch._C._profiler import _RecordFunctionFast

        thread, attempt = self._thread, aside(self._watch)
        unseen(_Call.__new__)  # which is Python, too
        unseen(is_compiled)

        def in_session(outermost: bool, module: Any, given: Any) -> _Call:
            above, opened, flow = thread.label, None, None
            label = self.names.labels.get(id(module)) or attempt(self.names.name, module, above)
            if label:
                thread.label, flow = label, self.flow
                if flow is not None:
                    attempt(flow.call_begins, label, given)
                opened = _RecordFunctionFast(label)
                opened.__enter__()
            if len(self._codes) > 1 and is_compiled(module) and attempt(self.graphs.from_before, module):
                self._hush()
            return _Call(outermost, opened, above, flow)

        return unseen(in_session)

    def _never_began(self) -> None:
        """A signal's handler has raised before an outermost call has begun."""
        self._thread.inside, self._thread.label = False, ""
        self._hear()
        self._watch.attempt(self._finder.call_ends)

    def _ending(self) -> Ends:
        """What happens when it ends, after the thread is known to be outside of it."""
        thread, attempt = self._thread, aside(self._watch)
        call_ends, noted_ends = self._finder.call_ends, self._finder.noted_inference_ends

        def ends(call: _Call, output: Any) -> None:
            if call is _NOTED:
                self._hear()
                attempt(noted_ends)
                return
            if call is _NOTED_IN_TRAINING:
                self._hear()
                return
            if call is not _NOTHING_ELSE:
                _, opened, thread.label, flow = call
                if opened is not None:
                    opened.__exit__(None, None, None)
                if flow is not None:
                    attempt(flow.call_ends, output)
            if call.outermost:
                self._hear()
                attempt(self.graphs.ends)
                attempt(call_ends)

        return unseen(ends)

    def _outermost_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        """A module is called by no module. While gradients are computed, it runs a second time for them;
        while a CUDA graph is captured, nothing runs; and a weight that is read is no step."""
        torch = sys.modules["torch"]
        self._finder.expect_nothing()
        self.graphs.begins(module)
        if torch._C._current_graph_task_id() != -1 or gpus.captures() or computes_weight(module):
            return
        self.names.see(module)
        gradients = torch.is_grad_enabled()
        may_learn = gradients and bool(module.training)
        self._learns = self._learns or (may_learn and any_optimizer())
        evaluates = not gradients and getattr(module, "training", True) is False
        numbers = given(args, kwargs)
        self._finder.call_begins(may_learn and self._learns, module, evaluates, numbers)
        if not self._tracing:
            self._captures = self._finder.quick.captures = gpus.quick_captures()
            if not gradients:
                self._finder.expect_inference(module, numbers)

    def _is_hidden(self) -> bool:
        """Whether a call that seems to be outermost is inside of one that began while another thread's hid
        it."""
        if get_ident() == self._last_thread:
            return False
        frame: FrameType | None = sys._getframe(3).f_back  # below the call itself
        while frame is not None and frame.f_code not in self._codes:
            frame = frame.f_back
        return frame is not None


def any_optimizer() -> bool:
    """Whether the program has ever made an optimizer: torch marks the classes of those it has made."""
    from torch.optim import Optimizer

    return _is_marked(Optimizer)


def _is_marked(optimizer: Any) -> bool:
    return getattr(optimizer.step, "hooked", False) or any(map(_is_marked, optimizer.__subclasses__()))
