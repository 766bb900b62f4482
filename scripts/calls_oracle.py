"""What a program really calls, by Python's own profiler (``sys.setprofile``): for every call instruction of
some source it sees which function, of Python or of C, was called. It shares nothing with the sites.

A call node counts as a library's where that function's file, module or class is. Not counted is what is
called while a framework traces the program (sites are off there, on purpose), ``str(e)`` and other built-ins,
whatever they call in turn, and what a decorator or ``with`` calls beside the expression that it is given.
"""

from __future__ import annotations

import ast
import builtins
import dis
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Span = tuple[str, int, int, int, int]
"""File, and from where to where what is called stands: lines and columns of characters, from 1."""
_Position = tuple[int, ...]


class Oracle:
    """Watches the calls made by code whose file begins with some path; ``source`` gives a file's text."""

    def __init__(self, path: str, libraries: Iterable[str], source: Callable[[str], str]) -> None:
        from joulemap.calls.names import packages_of

        self._path, self._source = path, source
        self._library_of = {package: one for one in libraries for package in packages_of(one)}
        self._roots = {root: self._library_of[one] for one in self._library_of for root in _roots(one)}
        self._seen: dict[tuple[CodeType, int], str] = {}
        self._in_c: set[int] = set()

    def start(self) -> None:
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        caller = frame.f_back if event == "call" else frame
        if caller is None or not caller.f_code.co_filename.startswith(self._path):
            return
        if event == "call" and id(caller) in self._in_c:
            return  # called by a function of C, which is what the program called
        if event in ("c_call", "c_return", "c_exception"):
            (self._in_c.add if event == "c_call" else self._in_c.discard)(id(frame))
        key = caller.f_code, caller.f_lasti
        if key in self._seen:
            return
        library = self._owner(frame, event, argument)
        if library and not _is_tracing():
            self._seen[key] = library

    def _owner(self, frame: FrameType, event: str, argument: Any) -> str:
        if event == "call":
            file = frame.f_code.co_filename
            return next((library for root, library in self._roots.items() if file.startswith(root)), "")
        if event != "c_call":
            return ""
        module = getattr(argument, "__module__", None) or _class_of(argument).__module__
        return self._library_of.get(str(module).split(".")[0], "")

    def stop(self) -> dict[Span, str]:
        """The call nodes of each library."""
        sys.setprofile(None)
        threading.setprofile(None)
        found: dict[Span, str] = {}
        nodes: dict[str, _Nodes] = {}
        for (code, at), library in self._seen.items():
            file = code.co_filename
            if file not in nodes:
                nodes[file] = _Nodes(self._source(file), Path(file).name)
            span = nodes[file].called_at(code, at)
            if span is not None:
                found[span] = library
        return found


def _roots(package: str) -> list[str]:
    spec = find_spec(package)
    return [f"{place}/" for place in (spec.submodule_search_locations or ())] if spec is not None else []


def _class_of(method: Any) -> type:
    """The class that a method of C is from: ``dict`` for ``update`` of a library's class made from it."""
    owner = method.__self__
    kind = owner if isinstance(owner, type) else type(owner)
    return next((one for one in kind.__mro__ if method.__name__ in vars(one)), kind)


def _is_tracing() -> bool:
    from joulemap.calls.tracing import tracers

    return any(tracing() for tracing in tracers())


class _Nodes:
    """The call nodes of a file: where the compiler says they are, and the span of what they call."""

    def __init__(self, source: str, name: str) -> None:
        self._name, self._lines = name, source.split("\n")
        self._spans: dict[_Position, Span] = {}
        self._first_only: set[_Position] = set()
        for node in ast.walk(compile(source, name, "exec", _AS_TREE)):
            if isinstance(node, ast.Call):
                self._add(node)
            for given in (*getattr(node, "decorator_list", ()), *getattr(node, "items", ())):
                expression = getattr(given, "context_expr", given)
                if isinstance(expression, ast.Call):
                    self._first_only.update(_positions(expression))

    def _add(self, node: ast.Call) -> None:
        callee = node.func
        if isinstance(callee, ast.Name) and callee.id in dir(builtins):
            return
        start = self._column(callee.lineno, callee.col_offset)
        end_line = callee.end_lineno or callee.lineno
        end = self._column(end_line, callee.end_col_offset or 0)
        span = (self._name, callee.lineno, start, end_line, end)
        self._spans.update(dict.fromkeys(_positions(node), span))

    def _column(self, line: int, offset: int) -> int:
        return len(self._lines[line - 1].encode()[:offset].decode()) + 1

    def called_at(self, code: CodeType, at: int) -> Span | None:
        """What the call instruction at some place calls; None where it is no call, or not the node's own."""
        places: Any = code
        positions: list[_Position] = list(places.co_positions())
        names = {one.offset: one.opname for one in dis.get_instructions(code)}
        at = max(one for one in names if one <= at)  # a call of Python points to what follows its instruction
        position = positions[at // 2]
        if "CALL" not in names[at] or position not in self._spans:
            return None
        same = [one for one, name in names.items() if "CALL" in name and positions[one // 2] == position]
        first = same[:2] if names[same[0]] == "PRECALL" else same[:1]
        return self._spans[position] if position not in self._first_only or at in first else None


_AS_TREE = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _positions(node: ast.Call) -> list[_Position]:
    """Where the compiler may say that a call is: of methods over several lines it says another start."""
    callee, end = node.func, (node.end_lineno or 0, node.end_col_offset or 0)
    positions: list[_Position] = [(node.lineno, end[0], node.col_offset, end[1])]
    if isinstance(callee, ast.Attribute):
        at = (callee.end_col_offset or 0) - len(callee.attr.encode())
        positions.append((callee.end_lineno or 0, end[0], at, end[1]))
    return positions
