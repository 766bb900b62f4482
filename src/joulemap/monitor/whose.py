"""Whose energy: the program's part of the busy time of each socket.

A socket's energy belongs to every process on it. The program's share is the processor time of its process
tree on the socket over all busy time there; what processes of it used which load data is known apart. The
monitor's own time is busy time but never the program's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from joulemap.devices import Device, Domain
from joulemap.monitor.processtree import ProcessTree, Ticks
from joulemap.processes import ProcessShares

MOST_OF_A_CORE = 0.01
"""What looking may cost in the long run: a tree of hundreds of processes is looked at less often."""

AT_ONCE_NS = 100_000_000
"""What it may cost beforehand, so that short programs are looked at as well."""

_IDLE, _IOWAIT, _STEAL = 3, 4, 7
_GUEST = 8  # guests are counted as user time already


class Whose:
    """Looks at ``/proc`` when asked, and says whose the energy was since it was last asked."""

    def __init__(
        self,
        pid: int,
        domains: Sequence[Domain],
        now_ns: int,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
    ) -> None:
        self._domains = [domain for domain in domains if Device.parse(domain.device).kind == "CPU"]
        self._proc = proc
        self._socket_of = sockets(sys)
        self._tree = ProcessTree(pid, self._socket_of, proc)
        self._busy = self._busy_ticks()
        self._start_ns = self._edge_ns = now_ns
        self._looked_ns = 0
        self._shares = {domain.name: (0.0, 0.0) for domain in self._domains}
        self.monitor_share = 0.0
        """The monitors' own part of all busy time, when last asked."""

    def shares(self, now_ns: int) -> list[ProcessShares]:
        """A part for each CPU domain, from the last one to now; none where it is too soon. Parts chain."""
        allowed_ns = AT_ONCE_NS + (now_ns - self._start_ns) * MOST_OF_A_CORE
        if now_ns <= self._edge_ns or self._looked_ns > allowed_ns or not self._domains:
            return []
        begin_ns = time.thread_time_ns()
        used, busy = self._tree.spent(), self._busy_ticks()
        self._looked_ns += time.thread_time_ns() - begin_ns
        spent = {socket: ticks - self._busy.get(socket, 0.0) for socket, ticks in busy.items()}
        total = {s: max(spent.get(s, 0.0), used.program[s] + used.monitor[s]) for s in used.program}
        for domain in self._domains:
            socket = Device.parse(domain.device).index
            share, loading = _share(used.program, total, socket), _share(used.loading, total, socket)
            if share is not None and loading is not None:
                self._shares[domain.name] = share, loading
        self.monitor_share = _share(used.monitor, total, None) or 0.0
        edges_ns, self._edge_ns, self._busy = [self._edge_ns, now_ns], now_ns, busy
        return [
            ProcessShares.from_columns(name, edges_ns, [share], [loading])
            for name, (share, loading) in self._shares.items()
        ]

    def _busy_ticks(self) -> Ticks:
        """All busy time since boot, by socket: neither idle, nor waiting, nor stolen by a hypervisor."""
        busy = Ticks()
        with suppress(OSError, ValueError):
            for line in (self._proc / "stat").read_bytes().splitlines():
                name, *fields = line.split()
                if not name.startswith(b"cpu"):
                    break
                if name != b"cpu":
                    socket = self._socket_of.get(int(name[3:]), 0)
                    busy[socket] = busy.get(socket, 0.0) + _busy_of([int(field) for field in fields])
        return busy


def _busy_of(ticks: Sequence[int]) -> int:
    return sum(value for i, value in enumerate(ticks[:_GUEST]) if i not in (_IDLE, _IOWAIT, _STEAL))


def _share(part: Mapping[int, float], total: Mapping[int, float], socket: int | None) -> float | None:
    """Of one socket, or of all where it is not known which; None where nothing was busy."""
    chosen = [socket] if socket in total else list(total)
    whole = sum(total[s] for s in chosen if s is not None)
    return sum(part[s] for s in chosen if s is not None) / whole if whole > 0 else None


def sockets(sys: Path = Path("/sys")) -> dict[int, int]:
    """The socket of each processor; one socket where the system does not say."""
    found = dict[int, int]()
    for path in (sys / "devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id"):
        with suppress(OSError, ValueError):
            found[int(path.parts[-3][3:])] = max(int(path.read_text()), 0)
    return found or dict.fromkeys(range(os.cpu_count() or 1), 0)
