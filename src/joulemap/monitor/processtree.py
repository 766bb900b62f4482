"""The processor time of a program: its process, its children, and workers that come and go.

A process that ends between two looks is not lost: the system adds its time to that of the parent which
waited for it. Processes that lose their parent are followed on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

Ticks = dict[int, float]
"""Processor time by socket, in clock ticks."""

_MONITOR = b"joulemap.monitor"
_LOADS = b"pt_data_worker"
"""What PyTorch calls a process that loads data for another one."""
_PPID, _UTIME, _STIME, _CUTIME, _CSTIME, _THREADS, _STARTED, _PROCESSOR = 1, 11, 12, 13, 14, 17, 19, 36
_LONGEST_STAT = 4096


@dataclass(frozen=True, slots=True)
class Times:
    """``/proc/PID/stat``: clock ticks of its own, and of children that it has waited for."""

    name: bytes
    parent: int
    own: int
    waited_for: int
    threads: int
    started: int
    cpu: int

    @classmethod
    def read(cls, path: str) -> Times | None:
        """None where the process is gone."""
        try:
            # The name comes first, in brackets, and may contain anything.
            before, _, after = _content(path).rpartition(b")")
            fields = after.split()
            return cls(
                before.partition(b"(")[2],
                int(fields[_PPID]),
                int(fields[_UTIME]) + int(fields[_STIME]),
                int(fields[_CUTIME]) + int(fields[_CSTIME]),
                int(fields[_THREADS]),
                int(fields[_STARTED]),
                int(fields[_PROCESSOR]),
            )
        except (OSError, ValueError, IndexError):
            return None


@dataclass(slots=True)
class _Process:
    times: Times
    threads: dict[int, tuple[int, int]]
    """Ticks and socket of each thread."""
    ours: bool
    """Whether it is the monitor, which is no part of the program."""
    loads: bool
    """Whether it loads data for another process of the program, or was started by one that does."""


@dataclass(slots=True)
class _Gone:
    """Processes that have ended, of which one is left to inherit the time."""

    ticks: int = 0
    """What was counted of it while they lived."""
    processes: int = 0
    loaded: int = 0

    @property
    def loading_part(self) -> float:
        """How much of the rest went into loading data, as far as is known: by the number of processes."""
        return self.loaded / self.processes if self.processes else 0.0

    def add(self, process: _Process) -> None:
        self.ticks += process.times.own + process.times.waited_for
        self.processes += 1
        self.loaded += process.loads


@dataclass(frozen=True, slots=True)
class Spent:
    """Clock ticks by socket between two looks: the program's, those of them that went into loading data in
    processes of its own, and the monitors' among its children."""

    program: Ticks = field(default_factory=Ticks)
    loading: Ticks = field(default_factory=Ticks)
    monitor: Ticks = field(default_factory=Ticks)


class ProcessTree:
    """A process and everything it started; :meth:`spent` says what they used since the last call."""

    def __init__(self, pid: int, socket_of: Mapping[int, int], proc: Path = Path("/proc")) -> None:
        self._root = pid
        self._proc = str(proc)
        self._socket_of = socket_of
        self._sockets = sorted(set(socket_of.values())) or [0]
        self._known: dict[int, _Process] = {}
        self._lists_children = (proc / f"{pid}/task/{pid}/children").exists()
        self._look(self._find())

    def spent(self) -> Spent:
        """Clock ticks by socket since the last call."""
        before = dict(self._known)
        self._look(self._find())
        inherited = self._counted_of_the_gone(before)
        spent = Spent(*(dict.fromkeys(self._sockets, 0.0) for _ in range(3)))
        for pid, process in self._known.items():
            earlier, gone = before.get(pid), inherited.get(pid, _Gone())
            own, reaped = _own_since(process, earlier), _reaped_since(process, earlier, gone.ticks)
            target = spent.monitor if process.ours else spent.program
            loading = own + reaped if process.loads else reaped * gone.loading_part
            for socket, part in self._by_socket(process, earlier).items():
                target[socket] += (own + reaped) * part
                spent.loading[socket] += 0.0 if process.ours else loading * part
        return spent

    def _counted_of_the_gone(self, before: Mapping[int, _Process]) -> dict[int, _Gone]:
        """What was counted of processes while they lived, by the one that is left to inherit their time:
        the parent, or where that has ended as well, the parent's."""
        inherited = dict[int, _Gone]()
        for pid, process in before.items():
            if pid in self._known:
                continue
            heir = process.times.parent
            while heir in before and heir not in self._known:
                heir = before[heir].times.parent
            inherited.setdefault(heir, _Gone()).add(process)
        return inherited

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
        before, self._known = self._known, {}
        for pid, times in found.items():
            self._known[pid] = self._process(pid, times, before)

    def _process(self, pid: int, times: Times, before: Mapping[int, _Process]) -> _Process:
        earlier = before.get(pid)
        parent = self._known.get(times.parent) or before.get(times.parent)
        loads = times.name == _LOADS or any(one is not None and one.loads for one in (earlier, parent))
        if earlier is None:
            return _Process(times, self._threads(pid), self._is_monitor(pid), loads)
        idle = times.own == earlier.times.own
        return _Process(times, earlier.threads if idle else self._threads(pid), earlier.ours, loads)

    def _threads(self, pid: int) -> dict[int, tuple[int, int]]:
        """Needed only where there are several sockets to tell apart."""
        if len(self._sockets) == 1:
            return {}
        folder = f"{self._proc}/{pid}/task"
        found = ((thread, Times.read(f"{folder}/{thread}/stat")) for thread in _numbers_in(folder))
        return {thread: (times.own, self._socket(times.cpu)) for thread, times in found if times is not None}

    def _socket(self, cpu: int) -> int:
        return self._socket_of.get(cpu, self._sockets[0])

    def _find(self) -> dict[int, Times]:
        """The root, those known already that still live, and the children of all of them."""
        everything = self._everything() if self._quicker_to_scan() else None
        by_parent = None if everything is None else _by_parent(everything)
        found, waiting = dict[int, Times](), [self._root, *self._known]
        while waiting:
            pid = waiting.pop()
            times = None if pid in found else self._times(pid, everything)
            if times is None or self._is_another(pid, times):
                continue
            found[pid] = times
            waiting += self._children(pid) if by_parent is None else by_parent.get(pid, ())
        return found

    def _times(self, pid: int, everything: Mapping[int, Times] | None) -> Times | None:
        if everything is not None and pid in everything:
            return everything[pid]
        return Times.read(f"{self._proc}/{pid}/stat")

    def _quicker_to_scan(self) -> bool:
        """The system lists the children of each thread, so a program with many threads is found sooner by
        looking at every process of the machine. Some kernels list no children at all."""
        threads = sum(process.times.threads for process in self._known.values())
        return not self._lists_children or threads > len(_numbers_in(self._proc))

    def _everything(self) -> dict[int, Times]:
        """Every process of the machine."""
        found = ((pid, Times.read(f"{self._proc}/{pid}/stat")) for pid in _numbers_in(self._proc))
        return {pid: times for pid, times in found if times is not None}

    def _is_another(self, pid: int, times: Times) -> bool:
        """Numbers of processes are used again."""
        return pid in self._known and self._known[pid].times.started != times.started

    def _children(self, pid: int) -> Iterator[int]:
        folder = f"{self._proc}/{pid}/task"
        for thread in _numbers_in(folder):
            with suppress(OSError, ValueError):
                yield from map(int, _content(f"{folder}/{thread}/children", whole=True).split())

    def _is_monitor(self, pid: int) -> bool:
        try:
            words = _content(f"{self._proc}/{pid}/cmdline", whole=True).split(b"\0")
        except OSError:
            return False
        return pid != self._root and _MONITOR in words


def _own_since(now: _Process, before: _Process | None) -> int:
    return max(now.times.own - (before.times.own if before else 0), 0)


def _reaped_since(now: _Process, before: _Process | None, counted: int) -> int:
    """What children added that have ended since, less what of theirs was counted while they lived."""
    if before is None:
        return now.times.waited_for
    return max(now.times.waited_for - before.times.waited_for - counted, 0)


def _by_parent(everything: Mapping[int, Times]) -> dict[int, list[int]]:
    children = dict[int, list[int]]()
    for pid, times in everything.items():
        children.setdefault(times.parent, []).append(pid)
    return children


def _numbers_in(folder: str) -> Sequence[int]:
    """The entries of a folder that are numbers; none where it is gone."""
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 - hundreds a look
    except OSError:
        return ()


def _content(path: str, whole: bool = False) -> bytes:
    """Of a small file: the way round pathlib and buffers takes a third of the time."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return (
            b"".join(iter(lambda: os.read(handle, 1 << 16), b"")) if whole else os.read(handle, _LONGEST_STAT)
        )
    finally:
        os.close(handle)
