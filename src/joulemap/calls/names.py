"""Public names of a library's functions, classes and methods: what its documentation calls them.

A library's public modules say what is public: what can be reached from the top through names without an
underscore is known by the shortest way there. A method is known by the first public class of its object.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from joulemap.calls.owner import bases, is_bound_by_nanobind, is_module

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow", "keras", "tf_keras"),
    "jax": ("jax", "jaxlib"),
}
"""The packages that a library's API is spread over, where they are more than one."""

_ENTRANCES = {"keras": "tensorflow.keras", "tf_keras": "tensorflow.keras", "jaxlib": ""}
"""How a package is reached from the library that it is a part of; empty where it is not."""

_MADE_BY = {
    "torch._dynamo.eval_frame": "torch.compile",
    "jaxlib._jax.PjitFunction": "jax.stages.Wrapped.__call__",
}
"""What a library makes from the program's functions, and has no public class for."""

_IMPLEMENTATION = frozenset(("python", "src"))
"""Where TensorFlow and Keras keep what their public modules only name."""

_DESCRIBED = (MethodDescriptorType, MethodWrapperType, WrapperDescriptorType)
"""Methods of classes that are written in C, which name their class."""

_DEEPEST = 6
_MOST_LAYERS = 16


def _name_in(cls: type, function: Any) -> str:
    """What a class calls a function of its own."""
    found = (name for one in bases(cls) for name, value in vars(one).items() if value is function)
    return next(found, "__call__")


def packages_of(library: str) -> tuple[str, ...]:
    """The packages that belong to a library."""
    return PACKAGES.get(library, (library,))


class Names:
    """Knows the public names of some libraries; looked up again when modules were imported since."""

    def __init__(self, libraries: tuple[str, ...]) -> None:
        self._libraries = libraries
        self._public: dict[int, str] = {}
        self._keep: list[Any] = []
        self._modules = -1

    def of(self, callee: Any) -> str:
        """The public name of what is called."""
        while isinstance(callee, partial):
            callee = callee.func
        name = self._find(callee)
        if not name and len(sys.modules) != self._modules:
            self._look()
            name = self._find(callee)
        return name or _tidy(_written(callee))

    def is_public(self, callee: Any) -> bool:
        """Whether it is known by a name of its own, and lives as long as that is known."""
        return id(callee) in self._public

    def _find(self, callee: Any) -> str:
        public = self._public.get(id(callee), "")
        if public:
            return public
        kind = type(callee)
        if issubclass(kind, type):
            return self._class(callee)
        if kind is FunctionType:
            return self._function(callee)
        if kind is MethodType or kind is BuiltinFunctionType:
            owner = callee.__self__
            if owner is None or is_module(owner):
                return ""
            return self._member(owner if issubclass(type(owner), type) else type(owner), callee.__name__)
        if kind in _DESCRIBED:
            return self._member(callee.__objclass__, callee.__name__)
        if is_bound_by_nanobind(kind):
            owner = type(callee.__self__)
            return self._member(owner, _name_in(owner, callee.__func__))
        return _MADE_BY.get(_full_name(kind), "") or self._member(kind, "__call__")

    def _class(self, cls: type) -> str:
        names = (self._public.get(id(one), "") for one in bases(cls))
        return next(filter(None, names), "")

    def _member(self, cls: type, name: str) -> str:
        public = self._class(cls)
        plain = name.lstrip("_") if name.startswith("_") and not name.startswith("__") else name
        return f"{public}.{plain if hasattr(cls, plain) else name}" if public else ""

    def _function(self, function: FunctionType) -> str:
        """A function of a class, or one that something public has made, perhaps in several layers."""
        for layer in _layers(function):
            module = str(layer.__globals__.get("__name__", ""))
            names = (
                _MADE_BY.get(module, ""),
                self._part_of(layer, layer.__qualname__),
                self._part_of(layer, getattr(layer.__code__, "co_qualname", "")),
                self._made_for(layer),
            )
            public = next(filter(None, names), "")
            if public:
                return public
        return ""

    def _made_for(self, function: FunctionType) -> str:
        """``torch.no_grad`` of a function that was decorated with it: it holds a method of the decorator."""
        held = (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
        owners = (type(one.__self__) for one in held if type(one) is MethodType)
        return next(filter(None, map(self._class, owners)), "")

    def _part_of(self, function: FunctionType, qualified: str) -> str:
        first, *rest = qualified.split(".")
        known_in = vars(sys.modules.get(function.__module__ or "", sys))
        outer = function.__globals__.get(first, known_in.get(first))
        if not rest or outer is None:
            return ""
        if issubclass(type(outer), type):
            public = self._class(outer)
            return f"{public}.{rest[-1]}" if public else ""
        return self._public.get(id(outer), "")

    def _look(self) -> None:
        """Walk through what is public, nearest first."""
        self._modules = len(sys.modules)
        for library in self._libraries:
            for package in packages_of(library):
                name = library if package == library else _ENTRANCES.get(package, package)
                if name and package in sys.modules:
                    self._walk(sys.modules[package], package, name, packages_of(library))

    def _walk(self, top: ModuleType, package: str, name: str, packages: tuple[str, ...]) -> None:
        """Go down level by level; on one level, the name that a thing calls itself goes first."""
        level, seen = [(top, name)], {id(top)}
        for _ in range(_DEEPEST):
            below: list[tuple[ModuleType, str]] = []
            found: dict[int, str] = {}
            for module, path in level:
                for attribute, value in _members(module):
                    if is_module(value):
                        if id(value) not in seen and _is_part(value, package):
                            seen.add(id(value))
                            below.append((value, f"{path}.{attribute}"))
                    elif id(value) not in self._public and _is_from(value, packages):
                        self._keep.append(value)  # an id is somebody else's when its owner is gone
                        if id(value) not in found or _own_name(value) == attribute:
                            found[id(value)] = f"{path}.{attribute}"
            self._public.update(found)
            level = below


def _members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module has by now; a lazy one is not made to load more."""
    members = object.__getattribute__(module, "__dict__")
    return ((name, value) for name, value in list(members.items()) if not name.startswith("_"))


def _is_from(value: Any, packages: tuple[str, ...]) -> bool:
    """Whether something that can be called is the library's own, not another's that it shows as well. Objects
    are not asked: some of them warn."""
    kind = type(value)
    if kind is FunctionType or kind is BuiltinFunctionType:
        module = value.__module__
    elif issubclass(kind, type):
        module = type.__dict__["__module__"].__get__(value)
    else:
        return callable(value)
    return not isinstance(module, str) or module.split(".")[0] in packages


def _own_name(value: Any) -> object:
    """What a function or a class calls itself; objects that answer any question are not asked."""
    if issubclass(type(value), type):
        return type.__dict__["__name__"].__get__(value)
    try:
        return object.__getattribute__(value, "__name__")
    except AttributeError:
        return None


def _is_part(module: ModuleType, package: str) -> bool:
    """Whether a module is one of the package's public ones, not one that implements them."""
    name = object.__getattribute__(module, "__dict__").get("__name__", "")
    if not isinstance(name, str):
        return False
    first, *rest = name.split(".")
    inner = any(part in _IMPLEMENTATION or (part.startswith("_") and part != "_api") for part in rest)
    return first == package and not inner


def _layers(function: FunctionType) -> Iterator[FunctionType]:
    """A function and those that it wraps or holds, as long as they come from the same library."""
    packages = (_package(function), "joulemap")
    waiting: list[Any] = [function]
    for _ in range(_MOST_LAYERS):
        if not waiting:
            return
        layer = waiting.pop(0)
        if type(layer) is FunctionType and _package(layer) in packages:
            yield layer
            waiting.append(layer.__dict__.get("__wrapped__"))
            waiting.extend(cell.cell_contents for cell in layer.__closure__ or () if _is_filled(cell))


def _package(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__", "")).split(".")[0]


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _written(callee: Any) -> str:
    """Module and qualified name as they are in the library's source."""
    kind = type(callee)
    if kind is FunctionType:
        qualified = getattr(callee.__code__, "co_qualname", callee.__qualname__)
        return f"{callee.__globals__.get('__name__', callee.__module__)}.{qualified}"
    if kind is MethodType:
        return _written(callee.__func__)
    if kind is BuiltinFunctionType or issubclass(kind, type):
        return _full_name(callee)
    if kind in _DESCRIBED:
        return f"{_full_name(callee.__objclass__)}.{callee.__name__}"
    if is_bound_by_nanobind(kind):
        owner = type(callee.__self__)
        return f"{_full_name(owner)}.{_name_in(owner, callee.__func__)}"
    return f"{_full_name(kind)}.__call__"


def _full_name(thing: Any) -> str:
    module = thing.__module__
    if module is None:  # a method of C
        owner = thing.__self__
        module = (owner if isinstance(owner, type) else type(owner)).__module__
    return f"{module}.{thing.__qualname__}"


def _tidy(name: str) -> str:
    """Without its private parts: ``numpy.linalg.norm`` of ``numpy.linalg._linalg.norm``."""
    parts = name.replace(".<locals>", "").split(".")
    last = parts[-1]
    public = [part for part in parts[:-1] if not part.startswith("_")]
    return ".".join([*public, last])
