"""Files that survive: written whole or not at all, made durable, locked while somebody writes them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from joulemap.errors import RecordingError

ARROWS, SUMS, PARQUET, UNFINISHED = ".arrows", ".sums", ".parquet", ".tmp"

_FULL = {
    errno.ENOSPC: ("the disk is full", "Free some space, or write the recording to another disk."),
    errno.EDQUOT: ("your quota on this disk is used up", "Free some space, or write to another disk."),
    errno.EFBIG: ("it would exceed the largest file allowed here", "Raise the limit: ulimit -f unlimited."),
}


def beside(stem: Path, suffix: str) -> Path:
    """``power/gpu-0`` and ``.sums`` make ``power/gpu-0.sums``, whatever dots the name has."""
    return stem.with_name(stem.name + suffix)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into an error that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        usual = (error.strerror or str(error), "Check the path and its permissions.")
        reason, hint = _FULL.get(error.errno or 0, usual)
        raise RecordingError(
            f"{path} cannot be written: {reason}.", f"{hint} What was written before stays readable."
        ) from error


def replace(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make a file under another name and put it in place: whole and durable, or not at all."""
    unfinished = beside(path, UNFINISHED)
    with writing(path):
        try:
            path.parent.mkdir(exist_ok=True)
            write(unfinished)
            _sync(unfinished)
            unfinished.replace(path)
            _sync(path.parent)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def replace_bytes(path: Path, content: bytes) -> None:
    """Put a file with this content in place: whole and durable, or not at all."""
    replace(path, lambda unfinished: _write_bytes(unfinished, content))


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create(path: Path) -> int:
    """A handle that appends to a new file; one that exists is refused."""
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all of it, however little the system takes at a time."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(handle, rest) :]


def lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the file is ours alone now. A file system without locks says yes to everyone."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_locked(path: Path) -> bool:
    """Whether somebody is writing to this file or folder right now."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(handle, fcntl.LOCK_SH)  # shared: those who only ask do not see each other
    finally:
        os.close(handle)
