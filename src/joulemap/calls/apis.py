"""What is known of each thing that is called: whether it is the library's, its name, and whether it is C.

An answer is kept by identity, a bound method's by its function and the class of its object, and forgotten
when one of these is gone.
"""

from __future__ import annotations

import weakref
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from joulemap.calls.between import is_native
from joulemap.calls.names import Names, packages_of
from joulemap.calls.owner import Owner
from joulemap.calls.store import Store


class Api(NamedTuple):
    """Something of the library's: the number of its name, and whether C code is called right away."""

    name: int
    native: bool


_Key = int | tuple[int, int | str]


class Apis:
    """The API of some libraries, as far as it was called."""

    def __init__(self, libraries: tuple[str, ...], store: Store) -> None:
        self.owner = Owner({package for library in libraries for package in packages_of(library)})
        self._names = Names(libraries)
        self._store = store
        self._known: dict[_Key, Api | None] = {}
        self._alive: dict[_Key, tuple[weakref.ref[Any], ...]] = {}

    def of(self, callee: Any) -> Api | None:
        """What is known of it; None where it is not the library's."""
        kind = type(callee)
        key: _Key
        if issubclass(kind, partial):
            return self.of(partial.func.__get__(callee))
        if kind is MethodType:
            key = (id(callee.__func__), id(type(callee.__self__)))
        elif kind is BuiltinFunctionType:
            owner = callee.__self__
            plain = owner is None or type(owner) is ModuleType
            key = id(callee) if plain else (id(type(owner)), callee.__name__)
        elif id(callee) in self._known or kind is FunctionType or issubclass(kind, type):
            key = id(callee)
        else:
            key = (id(kind), "__call__")
        try:
            return self._known[key]
        except KeyError:
            return self._ask(callee, key)

    def _ask(self, callee: Any, key: _Key) -> Api | None:
        api = None
        if self.owner.owns(callee):
            api = Api(self._store.word("api", self._names.of(callee)), is_native(callee))
        if self._names.is_public(callee):  # it lives as long as we do
            self._known[id(callee)] = api
        else:
            self._keep(key, api, _lasting(callee))
        return api

    def _keep(self, key: _Key, api: Api | None, things: tuple[Any, ...]) -> None:
        try:
            self._alive[key] = tuple(weakref.ref(one, partial(self._forget, key)) for one in things)
        except TypeError:  # something that cannot be watched is asked about again
            return
        self._known[key] = api

    def _forget(self, key: _Key, gone: weakref.ref[Any]) -> None:
        self._known.pop(key, None)
        self._alive.pop(key, None)


def _lasting(callee: Any) -> tuple[Any, ...]:
    """What must be there for an answer to hold: a bound method is made anew each time, its parts are not."""
    kind = type(callee)
    if kind is MethodType:
        return callee.__func__, type(callee.__self__)
    if kind is FunctionType or issubclass(kind, type):
        return (callee,)
    if kind is BuiltinFunctionType:
        plain = callee.__self__ is None or type(callee.__self__) is ModuleType
        return (callee,) if plain else (type(callee.__self__),)
    return (kind,)
