"""A program's code with its calls made sites, in memory.

``f(a, b)`` becomes ``__joulemap_call__(7, f)(a, b)``: the site is handed what is to be called before the
arguments are evaluated, as Python does, and hands back what is called instead: the same thing, or one that
measures. Every position stays, so that tracebacks show the original source.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType

from joulemap.calls.places import Place
from joulemap.calls.sites import Found, Site, find

HOOK = "__joulemap_call__"


@dataclass(frozen=True)
class Rewritten:
    """Code with sites, and where each of them is, in order of their numbers."""

    code: CodeType
    places: list[Place]


def rewrite(source: bytes | str, filename: str, first: int = 0) -> Rewritten:
    """Compile a program with its calls made sites, numbered from ``first``; raises what Python would."""
    tree = ast.parse(source, filename)
    found = find(tree)
    places = [place_of(site) for site in found.sites]
    make_sites(tree, found, first)
    try:
        return Rewritten(compile(tree, filename, "exec", dont_inherit=True), places)
    except RecursionError:  # nested too deep for the compiler with us, perhaps not without
        return Rewritten(compile(source, filename, "exec", dont_inherit=True), [])


def place_of(site: Site) -> Place:
    """The span of what a site calls."""
    callee = site.call.func
    end_line, end_column = callee.end_lineno or callee.lineno, callee.end_col_offset or callee.col_offset
    return Place(callee.lineno, callee.col_offset, end_line, end_column, site.function)


def make_sites(tree: ast.Module, found: Found, first: int) -> None:
    """Change the tree that the calls were found in."""
    imported = lru_cache(1)(partial(_imported_names, tree))
    for number, site in enumerate(found.sites, first):
        call = site.call
        if _is_method_over_lines(call) and not _is_of_module(call.func, imported):
            _start_at_method(call)
        hook = ast.copy_location(ast.Name(HOOK, ast.Load()), call.func)
        constant = ast.copy_location(ast.Constant(number), call.func)
        # The hook is called in the line that the call itself is in.
        call.func = ast.copy_location(ast.Call(hook, [constant, call.func], []), call)


def _is_method_over_lines(call: ast.Call) -> bool:
    """The compiler gives a method's call the line of the method's name. It would not see a method any more,
    so that is done here, by its rules."""
    method = call.func
    if not isinstance(method, ast.Attribute) or method.end_lineno == method.lineno:
        return False
    starred = any(isinstance(one, ast.Starred) for one in call.args)
    return not starred and all(one.arg is not None for one in call.keywords)


def _is_of_module(method: ast.expr, imported: Callable[[], frozenset[str]]) -> bool:
    """Since 3.11 the function of an imported module is no method."""
    base = method.value if isinstance(method, ast.Attribute) else None
    return sys.version_info >= (3, 11) and isinstance(base, ast.Name) and base.id in imported()


def _start_at_method(call: ast.Call) -> None:
    method = call.func
    assert isinstance(method, ast.Attribute)  # noqa: S101
    call.lineno = method.end_lineno or method.lineno
    if sys.version_info >= (3, 11):
        call.col_offset = max((method.end_col_offset or 0) - len(method.attr.encode()), 0)


def _imported_names(tree: ast.Module) -> frozenset[str]:
    """What the module imports outside its functions and classes."""
    names: set[str] = set()
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {one.asname or one.name.split(".")[0] for one in node.names}
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            nodes.extend(ast.iter_child_nodes(node))
    return frozenset(names)
