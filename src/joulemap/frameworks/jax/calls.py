"""Calls of compiled functions, heard of where JAX itself has a hook for them.

``jax.jit`` gives an object in C++ that runs a known call without any Python. After each such call it calls a
*post hook*, if one is set (JAX looks for NaNs there). A call that it does not know, or that has effects, goes
through a function of Python. So nothing that the program holds is wrapped or replaced.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from joulemap.frameworks.jax.steps import StepFinder
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.watch import Watch

_COMPILING = "/jax/core/compile/backend_compile"
_LIBRARY, _KERAS = "jax", "keras."
_IN_PYTHON = {"_run_python_pjit": 2, "_python_pjit_helper": 0}
"""Where calls that compile or have effects pass through, in this JAX or an older one, and which of its
arguments is the function."""


class Calls:
    """Listens to every compiled function, and to the compiler."""

    def __init__(self, watch: Watch, finder: StepFinder) -> None:
        self._watch, self._finder = watch, finder
        self._hook_state: _PostHook | None = None
        self._to_compile: set[int] = set()
        self._programs: int | None = None

    def programs(self) -> int | None:
        """A number that has changed where there are new compiled programs; None where that is not known."""
        return self._programs

    @property
    def compiling(self) -> bool:
        """Whether a thread has called a function of the program's that is not compiled yet."""
        return bool(self._to_compile)

    def hook(self, patches: Patches) -> None:
        """Listen."""
        self._watch.attempt(unseen, __file__)
        for hook in (self._known_calls, self._other_calls, self._compiled_ahead, self._annotations):
            self._watch.attempt(hook, patches)
        self._watch.attempt(self._compilations)

    def unhook(self) -> None:
        """Listen no more."""
        from jax import monitoring

        if self._hook_state is not None:
            self._hook_state.leave()
        self._watch.attempt(monitoring.unregister_event_duration_listener, self._compiled)

    def _known_calls(self, patches: Patches) -> None:
        from jax._src import api

        watch, called = self._watch, self._finder.called

        def hook(function: Any, _: Any, __: Any, results: Any) -> None:
            if not watch.on:
                return
            try:
                said = vars(function)
                label = _step(said.get("__name__"), said.get("__module__"))
                if label is not None:
                    called(label, results)
            except Exception as error:  # noqa: BLE001 - as ``attempt`` does, which would take as long again
                watch.failed(hook, error)

        self._hook_state = _PostHook(api._post_hook_state, hook)
        patches.put(api, "_post_hook_state", self._hook_state)

    def _other_calls(self, patches: Patches) -> None:
        from jax._src import core, pjit

        watch, called = self._watch, self._finder.called
        name, place = next(one for one in _IN_PYTHON.items() if hasattr(pjit, one[0]))
        original = getattr(pjit, name)

        def hook(function: Any, results: Any) -> None:
            module = str(function.__module__)
            if core.trace_state_clean() and not _is_library(module):
                called(_label(pjit.fun_name(function), module), results)

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            outermost = watch.attempt(self._begins, args[place])
            try:
                done = original(*args, **kwargs)
            finally:
                if outermost:
                    self._ends()
            watch.attempt(hook, args[place], done[0])
            return done

        patches.put(pjit, name, run)

    def _begins(self, function: Any) -> bool:
        """A function is called that may have to be compiled; whether it is the program's, and in no other."""
        thread = threading.get_ident()
        if thread in self._to_compile or _is_library(str(function.__module__)):
            return False
        self._to_compile.add(thread)
        return True

    def _ends(self) -> None:
        """It is compiled, or was before, or could not be."""
        self._to_compile.discard(threading.get_ident())

    def _compiled_ahead(self, patches: Patches) -> None:
        """Functions that the program compiled itself (``lower(…).compile()``) are called without a name."""
        from jax._src.interpreters import pxla

        original = pxla.MeshExecutable.create_cpp_call

        @functools.wraps(original)
        def create(executable: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(executable, *args, **kwargs)
            self._count()  # it may have been compiled by another process
            self._watch.attempt(_name, made, executable)
            return made

        patches.put(pxla.MeshExecutable, "create_cpp_call", create)

    def _annotations(self, patches: Patches) -> None:
        """Steps that the program marks for the profiler."""
        from jax._src.profiler import StepTraceAnnotation

        make, enter, leave = (
            StepTraceAnnotation.__init__,
            StepTraceAnnotation.__enter__,
            StepTraceAnnotation.__exit__,
        )

        def made(annotation: Any, name: str, **kwargs: Any) -> None:
            make(annotation, name, **kwargs)
            annotation._step = name

        def entered(annotation: Any) -> Any:
            self._watch.attempt(self._finder.mark_begins, vars(annotation).get("_step", "step"))
            return enter(annotation)

        def left(annotation: Any, *error: Any) -> Any:
            result = leave(annotation, *error)
            self._watch.attempt(self._finder.mark_ends)
            return result

        for name, original, ours in (
            ("__init__", make, made),
            ("__enter__", enter, entered),
            ("__exit__", leave, left),
        ):
            patches.put(StepTraceAnnotation, name, functools.wraps(original)(ours))

    def _compilations(self) -> None:
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(self._compiled)
        self._programs = 0

    def _compiled(self, event: str, _: float, **__: Any) -> None:
        if event.startswith(_COMPILING):
            self._count()
            self._watch.attempt(self._ends)
            self._watch.attempt(self._watch.steps.compiled)

    def _count(self) -> None:
        if self._programs is not None:
            self._programs += 1


class _PostHook:
    """JAX's state of the hook, with ours before whichever it sets; ``leave`` is for good."""

    def __init__(self, real: Any, ours: Callable[..., None]) -> None:
        self._real, self._ours = real, ours
        self._theirs: Callable[..., None] | None = real.get_global()
        self.set_global(self._theirs)

    def set_global(self, theirs: Callable[..., None] | None) -> None:
        """The program looks for NaNs from now on, or no more."""
        self._theirs = theirs
        self._real.set_global(self._both(theirs))

    def set_local(self, theirs: Callable[..., None] | None) -> None:
        """It does so on this thread; where it does so nowhere, what holds for all threads holds."""
        from jax._src.config import config_ext

        nowhere = theirs is None and self._theirs is None
        self._real.set_local(config_ext.unset if nowhere else self._both(theirs))

    def leave(self) -> None:
        """As it would be without us; a thread that has its own keeps ours, which does nothing."""
        self._real.set_global(self._theirs)

    def _both(self, theirs: Callable[..., None] | None) -> Callable[..., None]:
        if theirs is None:
            return self._ours
        ours, other = self._ours, theirs

        def hook(*call: Any) -> None:
            ours(*call)
            other(*call)

        return hook


@functools.cache  # JAX keeps a list
def unseen(file: str) -> None:
    """A file's frames are none of the program's: not in tracebacks, nor where its operations are made."""
    from jax._src import source_info_util, traceback_util

    source_info_util.register_exclusion(file)
    traceback_util.register_exclusion(file)


def _is_library(module: str) -> bool:
    """Whether a function is one of JAX's own: every operation outside ``jit`` is a compiled function too."""
    return module.partition(".")[0] == _LIBRARY


@functools.lru_cache(maxsize=1024)  # asked for at every call, operations outside ``jit`` among them
def _step(name: str | None, module: str | None) -> str | None:
    """What a call of a function goes by; None for one without a name, and for the library's own."""
    if name is None or _is_library(str(module)):
        return None
    return _label(name, str(module))


def _label(name: str, module: str) -> str:
    """``train`` for what Keras makes of a ``train_step``; others go by their names."""
    return name.removesuffix("_step") if module.startswith(_KERAS) else name


def _name(compiled: Any, executable: Any) -> None:
    name = executable.unsafe_call.name  # jit(step)
    vars(compiled).setdefault("__name__", name.removeprefix("jit(").removesuffix(")"))
