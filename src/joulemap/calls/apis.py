"""What is known of each thing that is called: whether it is the library's, and its name.

An answer is kept by identity, a bound method's by its function and the class of its object, and forgotten
when one of these is gone.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from joulemap.calls.hidden import HIDES
from joulemap.calls.names import Names, packages_of
from joulemap.calls.owner import Owner, is_bound_by_nanobind, is_known_by_class
from joulemap.calls.store import Store

_FRAMES = frozenset(("_getframe", "currentframe"))
_OF_FRAMES = frozenset(map(id, (sys._getframe, locals, globals, vars, dir, eval, exec)))
"""Functions of C that start at the frame which calls them, be it hidden."""

_Key = int | tuple[int, int | str]


@dataclass(slots=True)
class Api:
    """A name of the library: its number, and what is called instead of what has it, by site."""

    number: int
    places: dict[Hashable, Callable[..., Any]] = field(default_factory=dict)


class Apis:
    """The API of some libraries, as far as it was called."""

    def __init__(self, libraries: tuple[str, ...], store: Store) -> None:
        self.owner = Owner({package for library in libraries for package in packages_of(library)})
        self._names = Names(libraries)
        self._store = store
        self.known: dict[_Key, Api | None] = {}
        self._named: dict[int, Api] = {}
        self._alive: dict[_Key, tuple[weakref.ref[Any], ...]] = {}

    def of(self, callee: Any) -> Api | None:
        """What is known of it; None where it is not the library's, or must be left alone."""
        kind = type(callee)
        key: _Key
        if kind is MethodType or is_bound_by_nanobind(kind):
            key = (id(callee.__func__), id(type(callee.__self__)))
        elif kind is FunctionType:
            key = id(callee)
        elif issubclass(kind, partial):
            return self.of(partial.func.__get__(callee))
        elif kind is BuiltinFunctionType:
            owner = callee.__self__
            plain = owner is None or type(owner) is ModuleType
            key = id(callee) if plain else (id(type(owner)), callee.__name__)
        elif id(callee) in self.known or issubclass(kind, type) or not is_known_by_class(kind):
            key = id(callee)
        else:
            key = (id(kind), "__call__")
        try:
            return self.known[key]
        except KeyError:
            return self._ask(callee, key)

    def _ask(self, callee: Any, key: _Key) -> Api | None:
        api = None
        if self.owner.owns(callee) and not _looks_at_frames(callee):
            number = self._store.word("api", self._names.of(callee))
            api = self._named.setdefault(number, Api(number))
        if self._names.is_public(callee):  # it lives as long as we do
            self.known[id(callee)] = api
        else:
            self._keep(key, api, _lasting(callee))
        return api

    def _keep(self, key: _Key, api: Api | None, things: tuple[Any, ...]) -> None:
        try:
            self._alive[key] = tuple(weakref.ref(one, partial(self._forget, key)) for one in things)
        except TypeError:  # something that cannot be watched is asked about again
            return
        self.known[key] = api

    def _forget(self, key: _Key, gone: weakref.ref[Any]) -> None:
        self.known.pop(key, None)
        self._alive.pop(key, None)


def _looks_at_frames(callee: Any) -> bool:
    """Whether a function looks at its caller's frame, and so perhaps at its variables, as ``numpy.bmat``
    does: then nothing may stand in between that is seen."""
    if HIDES:
        return id(callee) in _OF_FRAMES
    function = callee.__func__ if type(callee) is MethodType else callee
    while type(function) is FunctionType:
        if _FRAMES.intersection(function.__code__.co_names):
            return True
        function = function.__dict__.get("__wrapped__")
    return False


def _lasting(callee: Any) -> tuple[Any, ...]:
    """What must be there for an answer to hold: a bound method is made anew each time, its parts are not."""
    kind = type(callee)
    if kind is MethodType:
        return callee.__func__, type(callee.__self__)
    if is_bound_by_nanobind(kind):
        return (type(callee.__self__),)
    if kind is FunctionType or issubclass(kind, type) or not is_known_by_class(kind):
        return (callee,)
    if kind is BuiltinFunctionType:
        plain = callee.__self__ is None or type(callee.__self__) is ModuleType
        return (callee,) if plain else (type(callee.__self__),)
    return (kind,)
