"""Notebooks with their calls made sites: only the source of Python cells changes.

Magics stay as they are: lines that begin with ``%``, ``!`` or ``?`` and cells that begin with ``%%``, except
those whose body is Python (``%%time`` and its like), which is patched.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from typing import Any

from joulemap.calls.patching import HOOK, Patched, header, header_line, patch_text
from joulemap.calls.sites import Left

NOT_PYTHON = "in a cell of another language"
UNREADABLE = "in a cell that is no Python"
IN_MAGIC = "in a line magic"

_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%memit", "%%python3", "%%ipytest")
_MAGIC = re.compile(r"^\s*(?:[%!?]|[\w,\s.]+=\s*[%!])|\?\s*$")
_TOP_LEVEL_AWAIT = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def patch_notebook(text: str, file: str, libraries: Iterable[str]) -> Patched:
    """A notebook's JSON with sites in its cells; raises ``ValueError`` where it is no notebook."""
    notebook = json.loads(text)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ValueError("it is no notebook of format 4")
    if _language(notebook) not in ("python", ""):
        return Patched(text, 0, [Left(1, NOT_PYTHON)])
    cells = [cell for cell in notebook["cells"] if cell.get("cell_type") == "code"]
    results = [_Cell(_joined(cell), number) for number, cell in enumerate(cells, 1)]
    sites, left = sum(one.sites for one in results), [note for one in results for note in one.left]
    if not sites:
        return Patched(text, 0, left)
    first = next(one for one in results if one.header_at is not None)
    first.put_header(header(file, libraries, kind="cells"))
    for cell, result in zip(cells, results, strict=True):
        lines = result.text.splitlines(keepends=True)
        cell["source"] = lines if isinstance(cell["source"], list) else result.text
    return Patched(_as_written(notebook, text), sites, left)


def compile_cells(text: str, file: str) -> None:
    """Compile the Python cells of a notebook, with their magics hidden; raises ``SyntaxError``."""
    for cell in json.loads(text)["cells"]:
        first, rest = _cell_magic(_joined(cell))
        if cell.get("cell_type") == "code" and (not first or first.startswith(_PYTHON_CELLS)):
            tree, _ = _parsed(rest)
            if tree is None and f"{HOOK}(" in rest:
                raise SyntaxError(f"{file}: a cell with sites is no Python")
            if tree is not None:
                compile(tree, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


class _Cell:
    """The source of one cell. ``header_at`` is the line where the sites can be defined, if there is one."""

    def __init__(self, text: str, number: int) -> None:
        self.text, self.sites, self.left = text, 0, list[Left]()
        self.header_at: int | None = None
        first, rest = _cell_magic(text)
        if first and not first.startswith(_PYTHON_CELLS):
            self.left = [Left(1, NOT_PYTHON)]
            return
        tree, hidden = _parsed(rest)
        if tree is None:
            self.left = [Left(1, UNREADABLE)] if rest.strip() else []
            return
        patched = patch_text(hidden or rest, tree, number)
        self.text = first + _with_magics(patched.text, rest, bool(hidden))
        self.sites, self.left = patched.sites, patched.left
        if hidden:
            self.left += [Left(line, IN_MAGIC) for line, text in _numbered(rest) if _calls_in(text)]
        if not first:
            self.header_at = header_line(tree)

    def put_header(self, lines: str) -> None:
        assert self.header_at is not None  # noqa: S101 - asked for before
        before = self.text.splitlines(keepends=True)
        self.text = "".join([*before[: self.header_at - 1], lines, *before[self.header_at - 1 :]])


def _language(notebook: dict[str, Any]) -> str:
    about = notebook.get("metadata", {})
    named = about.get("kernelspec", {}).get("language") or about.get("language_info", {}).get("name")
    return str(named or "").lower()


def _joined(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def _cell_magic(text: str) -> tuple[str, str]:
    """The line of a cell magic with what is before it, and the rest."""
    lines = text.splitlines(keepends=True)
    at = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[at].startswith("%%"):
        return "".join(lines[: at + 1]).lstrip("\n"), "".join(lines[at + 1 :])
    return "", text


def _parsed(text: str) -> tuple[ast.Module | None, str]:
    """The cell as Python; where it is not, the cell with its magics hidden, and that text."""
    for hidden in ("", _hidden(text)):
        try:
            tree: ast.Module = compile(hidden or text, "cell", "exec", _TOP_LEVEL_AWAIT)
        except (SyntaxError, ValueError):
            continue
        return tree, hidden
    return None, ""


def _hidden(text: str) -> str:
    """Every magic replaced by a statement that does nothing, on as many lines."""
    return "\n".join(
        f"{line[: len(line) - len(line.lstrip())]}pass" if _MAGIC.search(line) else line
        for line in text.split("\n")
    )


def _with_magics(patched: str, original: str, hidden: bool) -> str:
    """The magics where they were."""
    if not hidden:
        return patched
    pairs = zip(patched.split("\n"), original.split("\n"), strict=True)
    return "\n".join(before if _MAGIC.search(before) else after for after, before in pairs)


def _numbered(text: str) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if _MAGIC.search(line)]


def _calls_in(line: str) -> bool:
    return line.lstrip().startswith(("%time", "%timeit", "%prun")) and "(" in line


def _as_written(notebook: dict[str, Any], original: str) -> str:
    """As JSON in the layout of the original, or in Jupyter's own where it has none that we know."""
    before = json.loads(original)
    ending = original[len(original.rstrip()) :]
    for indent in (1, 2, 4, "\t", None):
        for plain in (False, True):
            if json.dumps(before, indent=indent, ensure_ascii=plain) + ending == original:
                return json.dumps(notebook, indent=indent, ensure_ascii=plain) + ending
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
