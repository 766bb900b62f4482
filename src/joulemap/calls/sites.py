"""Call expressions in a program's source: every one is a site, but for a few that must be left alone."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field
from typing import Any

ANNOTATION = "in an annotation"
NEVER_CALLABLE = "what is called is a literal"
BUILT_IN = "a built-in, which is no library's"
BYTECODE = "in a function that a decorator compiles from its bytecode"
SAVED = "in a lambda that is saved with a model as bytecode"

_LITERALS = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.JoinedStr, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_BYTECODE_COMPILERS = frozenset(("jit", "njit", "vectorize", "guvectorize", "cfunc", "stencil"))
_LEAVES = frozenset((str, int, bool, type(None), ast.Name, ast.Constant, ast.Load, ast.Store, ast.Del))
_SCOPES = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.JoinedStr))
_BUILT_INS = frozenset(dir(builtins))
_BINDING = frozenset(
    (
        *(ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.arg, ast.ExceptHandler),
        *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    )
)
_ANNOTATED: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef), ("returns", "type_params")),
    **dict.fromkeys((ast.arg, ast.AnnAssign), ("annotation",)),
    ast.ClassDef: ("type_params",),
}
if hasattr(ast, "TypeAlias"):
    _ANNOTATED[ast.TypeAlias] = ("type_params", "value")


@dataclass(frozen=True, slots=True)
class Site:
    """A call in the source, and the qualified name of the function around it."""

    call: ast.Call
    function: str
    formatted: bool
    """Inside an f-string, where Python before 3.12 does not know positions for sure."""


@dataclass(frozen=True, slots=True)
class Left:
    """A call that is left as it is, and why."""

    line: int
    reason: str


@dataclass
class Found:
    """The calls of one source file."""

    sites: list[Site] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


def find(tree: ast.Module) -> Found:
    """All calls of a module."""
    return _Finder(tree).found


class _Finder:
    """Walks a scope at a time, since only scopes change what a call is known by."""

    def __init__(self, tree: ast.Module) -> None:
        self.found = Found()
        self._tree = tree
        self._numba: frozenset[str] | None = None
        self._scopes: list[tuple[list[Any], str, bool]] = [(list(tree.body), "", False)]
        self._bound: set[str] = set()
        while self._scopes:
            self._walk(*self._scopes.pop())
        self._leave_built_ins()

    def _walk(self, nodes: list[Any], around: str, formatted: bool) -> None:
        while nodes:
            node = nodes.pop()
            kind = type(node)
            if kind is ast.Name and type(node.ctx) is not ast.Load:
                self._bound.add(node.id)
            if kind in _LEAVES:
                continue
            if kind in _BINDING:
                self._bound.update(_names_bound_by(node))
            stays: tuple[str, ...] = _ANNOTATED.get(kind, ())
            if stays:
                self._leave(node, stays, ANNOTATION)
            if kind is ast.Call:
                self._call(node, around, formatted)
                nodes.append(node.func)
                nodes.extend(self._arguments(node))
            elif kind in _SCOPES:
                self._scope(node, nodes, around, formatted)
            else:
                for name in kind._fields:
                    if name not in stays:
                        value = getattr(node, name, None)
                        nodes.extend(value if type(value) is list else (value,))

    def _call(self, call: ast.Call, around: str, formatted: bool) -> None:
        reason = _reason_to_leave(call)
        if reason:
            self.found.left.append(Left(call.lineno, reason))
        else:
            self.found.sites.append(Site(call, around or "<module>", formatted))

    def _arguments(self, call: ast.Call) -> list[ast.expr]:
        given = [*call.args, *(one.value for one in call.keywords)]
        if _last_name(call.func) != "Lambda":
            return given
        for one in given:
            if isinstance(one, ast.Lambda):
                self._leave(one, ("args", "body"), SAVED)
        return [one for one in given if not isinstance(one, ast.Lambda)]

    def _scope(self, node: Any, nodes: list[Any], around: str, formatted: bool) -> None:
        """What is evaluated outside a scope stays here; what is inside comes later."""
        if isinstance(node, ast.JoinedStr):
            self._scopes.append((list(node.values), around, True))
            return
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        inside = f"{around}.{name}" if around else name
        if isinstance(node, ast.ClassDef):
            nodes.extend((*node.decorator_list, *node.bases, *(one.value for one in node.keywords)))
        else:
            nodes.append(node.args)
            nodes.extend(getattr(node, "decorator_list", ()))
        if self._is_compiled(node):
            self._leave(node, ("body",), BYTECODE)
        else:
            body = node.body if isinstance(node.body, list) else [node.body]
            self._scopes.append((list(body), inside, formatted))

    def _leave_built_ins(self) -> None:
        """A built-in that the file never gives another meaning cannot be the library's."""
        if "*" in self._bound:
            return
        kept = []
        for site in self.found.sites:
            callee = site.call.func
            if isinstance(callee, ast.Name) and callee.id in _BUILT_INS and callee.id not in self._bound:
                self.found.left.append(Left(site.call.lineno, BUILT_IN))
            else:
                kept.append(site)
        self.found.sites = kept

    def _is_compiled(self, node: Any) -> bool:
        """Whether Numba gets a function's bytecode, and could make nothing of a site."""
        callees = [
            one.func if isinstance(one, ast.Call) else one for one in getattr(node, "decorator_list", ())
        ]
        suspects = [one for one in callees if _last_name(one) in _BYTECODE_COMPILERS]
        if suspects and self._numba is None:
            self._numba = _names_of_numba(self._tree)
        return any(_first_name(one) in (self._numba or ()) for one in suspects)

    def _leave(self, node: ast.AST, fields: tuple[str, ...], reason: str) -> None:
        for name in fields:
            value = getattr(node, name, None)
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    calls = (one for one in ast.walk(part) if isinstance(one, ast.Call))
                    self.found.left.extend(Left(one.lineno, reason) for one in calls)


def _reason_to_leave(call: ast.Call) -> str:
    callee = call.func
    if isinstance(callee, _LITERALS):
        return NEVER_CALLABLE
    return ""


def _names_bound_by(node: Any) -> list[str]:
    """The names that a statement gives a meaning to, beside those that it assigns."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [one.asname or one.name.split(".")[0] for one in node.names]
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return list(node.names)
    if isinstance(node, ast.arg):
        return [node.arg]
    return [name for name in (getattr(node, "name", None), getattr(node, "rest", None)) if name]


def _names_of_numba(tree: ast.AST) -> frozenset[str]:
    """The names by which a file knows Numba, or what it imports from it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname or "numba" for one in node.names if one.name.split(".")[0] == "numba"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba":
            names |= {one.asname or one.name for one in node.names}
    return frozenset(names)


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
