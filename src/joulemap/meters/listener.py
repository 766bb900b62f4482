"""Who listens at the socket of a monitor, as the kernel has it: looked up before anything is believed."""

from __future__ import annotations

import grp
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from joulemap.errors import MeterError

CONNECT_S = 1.0
START_ONE = "Start one with joulemap monitor, and be a member of its group."
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Listener:
    """The process that made the socket, and its user."""

    pid: int
    uid: int

    @classmethod
    def of(cls, path: Path) -> Listener:
        """MeterError where nobody listens, or we may not connect."""
        try:
            pid, uid, _ = _CREDENTIALS.unpack(_credentials(path))
        except PermissionError as error:
            raise MeterError(f"You may not connect to the monitor at {path}.", _who_may(path)) from error
        except OSError as error:
            raise MeterError(f"No monitor serves {path}.", START_ONE) from error
        return cls(pid, uid)

    def check(self, path: Path, anyones: bool) -> None:
        """Root's and our own monitors are trusted, others only where somebody named them; and never
        ourselves, which would go round in circles."""
        if self.pid == os.getpid():
            raise MeterError(f"The monitor at {path} is this process.")
        if not anyones and self.uid not in (0, os.geteuid()):
            hint = f"Where you trust it, name it: JOULEMAP_MONITOR={path}"
            raise MeterError(f"The monitor at {path} belongs to another user ({self.uid}).", hint)


def _credentials(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_S)
        probe.connect(str(path))
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)


def _who_may(path: Path) -> str:
    """The remedy: to become a member of its group."""
    with suppress(OSError, KeyError):
        found = path.stat()
        if found.st_mode & 0o060 == 0o060:
            name = grp.getgrgid(found.st_gid).gr_name
            return f"Have yourself added to its group, and log in again: usermod -aG {name} NAME."
    return "Its owner can let a group in: joulemap monitor --group NAME."
