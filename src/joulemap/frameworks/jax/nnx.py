"""Scopes for modules of flax nnx, which opens none itself: the attributes that lead to a module.

Scopes are opened while a function is traced, and are metadata of the compiled program: its instructions are
the same. Transformations of nnx' own (``nnx.remat``, ``nnx.scan``) call copies of the modules that they are
given, to which nothing leads: these go by what they are copies of.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from joulemap.frameworks.jax.calls import unseen
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.watch import Watch
from joulemap.program import SEPARATOR

_MOST_LOOKED_AT = 10_000
_FLAX, _LAYERS = "flax.", "flax.nnx.nn."
_TAKES_APART = ("to_tree", "to_tree2")
"""What nnx' transformations do first with what they are given, in one mode or the other."""


class _Thread(threading.local):
    """The modules that a thread is in, the outermost first; and what was last handed to a transformation, by
    its class: the module that did so, and how it leads there (not at all, where there are two)."""

    def __init__(self) -> None:
        self.modules: list[Any] = []
        self.handed: dict[type, tuple[Any, str]] = {}

    def hand(self, given: Any) -> None:
        """Modules are about to be copied."""
        around = self.modules[-1]
        self.handed = {}
        for module in _modules(given):
            twice = type(module) in self.handed
            self.handed[type(module)] = around, "" if twice else _path(around, module)

    def scope(self, module: Any) -> str:
        """The attributes that lead to a module from the one that calls it. The outermost has the name of its
        class, as has one that nothing leads to; one that calls a method of its own has none."""
        if not self.modules:
            return type(module).__name__
        around = self.modules[-1]
        if around is module:
            return ""
        by, path = self.handed.get(type(module), (None, ""))
        return _path(around, module) or (path if by is around else "") or type(module).__name__


class ModuleScopes:
    """Opens a scope around every call of a module's methods that is traced."""

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
        self._hook_transformations()

    def _hook_class(self, cls: Any) -> None:
        for name, method in list(vars(cls).items()):
            if _computes(cls, name, method):
                self._patches.put(cls, name, self._around(method))

    def _hook_transformations(self) -> None:
        from flax.nnx import extract

        for name in _TAKES_APART:
            if name in vars(extract):
                self._patches.put(extract, name, self._told_before(vars(extract)[name]))

    def _told_before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        watch, thread = self._watch, self._thread

        @functools.wraps(original)
        def taken_apart(given: Any, /, *args: Any, **kwargs: Any) -> Any:
            if thread.modules:
                watch.attempt(thread.hand, given)
            try:
                return original(given, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise

        return taken_apart

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import jax
        from flax import nnx
        from jax._src import core

        watch, thread = self._watch, self._thread

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not watch.on or core.trace_state_clean() or not args or not isinstance(args[0], nnx.Module):
                return original(*args, **kwargs)
            scope = watch.attempt(thread.scope, args[0])
            if not scope:
                return original(*args, **kwargs)
            thread.modules.append(args[0])
            try:
                with jax.named_scope(scope):
                    return original(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            finally:
                thread.modules.pop()

        return called


def _computes(cls: Any, name: str, method: Any) -> bool:
    """Whether calls of a method are to be named: of the program's own classes, and of flax' layers."""
    if name == "__call__":
        return callable(method)
    is_layer = not cls.__module__.startswith(_FLAX) or cls.__module__.startswith(_LAYERS)
    return is_layer and isinstance(method, FunctionType) and not name.startswith("_")


def _modules(given: Any) -> list[Any]:
    """The modules among arguments."""
    import jax
    from flax import nnx

    def is_module(value: Any) -> bool:
        return isinstance(value, nnx.Module)

    return [leaf for leaf in jax.tree.leaves(given, is_leaf=is_module) if is_module(leaf)]


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
