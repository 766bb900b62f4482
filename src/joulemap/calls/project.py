"""A whole project with its calls made sites, written beside the original."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulemap.calls.notebooks import compile_cells, patch_notebook
from joulemap.calls.patching import Patched, patch_bytes, refuse_patched
from joulemap.calls.sites import Left
from joulemap.errors import InputError

_NOT_COPIED = frozenset((".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", "node_modules"))
NO_PYTHON = "the file is no Python that this interpreter can read"


@dataclass(frozen=True)
class PatchedFile:
    """One source file or notebook of a project."""

    file: str
    sites: int
    left: list[Left]

    def to_json(self) -> dict[str, Any]:
        left = [{"line": one.line, "reason": one.reason} for one in self.left]
        return {"file": self.file, "sites": self.sites, "left": left}


@dataclass(frozen=True)
class PatchedProject:
    """What was found where, and what was left alone and why."""

    files: list[PatchedFile]
    others: int

    @property
    def sites(self) -> int:
        return sum(one.sites for one in self.files)

    def reasons(self) -> Counter[str]:
        """How many calls were left alone for which reason."""
        return Counter(left.reason for one in self.files for left in one.left)


def patch_project(
    source: Path, target: Path | None, libraries: tuple[str, ...], check: bool = False
) -> PatchedProject:
    """Patch a script, a notebook or a folder into ``target``, or nowhere. ``check`` compiles every result."""
    _refuse(source, target)
    if source.is_dir():
        names = list(_files(source))
    else:
        source, names = source.parent, [Path(source.name)]
    contents = {name: (source / name).read_bytes() for name in names if _is_source(name)}
    for name, content in contents.items():
        refuse_patched(content.decode(errors="replace"), str(source / name))
    files = []
    for name, content in contents.items():
        written, file = _patched(content, name, libraries)
        files.append(file)
        contents[name] = written
        if check and file.sites:
            _check(written, name)
    if target is not None:
        _write(source, target, names, contents)
    return PatchedProject(files, len(names) - len(files))


def _check(written: bytes, name: Path) -> None:
    """Compile a result; what cannot be compiled is a defect of ours."""
    if name.suffix == ".py":
        compile(written, str(name), "exec", dont_inherit=True)
    else:
        compile_cells(written.decode(), str(name))


def _refuse(source: Path, target: Path | None) -> None:
    if not source.exists():
        raise InputError(f"{source} does not exist.", "Give a script, a notebook or a folder.")
    if source.is_file() and not _is_source(source):
        raise InputError(f"{source} is neither Python nor a notebook.", "Give a .py or an .ipynb file.")
    if target is None:
        return
    if target.exists() and (not target.is_dir() or any(target.iterdir()) or source.is_file()):
        raise InputError(f"{target} exists.", "Choose another name; nothing was written.")
    if target.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{target} is inside {source}.", "Choose a place outside of it.")


def _is_source(name: Path) -> bool:
    return name.suffix in (".py", ".ipynb")


def _files(folder: Path) -> Iterator[Path]:
    """The files of a project; not what version control, Python and virtual environments keep there."""
    for path, folders, names in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(
            one for one in folders if one not in _NOT_COPIED and not (here / one / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            yield (here / name).relative_to(folder)


def _patched(content: bytes, name: Path, libraries: tuple[str, ...]) -> tuple[bytes, PatchedFile]:
    file = name.as_posix()
    try:
        if name.suffix == ".py":
            written, result = patch_bytes(content, file, libraries)
        else:
            result = patch_notebook(content.decode(), file, libraries)
            written = result.text.encode()
    except (SyntaxError, ValueError, RecursionError) as error:
        line = error.lineno or 1 if isinstance(error, SyntaxError) else 1
        written, result = content, Patched("", 0, [Left(line, NO_PYTHON)])
    return written, PatchedFile(file, result.sites, sorted(result.left, key=lambda one: one.line))


def _write(source: Path, target: Path, names: list[Path], contents: dict[Path, bytes]) -> None:
    """All files, patched or copied, with their modes and dates; a single one is written as ``target``."""
    single = len(names) == 1 and (source / names[0]).is_file() and target.suffix == names[0].suffix
    for name in names:
        there = target if single else target / name
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, there, follow_symlinks=False)
        if name in contents and not there.is_symlink():
            there.write_bytes(contents[name])
