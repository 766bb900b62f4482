"""The processor time of a program: its process, its children, and workers that come and go.

A process that ends between two looks is not lost: the system adds its time to that of the parent which
waited for it. Processes that lose their parent are followed on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Ticks = dict[int, float]
"""Processor time by socket, in clock ticks."""

_MONITOR = b"joulemap.monitor"
_PPID, _UTIME, _STIME, _CUTIME, _CSTIME, _STARTED, _PROCESSOR = 1, 11, 12, 13, 14, 19, 36


@dataclass(frozen=True, slots=True)
class Times:
    """``/proc/PID/stat``: clock ticks of its own, and of children that it has waited for."""

    parent: int
    own: int
    waited_for: int
    started: int
    cpu: int

    @classmethod
    def read(cls, path: Path) -> Times | None:
        """None where the process is gone."""
        try:
            # The name comes first, in brackets, and may contain anything.
            fields = path.read_bytes().rpartition(b")")[2].split()
            number = [int(fields[i]) for i in (_PPID, _UTIME, _STIME, _CUTIME, _CSTIME, _STARTED, _PROCESSOR)]
        except (OSError, ValueError, IndexError):
            return None
        return cls(number[0], number[1] + number[2], number[3] + number[4], number[5], number[6])


@dataclass(slots=True)
class _Process:
    times: Times
    threads: dict[int, tuple[int, int]]
    """Ticks and socket of each thread."""
    ours: bool
    """Whether it is the monitor, which is no part of the program."""


class ProcessTree:
    """A process and everything it started; :meth:`spent` says what they used since the last call."""

    def __init__(self, pid: int, socket_of: Mapping[int, int], proc: Path = Path("/proc")) -> None:
        self._root = pid
        self._proc = proc
        self._socket_of = socket_of
        self._sockets = sorted(set(socket_of.values())) or [0]
        self._known: dict[int, _Process] = {}
        self._lists_children = (proc / f"{pid}/task/{pid}/children").exists()
        self._look(self._find())

    def spent(self) -> tuple[Ticks, Ticks]:
        """Clock ticks by socket since the last call: the program's, and the monitors' among its children."""
        before = dict(self._known)
        self._look(self._find())
        program, monitor = dict.fromkeys(self._sockets, 0.0), dict.fromkeys(self._sockets, 0.0)
        for pid, process in self._known.items():
            spent = self._own_since(process, before.get(pid)) + self._reaped_since(pid, process, before)
            target = monitor if process.ours else program
            for socket, part in self._by_socket(process, before.get(pid)).items():
                target[socket] += spent * part
        return program, monitor

    def _own_since(self, now: _Process, before: _Process | None) -> int:
        return max(now.times.own - (before.times.own if before else 0), 0)

    def _reaped_since(self, pid: int, now: _Process, before: Mapping[int, _Process]) -> int:
        """What children added that have ended since, less what of theirs was counted while they lived."""
        if pid not in before:
            return now.times.waited_for
        gone = [p.times for child, p in before.items() if child not in self._known and p.times.parent == pid]
        counted = sum(times.own + times.waited_for for times in gone)
        return max(now.times.waited_for - before[pid].times.waited_for - counted, 0)

    def _by_socket(self, now: _Process, before: _Process | None) -> dict[int, float]:
        """Where its threads ran, as parts of one. A thread counts on the processor it was last seen on."""
        if len(self._sockets) == 1:
            return {self._sockets[0]: 1.0}
        spent, earlier = dict.fromkeys(self._sockets, 0.0), before.threads if before else {}
        for thread, (ticks, socket) in now.threads.items():
            spent[socket] += max(ticks - earlier.get(thread, (0, 0))[0], 0)
        total = sum(spent.values())
        if not total:
            return {self._socket(now.times.cpu): 1.0}
        return {socket: ticks / total for socket, ticks in spent.items()}

    def _look(self, found: Mapping[int, Times]) -> None:
        """Replace what is known by what is there now."""
        known = self._known
        self._known = {
            pid: _Process(
                times, self._threads(pid), known[pid].ours if pid in known else self._is_monitor(pid)
            )
            for pid, times in found.items()
        }

    def _threads(self, pid: int) -> dict[int, tuple[int, int]]:
        """Needed only where there are several sockets to tell apart."""
        if len(self._sockets) == 1:
            return {}
        folders = _entries(self._proc / str(pid) / "task")
        found = ((int(folder.name), Times.read(folder / "stat")) for folder in folders)
        return {thread: (times.own, self._socket(times.cpu)) for thread, times in found if times is not None}

    def _socket(self, cpu: int) -> int:
        return self._socket_of.get(cpu, self._sockets[0])

    def _find(self) -> dict[int, Times]:
        """The root, those known already that still live, and the children of all of them."""
        found, waiting = dict[int, Times](), [self._root, *self._known]
        by_parent = None if self._lists_children else self._by_parent()
        while waiting:
            pid = waiting.pop()
            times = None if pid in found else Times.read(self._proc / str(pid) / "stat")
            if times is None or self._is_another(pid, times):
                continue
            found[pid] = times
            waiting += self._children(pid) if by_parent is None else by_parent.get(pid, ())
        return found

    def _by_parent(self) -> dict[int, list[int]]:
        """The children of all processes: slow, for kernels that do not list them."""
        children = dict[int, list[int]]()
        for folder in self._proc.glob("[0-9]*"):
            times = Times.read(folder / "stat")
            if times is not None:
                children.setdefault(times.parent, []).append(int(folder.name))
        return children

    def _is_another(self, pid: int, times: Times) -> bool:
        """Numbers of processes are used again."""
        return pid in self._known and self._known[pid].times.started != times.started

    def _children(self, pid: int) -> Iterator[int]:
        for folder in _entries(self._proc / str(pid) / "task"):
            with suppress(OSError, ValueError):
                yield from map(int, (folder / "children").read_bytes().split())

    def _is_monitor(self, pid: int) -> bool:
        try:
            words = (self._proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return pid != self._root and _MONITOR in words


def _entries(folder: Path) -> Collection[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return ()
