"""Hooks into optimizers, backward passes, data loaders and the compiler."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from types import FrameType
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.aside import aside, instead, unseen
from joulemap.frameworks.torch.calls import Calls
from joulemap.frameworks.torch.steps import StepFinder
from joulemap.frameworks.watch import Watch


class Removals:
    """What to call so that hooks are out again."""

    def __init__(self) -> None:
        self._remove: list[Any] = []

    def add(self, remove: Any) -> None:
        self._remove.append(remove)

    def all(self) -> None:
        while self._remove:
            self._remove.pop()()


_CREATES = 2
"""Where torch says whether a graph of a backward pass is made, after what it begins with."""
_AS_NOTED = object()
"""In the place of the range of an optimizer's step of which nothing was said."""


class _Thread(threading.local):
    """The optimizer steps that this thread is in, with their ranges, and how many it has begun."""

    def __init__(self) -> None:
        self.open: list[tuple[int, Any]] = []
        self.begun = 0


class OptimizerSteps:
    """Every optimizer's step. torch has a range of its own around it, which is still open when a session
    ends with the step; so there is one of ours inside."""

    def __init__(self, calls: Calls, finder: StepFinder) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self._calls, self._finder = calls, finder
        self._range = _RecordFunctionFast
        self._thread = _Thread()

    def hook(self, watch: Watch, removals: Removals) -> None:
        """Listen."""
        from torch.optim import optimizer as optimizers

        attempt, quick = aside(watch), self._finder.quick

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            begun = quick.open
            if (
                begun is not None
                and quick.pending is None
                and quick.optimizer() is optimizer
                and quick.module
                and begun[1] == get_ident()
                and (len(args) == 1 or (len(args) == 2 and args[1] is None))  # None is Accelerate's closure
                and not kwargs
            ):
                quick.stepping = begun, id(optimizer)
            else:
                attempt(self._begins, optimizer, args[1:], kwargs)

        def after(optimizer: Any, *_: Any) -> None:
            begun, stepping = quick.open, quick.stepping
            if (
                stepping is None
                or stepping[0] is not begun
                or stepping[1] != id(optimizer)
                or begun[1] != get_ident()
            ):
                attempt(self._ends, optimizer)
                return
            quick.open = quick.stepping = None
            if quick.taken is begun:
                quick.ends_in_full(begun, False)
            else:
                quick.times.append((begun[0], quick.now_ns(), begun[2]))

        for function in (before, after):
            unseen(function)
            instead(function, _nothing)
        removals.add(optimizers.register_optimizer_step_pre_hook(before).remove)
        removals.add(optimizers.register_optimizer_step_post_hook(after).remove)

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._catch_up()
        plain = not kwargs and (not args or (len(args) == 1 and args[0] is None))
        usual = plain and not (self._thread.open or self._calls.tracing)
        if usual and self._finder.is_as_noted(optimizer):
            self._thread.begun += 1
            self._thread.open.append((id(optimizer), _AS_NOTED))
            return
        if self._thread.open:
            stepping = set(_stepping()) - {id(optimizer)}
            self._thread.open = [one for one in self._thread.open if one[0] in stepping]  # others have failed
        has_closure = bool(args and args[0] is not None) or kwargs.get("closure") is not None
        self._thread.begun += 1
        self._finder.optimizer_begins(optimizer, has_closure)
        opened = None
        if self._calls.tracing:
            opened = self._range(f"Optimizer.step#{type(optimizer).__name__}.step")
            opened.__enter__()
        self._thread.open.append((id(optimizer), opened))

    def _catch_up(self) -> None:
        """A step that was only noted has begun in this thread, and another one does in it, or it failed."""
        stepping = self._finder.quick.stepping
        if stepping is not None and stepping[0][1] == get_ident():
            self._finder.quick.stepping = None
            self._thread.open.append((stepping[1], _AS_NOTED))

    def _ends(self, optimizer: Any) -> None:
        inner = None
        while self._thread.open and inner != id(optimizer):
            inner, opened = self._thread.open.pop()
            if opened is _AS_NOTED:
                self._finder.noted_training_ends()
                return
            if opened is not None:
                opened.__exit__(None, None, None)
        if not self._thread.open:
            self._finder.optimizer_ends(optimizer)

    def hook_scalers(self, watch: Watch, patches: Patches) -> None:
        """A ``GradScaler`` that finds no finite gradients does without the optimizer: the step has ended."""
        from torch.amp.grad_scaler import GradScaler

        original, attempt, quick, thread = GradScaler.step, aside(watch), self._finder.quick, self._thread

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            begun = thread.begun, quick.here()
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            if (thread.begun, quick.here()) == begun:
                attempt(self._skipped, optimizer)
            return result

        unseen(step)
        instead(step, original)
        patches.put(GradScaler, "step", step)

    def _skipped(self, optimizer: Any) -> None:
        self._finder.optimizer_begins(optimizer, has_closure=False)
        self._finder.optimizer_ends(optimizer)


def hook_backward(watch: Watch, calls: Calls, finder: StepFinder, patches: Patches) -> None:
    """Every backward pass: what is evaluated after it may be no part of a step, and what follows it with no
    step of an optimizer is a part of one. In a session its graph is looked at before it runs."""
    from torch import autograd

    engine: Any = autograd
    original, attempt = engine._engine_run_backward, aside(watch)

    @functools.wraps(original)
    def differentiates(roots: Any, *args: Any, **kwargs: Any) -> Any:
        attempt(finder.differentiates, len(args) > _CREATES and bool(args[_CREATES]))
        if calls.flow is not None:
            attempt(calls.flow.graph.see, roots)
        try:
            return original(roots, *args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise

    unseen(differentiates)
    instead(differentiates, original)
    patches.put(engine, "_engine_run_backward", differentiates)


def hook_loaders(watch: Watch, finder: StepFinder, patches: Patches) -> None:
    """Every batch that a data loader gives."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original, attempt, quick = _BaseDataLoaderIter.__next__, aside(watch), finder.quick

    @functools.wraps(original)
    def following(self_: Any) -> Any:
        if quick.fed[0]() is self_ and quick.open is None and quick.module and quick.learns:
            now_ns, me = quick.now_ns(), get_ident()
            noted = now_ns < quick.until_ns and me == quick.thread
        else:
            noted = False
        if noted:
            quick.pending, quick.open = quick.fed, (now_ns, me, quick.label)
        else:
            attempt(finder.loading_begins, self_, self_._dataset)
        try:
            return original(self_)
        except BaseException as error:
            attempt(finder.loading_ends, isinstance(error, StopIteration))
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise

    unseen(following)
    instead(following, original)
    patches.put(_BaseDataLoaderIter, "__next__", following)


def hook_compiler(
    watch: Watch, patches: Patches, begins: Callable[[], None], ends: Callable[[], None]
) -> None:
    """Every compilation: a step with one in it is no example of others. Not by callbacks of the compiler,
    since its reset throws these away."""
    from torch._dynamo.callback import callback_handler

    attempt = aside(watch)

    def telling(original: Callable[..., Any], what: Callable[[], None]) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            attempt(what)
            return original(*args, **kwargs)

        return unseen(told)

    for name, what in (("run_start_callbacks", begins), ("run_end_callbacks", ends)):
        patches.put(callback_handler, name, telling(getattr(callback_handler, name), what))


def _stepping() -> Iterator[int]:
    """The ``id`` of every optimizer whose step this thread is in."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == "torch.optim.optimizer":
            yield id(frame.f_locals.get("self"))
        frame = frame.f_back


def _nothing(*_: Any) -> None:
    """What a compiled optimizer step does in the place of our hooks."""
