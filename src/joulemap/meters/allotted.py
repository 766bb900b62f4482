"""What part of a machine a container or a service may use: its control group's limits.

A container with two of 64 cores sees all 64 in ``/proc``. What the other 62 draw while they idle is not its
own. Limits add up from the process's own group to the root; the tightest counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from joulemap.meters.perf import parse_cpus
from joulemap.meters.sysfs import text_of


def allotted_cpus(cpus: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> float:
    """How many of the machine's CPUs may be used at once: a quota need not be a whole number."""
    limits = [float(cpus)]
    for group in _groups("cpu", proc, sys):
        limits += _quota((text_of(group / "cpu.max") or "").split())
        quota = text_of(group / "cpu.cfs_quota_us"), text_of(group / "cpu.cfs_period_us")
        limits += _quota([text or "" for text in quota])
    for group in _groups("cpuset", proc, sys):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            text = text_of(group / name)
            limits += [float(len(parse_cpus(text)))] if text else []
    return min(limits)


def allotted_bytes(total: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """How much of the machine's memory may be used."""
    limits = [total]
    for group in _groups("memory", proc, sys):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = text_of(group / name) or ""
            limits += [int(text)] if text.isdecimal() and int(text) > 0 else []
    return min(limits)


def _quota(words: list[str]) -> list[float]:
    """Microseconds of CPU time in a period of so many; ``max`` and -1 are no limit."""
    if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        return []
    return [int(words[0]) / int(words[1])]


def _groups(controller: str, proc: Path, sys: Path) -> Iterator[Path]:
    """The folders of this process's group and of those above it, in both versions of control groups. In a
    container the group's name may be the host's, where only the root of the tree is there to be read."""
    mount = sys / "fs" / "cgroup"
    for line in (text_of(proc / "self" / "cgroup") or "0::/").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0":
            tops = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            tops = [mount / controller]
        else:
            continue
        for top in tops:
            inside = Path(name.lstrip("/"))
            yield from (top / part for part in (inside, *inside.parents))
