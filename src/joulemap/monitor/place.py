"""A place for a socket where nobody else can put one.

Who may connect is decided by the permissions of the socket, which the kernel checks for every connection.
That is worth something only where nobody can take the socket away and put another in its place. So every
folder above it has to be ours or the system's, and others may write to it only if it is sticky, as ``/tmp``.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from joulemap.errors import InputError, MeterError

LONGEST_PATH = 107
_OWN = "Choose a place in a folder of your own with --socket."


def make_way(path: Path) -> None:
    """Make the folder, and remove the socket of a monitor that was killed. A living one is left alone."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InputError(f"{path} is too long for a socket.", f"At most {LONGEST_PATH} bytes are possible.")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _check_folders(path)
        _remove_a_dead_one(path)
    except OSError as error:
        raise MeterError(f"{path} cannot be served: {error.strerror}.", "Choose another path.") from error


def check_ours(path: Path) -> None:
    """That the socket which was just made is the one that is there."""
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise InputError(f"Somebody put something else in the place of {path}.", _OWN)


def _check_folders(path: Path) -> None:
    folder = path.parent.resolve()
    for each in (folder, *folder.parents):
        found = each.stat()
        if found.st_uid not in _trusted_users():
            raise InputError(f"{each} belongs to another user, who could replace the socket there.", _OWN)
        if _open_to_others(found) and not found.st_mode & stat.S_ISVTX:
            raise InputError(f"Others may write to {each}, and could replace the socket there.", _OWN)


def _trusted_users() -> set[int]:
    """Ourselves and root; in a container that maps users, root is whoever has the root folder."""
    return {0, os.geteuid(), Path("/").stat().st_uid}


def _open_to_others(folder: os.stat_result) -> bool:
    strange_group = folder.st_gid not in (0, os.getegid())
    return bool(folder.st_mode & stat.S_IWOTH or (folder.st_mode & stat.S_IWGRP and strange_group))


def _remove_a_dead_one(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError(f"{path} exists and is no socket.", "Choose another path with --socket.")
    if _answers(path):
        raise InputError(f"A monitor serves {path} already.", "Use it, or choose another path.")
    path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True
