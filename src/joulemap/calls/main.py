"""The program itself, which Python runs without importing it: compiled with sites before it is started.

``joulemap run`` gives Python a file of bytecode in place of the script. Everything that would show it is put
back: first by ``Main.restore`` when joulemap enters the program, the rest by the first lines of the code.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import marshal
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from joulemap.calls.loader import MARK
from joulemap.calls.places import Place, Places
from joulemap.calls.rewrite import HOOK, make_sites, place_of
from joulemap.calls.sites import find

CODE, PLACES = "program.pyc", "program.json"
_BEGIN = "__joulemap_main__"
_FIRST_LINES = f"""
try:
    {_BEGIN}(globals())
except NameError:
    {HOOK}, __file__ = lambda site, callee: callee, FILE
    __import__("sys").argv[0], __import__("sys").path[0] = SCRIPT, FOLDER
"""


class Patched(Exception):
    """The script was patched already."""


def prepare(script: str, folder: Path) -> Path:
    """Write the bytecode of a script with sites; raises what Python would raise, or ``OSError``."""
    source = Path(script).read_bytes()
    if MARK in source:
        raise Patched(f"{script} has sites of its own.")
    path = os.path.abspath(script)  # noqa: PTH100 - as Python itself does it, without following links
    tree = ast.parse(source, path)
    found = find(tree)
    places = [place_of(one) for one in found.sites]
    make_sites(tree, found, 0)
    _put_first(tree, {"FILE": path, "SCRIPT": script, "FOLDER": str(Path(path).resolve().parent)})
    code = compile(tree, path, "exec", dont_inherit=True)
    header = importlib.util.MAGIC_NUMBER + bytes(12)
    (folder / CODE).write_bytes(header + marshal.dumps(code))
    (folder / PLACES).write_text(json.dumps([path, [list(asdict(one).values()) for one in places]]))
    return folder / CODE


def _put_first(tree: ast.Module, constants: dict[str, str]) -> None:
    """Put our lines after what must come first in a program: its docstring, and imports from the future."""
    at = 0
    for statement in tree.body:
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and not at
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not text and not future:
            break
        at += 1
    lines = ast.parse(_FIRST_LINES)
    for node in ast.walk(lines):
        if isinstance(node, (ast.stmt, ast.expr, ast.ExceptHandler)):
            node.lineno = node.end_lineno = tree.body[0].lineno if tree.body else 1
            node.col_offset = node.end_col_offset = 0
    tree.body[at:at] = _Filled(constants).visit(lines).body


class _Filled(ast.NodeTransformer):
    """Names that stand for constants, replaced by them."""

    def __init__(self, constants: dict[str, str]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._constants:
            return node
        return ast.copy_location(ast.Constant(self._constants[node.id]), node)


class Main:
    """The program, seen from inside, when it was started from our bytecode."""

    def __init__(self, folder: Path, script: str) -> None:
        self._code, self._script = str(folder / CODE), script
        self._folder = str(folder)
        self.path, self._spans = json.loads((folder / PLACES).read_text())

    def restore(self, places: Places, started: Callable[[dict[str, Any]], None]) -> None:
        """Make the arguments those of the script, and be there for its first line; ``started`` is told of the
        program's names."""
        self._started = started
        places.add(self.path, [Place(*span) for span in self._spans])
        for words in (sys.argv, sys.orig_argv):
            words[:] = [self._script if word == self._code else word for word in words]
        vars(builtins)[_BEGIN] = self._begin

    def _begin(self, main: dict[str, Any]) -> None:
        """What Python set up from the name of the file, as it would be for the script."""
        del vars(builtins)[_BEGIN]
        main["__file__"] = self.path
        main["__loader__"] = SourceFileLoader("__main__", self.path)
        if sys.path[:1] == [self._folder] or sys.path[:1] == [str(Path(self._folder).resolve())]:
            sys.path[0] = str(Path(self.path).resolve().parent)
        self._started(main)
