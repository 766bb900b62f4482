"""The folder of a recording: which files belong to it, what they are called, whose it is."""

from __future__ import annotations

import os
import re
import shutil
import stat
import zlib
from pathlib import Path

from joulemap.errors import InputError, RecordingError
from joulemap.recording.files import ARROWS, PARQUET, SUMS, UNFINISHED, beside, lock, writing

INFO, BACKUP, PROGRAM = "recording.json", "recording.backup.json", "program.json"
EVENTS, STEPS = "events", "steps"
CALLS, CALL_SITES = "calls", "call_sites"
POWER, PROCESS = "power", "process"
RAW = "raw"
"""What frameworks and the program have written themselves, until it is understood and becomes tables."""

_NOT_ONE = "A recording is a folder like run.joulemap, made by joulemap run or joulemap import."
_PLAIN_FILES = (INFO, BACKUP, PROGRAM)
_SUFFIXES = (ARROWS, SUMS, PARQUET, UNFINISHED)
_TABLE_NAME = re.compile(r"[A-Za-z0-9_-]+")


def file_name(domain: str) -> str:
    """The name of a domain as a file name: itself where it can be, else made so and told apart by a sum."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", domain)[:80]
    if plain == domain != "":
        return plain
    return f"{plain}-{zlib.crc32(domain.encode(errors='backslashreplace')):08x}"


def checked_table_name(name: str) -> str:
    """The name of a table of another kind, refused where it cannot be a file name."""
    if not _TABLE_NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot name a table.", "Use letters, digits, - and _.")
    return name


def files_of(folder: Path) -> list[str]:
    """The files that can belong to a recording, relative to its folder."""
    found = [path for path in folder.glob("*") if path.is_file()]
    found += [path for path in folder.glob("*/*") if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in sorted(found)]
    return [name for name in names if name in _PLAIN_FILES or name.endswith(_SUFFIXES)]


def stem_of(name: str) -> str:
    """The table that a file belongs to: ``power/gpu-0`` of ``power/gpu-0.sums``."""
    return name.rpartition(".")[0]


def is_open(stem: Path) -> bool:
    """Whether a table has its open form on disk, or half of it."""
    return beside(stem, SUMS).exists() or beside(stem, ARROWS).exists()


def open_tables(folder: Path) -> list[str]:
    """The names of the tables that have their open form on disk."""
    return sorted({stem_of(name) for name in files_of(folder) if name.endswith((SUMS, ARROWS))})


def require_recording(folder: Path) -> None:
    """Refuse what is not a recording, be it damaged, and say what it is."""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise RecordingError(f"{folder} is a file, not a recording.", _NOT_ONE)
        if not files_of(folder):
            raise RecordingError(f"{folder} is not a recording: it holds no {INFO}.", _NOT_ONE)
    except FileNotFoundError:
        raise RecordingError(f"{folder} does not exist.", _NOT_ONE) from None
    except OSError as error:
        raise RecordingError(f"{folder} cannot be read: {error.strerror}.", _NOT_ONE) from error


def check_replaceable(folder: Path, overwrite: bool) -> None:
    """Refuse to write over anything but a recording, and over that unless it is wanted."""
    if not folder.is_dir():
        raise RecordingError(f"{folder} exists and is not a folder.", "Choose another name.")
    ours = files_of(folder)
    others = [path for path in folder.rglob("*") if path.relative_to(folder).as_posix() not in ours]
    others = [path for path in others if path.is_symlink() or not path.is_dir()]
    others = [path for path in others if path.relative_to(folder).parts[0] != RAW]
    if others or (ours and not _looks_ours(folder)):
        what = others[0] if others else folder / ours[0]
        raise RecordingError(
            f"{folder} exists and is not a recording: {what.name} is no part of one.",
            "Nothing was touched. Choose another name.",
        )
    if ours and not overwrite:
        raise RecordingError(f"{folder} exists.", "Choose another name, or overwrite it with --overwrite.")


def _looks_ours(folder: Path) -> bool:
    """Whether there is a recording.json that was ours, be it damaged."""
    found = [path for path in (folder / INFO, folder / BACKUP) if path.is_file()]
    return any(b'"format"' in path.read_bytes() for path in found)


def clear(folder: Path) -> None:
    """Remove all but recording.json: until that is replaced, it says that the rest is missing."""
    with writing(folder):
        for name in files_of(folder):
            if name != INFO:
                (folder / name).unlink()
        for path in folder.iterdir():
            if path.name == RAW and not path.is_symlink():
                shutil.rmtree(path)
            elif path.is_dir():
                path.rmdir()


def lock_folder(folder: Path) -> int:
    """The handle that holds the folder until it is closed; refused while another process holds it."""
    with writing(folder):
        handle = os.open(folder, os.O_RDONLY)
    if lock(handle):
        return handle
    os.close(handle)
    raise RecordingError(
        f"{folder} is being written by another process.", "Wait until it ends, or choose another name."
    )
