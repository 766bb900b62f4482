"""Whether what is called belongs to a library: asked at every site, so known things are answered at once.

What is learned is kept by the identity of the thing, and forgotten when the thing is: nothing is kept alive,
and nothing of the program's own is run to find out (no ``__getattr__``, no ``__eq__``, no ``__hash__``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from joulemap.calls.remembered import ById

_MRO = type.__dict__["__mro__"].__get__
_DICT = type.__dict__["__dict__"].__get__
_FUNCTION_LIKE = frozenset(
    ("cython_function_or_method", "fused_cython_function", "_lru_cache_wrapper", "nb_func", "nb_method")
)
_DESCRIPTORS = frozenset(map(id, (MethodDescriptorType, WrapperDescriptorType)))


class _Modules(dict[object, bool]):
    """Whether a module of some name is in one of the packages."""

    def __init__(self, packages: Iterable[str]) -> None:
        super().__init__()
        self._packages = tuple(packages)

    def __missing__(self, name: object) -> bool:
        inside = isinstance(name, str) and name.split(".")[0] in self._packages
        self[name] = inside
        return inside


class Owner:
    """Knows what belongs to some packages.

    ``known`` is the answer for a function, and for a class whether it or a class that it is made from is the
    library's, by ``id``. No answer is a question for ``owns``.
    """

    def __init__(self, packages: Iterable[str]) -> None:
        self.known = ById()
        self._modules = _Modules(packages)

    def owns(self, callee: Any) -> bool:
        """Whether calling this calls the library."""
        kind = type(callee)
        if kind is MethodType:
            return self.owns(callee.__func__)
        if kind is FunctionType:
            return self._remembered(callee, self._function)
        if kind is BuiltinFunctionType or kind is MethodWrapperType:
            return self._builtin(callee)
        if issubclass(kind, type):
            # What is remembered of these would be taken for an answer about all that is made from them.
            makes_callables = issubclass(callee, (type, partial))
            return self._class(callee) if makes_callables else self._remembered(callee, self._class)
        if issubclass(kind, partial):
            return self.owns(partial.func.__get__(callee))
        if id(kind) in _DESCRIPTORS:
            return self._is_inside(_module_of(callee.__objclass__))
        if is_bound_by_nanobind(kind):
            return self._remembered(type(callee.__self__), self._class)
        if kind.__name__ in _FUNCTION_LIKE:
            return self._remembered(callee, lambda one: self._is_inside(one.__module__))
        return self._remembered(kind, self._class) and self._defines(kind, "__call__")

    def _is_inside(self, module: object) -> bool:
        """A program may have given a function anything for its module."""
        return isinstance(module, str) and self._modules[module]

    def _function(self, function: FunctionType) -> bool:
        """By where it was written: a decorator may have given it another's module. Where joulemap itself
        listens to the library, what it listens to is still the library's."""
        written = function.__globals__.get("__name__", function.__module__)
        ours = isinstance(written, str) and written.startswith("joulemap.")
        return self._is_inside(function.__module__ if ours else written)

    def _class(self, cls: type) -> bool:
        return any(self._is_inside(_module_of(one)) for one in bases(cls))

    def _builtin(self, callee: Any) -> bool:
        """A function of a C module, or a method of a C class."""
        module, owner = getattr(callee, "__module__", None), callee.__self__
        if module is not None:
            return self._remembered(callee, lambda _: self._is_inside(module))
        if isinstance(owner, type):
            return self._defines(owner, callee.__name__)
        kind = type(owner)
        return self._remembered(kind, self._class) and self._defines(kind, callee.__name__)

    def _defines(self, cls: type, name: str) -> bool:
        """Whether a class has this from the library, not from the program's own class on top of it; what the
        library has wrapped in that class is the library's again, as ``__call__`` of a module of flax."""
        for one in bases(cls):
            if name in _DICT(one):
                found = _DICT(one)[name]
                wrapped = type(found) is FunctionType and self._function(found)
                return wrapped or self._is_inside(_module_of(one))
        return False

    def _remembered(self, thing: Any, ask: Any) -> bool:
        answer = self.known.get(id(thing))
        if answer is None:
            answer = bool(ask(thing))
            self.known.keep(thing, answer)
        return answer


def is_bound_by_nanobind(kind: type) -> bool:
    """A method of a class that nanobind made, as JAX's arrays are, bound to an object: made anew each time,
    without a name or a module."""
    return kind.__name__ == "nb_bound_method"


def is_known_by_class(kind: type) -> bool:
    """Whether all objects of a class are the library's or none, when they are called: not so where the
    class is only one of functions."""
    functions = id(kind) in _DESCRIPTORS or kind is MethodWrapperType
    return not functions and kind.__name__ not in _FUNCTION_LIKE


def bases(cls: type) -> tuple[type, ...]:
    """A class and all that it is made from, without asking its metaclass; none while it is being made."""
    return _MRO(cls) or ()


def _module_of(cls: type) -> object:
    """The module of a class, without asking its metaclass."""
    return type.__dict__["__module__"].__get__(cls)


def is_module(thing: object) -> bool:
    """Whether it is a module, be it a lazy one."""
    return issubclass(type(thing), ModuleType)
