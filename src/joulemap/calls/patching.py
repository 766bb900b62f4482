"""Source files with their calls made sites: the text is edited at the places of the calls, and nowhere else.

``tf.add(x, y)`` in line 12 becomes ``_joulemap(12, 5, 12, 11, tf.add)(x, y)``. What was written is read
again, taken apart, and compared with the original: a file of which the two differ in anything but the sites
is left alone.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from joulemap.calls.sites import Left, Site, find
from joulemap.errors import InputError

HOOK = "_joulemap"
MARK = "joulemap.calls.patched"
FORMATTED = "in an f-string, whose positions this Python does not know"
SHOWN = "in an f-string that prints its own source"
CROWDED = "the first statement shares its line with what must stand before it"
DIFFERENT = "the result would not be the same program"

_NEWLINE = re.compile(rb"\r\n|\r|\n")
_NEEDS_PARENTHESES = (ast.Yield, ast.YieldFrom)


@dataclass(frozen=True)
class Patched:
    """The new text of a file or cell, how many sites it has, and what was left alone."""

    text: str
    sites: int = 0
    left: list[Left] = field(default_factory=list)


def refuse_patched(text: str, what: str) -> None:
    """A second patch would make sites of sites."""
    if MARK in text or f"{HOOK}(" in text:
        raise InputError(f"{what} is patched already.", "Patch the original.")


def patch_bytes(source: bytes, file: str, libraries: Iterable[str]) -> tuple[bytes, Patched]:
    """A source file as it is on disk, in its own encoding; raises ``SyntaxError`` where it is no Python."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    text = source.decode(encoding)
    patched = patch_file(text, file, libraries)
    return (source if patched.text == text else patched.text.encode(encoding)), patched


def patch_file(text: str, file: str, libraries: Iterable[str]) -> Patched:
    """The text of a source file, with the lines that its sites need."""
    tree = ast.parse(text)
    patched = patch_text(text, tree)
    if not patched.sites:
        return patched
    at = header_line(tree)
    if at is None:
        return Patched(text, 0, [*patched.left, Left(1, CROWDED)])
    newline = _NEWLINE.search(text.encode())
    ending = newline.group().decode() if newline else "\n"
    lines = _lines(patched.text)
    whole = b"".join([*lines[: at - 1], header(file, libraries, ending).encode(), *lines[at - 1 :]]).decode()
    return Patched(whole, patched.sites, patched.left)


def header(file: str, libraries: Iterable[str], ending: str = "\n", kind: str = "sites") -> str:
    """What defines the sites of a file; without joulemap they do nothing."""
    names = ", ".join(ascii(one) for one in (file, *libraries))
    lines = (
        "try:  # call sites of joulemap; where it is not installed they do nothing",
        f"    from {MARK} import {kind} as {HOOK}; {HOOK} = {HOOK}({names})",
        "except ImportError:",
        f"    def {HOOK}(*place_and_callee): return place_and_callee[-1]",
    )
    return "".join(f"{line}{ending}" for line in lines)


def header_line(tree: ast.Module) -> int | None:
    """The line of the first statement that need not be first in its file; None where it shares that line."""
    before = 0
    for number, statement in enumerate(tree.body):
        text = number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not text and not future:
            decorators = getattr(statement, "decorator_list", ())
            line = min([statement.lineno, *(one.lineno for one in decorators)])
            return line if line > before else None
        before = statement.end_lineno or statement.lineno
    return None


def patch_text(text: str, tree: ast.Module, cell: int | None = None) -> Patched:
    """Edit the text at each site. ``cell`` numbers the cell of a notebook."""
    found = find(tree)
    shown = _shown_calls(tree)
    sites, left = list[Site](), list(found.left)
    for site in found.sites:
        reason = SHOWN if id(site.call) in shown else ""
        if not reason and site.formatted and not _is_where_it_says(text, site):
            reason = FORMATTED
        if reason:
            left.append(Left(site.call.lineno, reason))
        else:
            sites.append(site)
    if not sites:
        return Patched(text, 0, left)
    edited = _edited(text, sites, cell)
    if not _is_same(edited, tree):
        return Patched(text, 0, [*left, *(Left(one.call.lineno, DIFFERENT) for one in sites)])
    return Patched(edited, len(sites), left)


def _edited(text: str, sites: list[Site], cell: int | None) -> str:
    lines = _lines(text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits: list[tuple[int, int, int, bytes]] = []
    for site in sites:
        callee = site.call.func
        begin = starts[callee.lineno - 1] + callee.col_offset
        end = starts[(callee.end_lineno or 0) - 1] + (callee.end_col_offset or 0)
        numbers = [*([] if cell is None else [cell]), *_span(callee, lines)]
        opening, closing = (b"(", b"))") if isinstance(callee, _NEEDS_PARENTHESES) else (b"", b")")
        edits.append((begin, 1, -end, f"{HOOK}({', '.join(map(str, numbers))}, ".encode() + opening))
        edits.append((end, 0, -begin, closing))
    return _inserted(text.encode(), edits)


def _span(callee: ast.expr, lines: list[bytes]) -> tuple[int, int, int, int]:
    """Lines and columns of characters, from 1."""
    end_line, end_offset = callee.end_lineno or callee.lineno, callee.end_col_offset or callee.col_offset
    column = len(lines[callee.lineno - 1][: callee.col_offset].decode()) + 1
    return callee.lineno, column, end_line, len(lines[end_line - 1][:end_offset].decode()) + 1


def _inserted(source: bytes, edits: list[tuple[int, int, int, bytes]]) -> str:
    """What ends at a place is closed before anything opens there, the inner before the outer."""
    pieces, done = [], 0
    for at, _, _, text in sorted(edits, key=lambda edit: edit[:3]):
        pieces += [source[done:at], text]
        done = at
    return b"".join([*pieces, source[done:]]).decode()


def _lines(text: str) -> list[bytes]:
    """Lines as Python counts them, with their ends; a form feed is no end of a line."""
    source = text.encode()
    ends = [match.end() for match in _NEWLINE.finditer(source)]
    borders = [0, *ends, *([len(source)] if not ends or ends[-1] != len(source) else [])]
    return [source[begin:end] for begin, end in pairwise(borders)]


def _shown_calls(tree: ast.Module) -> set[int]:
    """Calls in ``f"{f(x)=}"``, where an edit could be read in what the program prints."""
    shown = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for before, value in zip([None, *node.values], node.values, strict=False):
                if isinstance(before, ast.Constant) and str(before.value).rstrip().endswith("="):
                    shown |= {id(one) for one in ast.walk(value) if isinstance(one, ast.Call)}
    return shown


def _is_where_it_says(text: str, site: Site) -> bool:
    """Whether what stands at a site's position is what it calls."""
    if sys.version_info >= (3, 12):
        return True
    segment = ast.get_source_segment(text, site.call.func)
    try:
        return segment is not None and _dump(ast.parse(segment, mode="eval").body) == _dump(site.call.func)
    except SyntaxError:
        return False


def _is_same(edited: str, tree: ast.Module) -> bool:
    """Whether the edited text is the same program once its sites are taken out."""
    try:
        again = compile(edited, "patched", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return _dump(_Without().visit(again)) == _dump(tree)
    except (SyntaxError, RecursionError, ValueError):
        return False


def called_at(patched: str, span: tuple[int, ...]) -> str:
    """What is called at a site of a patched text, as it was; empty where there is no such site."""
    opening = re.search(rf"{HOOK}\((?:\d+, )?{', '.join(map(str, span))}, ", patched)
    depth, end = 1, 0 if opening is None else opening.end()
    while opening is not None and depth and end < len(patched):
        depth += {"(": 1, ")": -1}.get(patched[end], 0)
        end += 1
    if opening is None or depth:
        return ""
    try:
        callee = ast.parse(f"({patched[opening.end() : end - 1]})", mode="eval")
    except SyntaxError:
        return ""
    return ast.unparse(_Without().visit(callee))


class _Without(ast.NodeTransformer):
    """Takes sites out: ``_joulemap(…, f)`` becomes ``f``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == HOOK and node.args:
            return node.args[-1]
        return node


def _dump(tree: ast.AST) -> str:
    return ast.dump(tree)
