"""Scopes for modules of flax nnx, which opens none itself: the attributes that lead to a module.

Scopes are opened while a function is traced, and are metadata of the compiled program: its instructions are
the same.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from joulemap.frameworks.jax.calls import unseen
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.watch import Watch
from joulemap.program import SEPARATOR

_MOST_LOOKED_AT = 10_000


class _Thread(threading.local):
    """The modules that a thread is in, the outermost first."""

    def __init__(self) -> None:
        self.modules: list[Any] = []


class ModuleScopes:
    """Opens a scope around every call of a module that is traced."""

    def __init__(self, watch: Watch, patches: Patches) -> None:
        self._watch, self._patches = watch, patches
        self._thread = _Thread()

    def hook(self) -> None:
        """For the classes that there are, and those to come."""
        from flax import nnx

        unseen(__file__)
        original = nnx.Module.__init_subclass__.__func__

        def subclassed(cls: Any, *args: Any, **kwargs: Any) -> None:
            original(cls, *args, **kwargs)
            self._watch.attempt(self._hook_class, cls)

        self._patches.put(nnx.Module, "__init_subclass__", classmethod(subclassed))
        for cls in _below(nnx.Module):
            self._hook_class(cls)

    def _hook_class(self, cls: Any) -> None:
        original = vars(cls).get("__call__")
        if callable(original):
            self._patches.put(cls, "__call__", self._around(original))

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import jax
        from jax._src import core

        watch, thread = self._watch, self._thread

        @functools.wraps(original)
        def called(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not watch.on or core.trace_state_clean():
                return original(module, *args, **kwargs)
            scope = watch.attempt(_scope, thread.modules, module)
            if not scope:
                return original(module, *args, **kwargs)
            thread.modules.append(module)
            try:
                with jax.named_scope(scope):
                    return original(module, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                thread.modules.pop()

        return called


def _scope(around: Sequence[Any], module: Any) -> str:
    """The attributes that lead to a module from the one that calls it. The outermost has the name of its
    class, as has one that nothing leads to; one that calls its parent class's ``__call__`` has none."""
    if around and around[-1] is module:
        return ""
    path = _path(around[-1], module) if around else ""
    return path or type(module).__name__


def _path(outer: Any, module: Any) -> str:
    """The shortest way, through lists and other modules."""
    waiting: deque[tuple[Any, str]] = deque([(outer, "")])
    seen = {id(outer)}
    while waiting and len(seen) < _MOST_LOOKED_AT:
        holder, path = waiting.popleft()
        for name, child in _children(holder):
            if child is module:
                return path + name
            if id(child) not in seen and _holds(child):
                seen.add(id(child))
                waiting.append((child, path + name + SEPARATOR))
    return ""


def _holds(value: Any) -> bool:
    from flax import nnx

    return isinstance(value, nnx.Module | list | tuple | dict) or (
        isinstance(value, Sequence | Mapping) and not isinstance(value, str | bytes)
    )


def _children(holder: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, Mapping):
        yield from ((str(key), child) for key, child in holder.items())
    elif isinstance(holder, Sequence):
        yield from ((str(number), child) for number, child in enumerate(holder))
    else:
        yield from ((name, child) for name, child in vars(holder).items() if not name.startswith("_"))


def _below(cls: Any) -> Iterator[Any]:
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)
