"""Operations by themselves: built again from their signatures and executed back to back on the same device.

A program of its own, run while the meters are read::

    python -m joulemap.frameworks.torch.replay PLAN.json RESULT.jsonl

The plan (``joulemap.replaying``) names the device, the operations and how long to spend; every pass over an
operation is a line of the result, as is every operation that could not be replayed, with the reason. Marks of
a pass say how often it was executed by when, and at which clocks (MHz, 0 where they are not known). On a CPU,
which others use, too, readings say how much processor time it and they had (``spent``).

What draws all that a GPU may lowers its clocks, and each execution gets slower and cheaper. What it takes at
the highest ones is seen when it is executed with waits in between, every millisecond or so.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from joulemap.frameworks.torch import flags
from joulemap.frameworks.torch.call import Call, in_a_line
from joulemap.frameworks.torch.clock import clock_mhz
from joulemap.frameworks.torch.flags import GPUS
from joulemap.frameworks.torch.gpus import which
from joulemap.frameworks.torch.replayer import Replayer, Turn, Wait
from joulemap.frameworks.torch.spent import spent

LONGEST_S = 0.8
"""Until an operation is measured: clocks are level before, or so long are they waited for."""
LEVEL, LEVEL_FOR = 0.01, 4
"""Clocks are level when so many looks in a row agree."""
AT_ONCE_S = 0.05
"""So much is launched before the device is waited for: the wait is lost in it, and the end comes in time."""
TURN_S = 0.001
"""How long an operation runs before a wait, and how long that is, if one execution takes no longer: short
against any meter's period, and against the time in which clocks change. An H200's meter looks for a part of
its period, and with turns of 3 ms it told of five operations the same to 1.9 %, with these to 0.7 %."""
LIMITED = 0.97
"""Clocks so much below the highest ones were lowered for power."""
AGAIN = 2
"""As often is replayed what there is time for."""
FREE_S = 0.2
"""How long a GPU does nothing but wait, to see the clocks that nothing lowers."""
EASED_S = 0.6
"""How long an operation is executed with waits, at least."""


def executed(some: Sequence[Turn], seconds: float, device: Any) -> dict[str, Any]:
    """Execute for so long, however much slower or faster than the warm-up said; several operations take
    turns. Start and end (epoch ns), how often each, and marks: time, how often each by then, and clocks; and
    processor time at each."""
    import torch

    on_gpu = device.type == "cuda"
    with torch.no_grad():
        launches_s = [one.launch_s() for one in some]
        turn_s = AT_ONCE_S if len(some) == 1 else max(TURN_S, *launches_s)
        turns = [max(round(turn_s / each_s), 1) for each_s in launches_s]
        takes_s = sum(many * each_s for many, each_s in zip(turns, launches_s, strict=True))
        counts = [0] * len(some)

        def burst(at_most_s: float) -> list[float]:
            for _ in range(max(round(at_most_s / takes_s), 1)):
                for number, (one, many) in enumerate(zip(some, turns, strict=True)):
                    for _ in range(many):
                        one.once()
                    counts[number] += many * one.in_one
            mhz = clock_mhz() if on_gpu else 0.0
            return [time.time_ns(), *counts, mhz]

        if on_gpu:
            _settle(burst, min(seconds, LONGEST_S))
        before, readings, begin_s = list(counts), spent(device), time.monotonic()
        marks = [[time.time_ns(), *counts, 0.0]]
        while (left_s := begin_s + seconds - time.monotonic()) > 0:
            marks.append(burst(min(left_s, AT_ONCE_S)))
            readings += spent(device)
    many = [after - earlier for earlier, after in zip(before, counts, strict=True)]
    span = {"start_ns": marks[0][0], "end_ns": marks[-1][0]}
    return {**span, "executions": many, "marks": marks, "spent": readings}


def _settle(burst: Callable[[float], list[float]], at_most_s: float) -> None:
    """Until clocks are level; what lowers them has them go up and down for a while."""
    until_s, seen = time.monotonic() + at_most_s, []
    while time.monotonic() < until_s:
        seen.append(burst(AT_ONCE_S)[-1])
        last = seen[-LEVEL_FOR:]
        if len(last) == LEVEL_FOR and min(last) >= (1 - LEVEL) * max(last) > 0:
            return


def replays(
    plan: Mapping[str, Any], clock_s: Callable[[], float] = time.monotonic
) -> Iterator[dict[str, Any]]:
    """What the budget buys, most busy time first, until enough of it is and the next one takes little: every
    operation ``passes`` times, all others in between, so that a drift shows as spread, and idle after each
    time. One is replayed in any case; and where there is time for one pass, the largest are replayed again in
    what is left; first those that were replayed once before (``refined``)."""
    import torch

    device = torch.device(plan["device"])
    flags.put(plan["flags"], device.type)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _works(device)  # a GPU's context takes seconds, which replay nothing
    other = plan["flags"].get(GPUS, {}).get(str(device), which(device))
    if other != which(device):
        yield from _all_skipped(plan, device, f"it ran on another GPU than this one, {other}")
        return
    yield from _bought(plan, device, clock_s)


def _all_skipped(plan: Mapping[str, Any], device: Any, why: str) -> Iterator[dict[str, Any]]:
    now_ns = time.time_ns()
    for key, _ in plan["shares"]:
        yield {"key": key, "start_ns": now_ns, "end_ns": now_ns, "skipped": why}
    yield _idle(plan["idle_s"], device)


def _bought(plan: Mapping[str, Any], device: Any, clock_s: Callable[[], float]) -> Iterator[dict[str, Any]]:
    begin_s = clock_s()
    chosen: list[str] = []
    clocks_mhz: dict[str, float] = {}
    covered = plan["known"]
    values: Mapping[str, Sequence[bytes]] = plan["values"]
    for key, share in plan["shares"]:
        enough = covered >= plan["enough"] and share < plan["worth"]
        if enough or (chosen and clock_s() - begin_s > plan["first_s"] - plan["seconds"]):
            break
        said = _replay(key, device, plan["seconds"], values.get(key, ()))
        yield said
        if "skipped" not in said:
            chosen.append(key)
            clocks_mhz[key] = median([mhz for *_, mhz in said["marks"] if mhz > 0] or [0.0])
            covered += share
        elif not _works(device):
            return
    yield _idle(plan["idle_s"], device)
    limited = _limited(clocks_mhz, _free_mhz(device), dict(plan["shares"]))
    yield from _eased(limited, device, plan["seconds"], plan["eased_s"], values)
    until_s = begin_s + plan["budget_s"] - plan["idle_s"]
    again = [*plan["refined"], *chosen]
    for _ in range(1, max(plan["passes"], AGAIN)):
        if not again or clock_s() > until_s:
            return
        for key in again:
            if clock_s() <= until_s:
                yield _replay(key, device, plan["seconds"], values.get(key, ()))
        yield _idle(plan["idle_s"], device)


def _works(device: Any) -> bool:
    """Whether the device can be used at all: after an error inside a CUDA kernel a process cannot."""
    import torch

    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _idle(seconds: float, device: Any) -> dict[str, Any]:
    start_ns, readings = time.time_ns(), spent(device)
    time.sleep(seconds)
    readings += spent(device)
    return {"key": "", "start_ns": start_ns, "end_ns": time.time_ns(), "executions": 1, "spent": readings}


def _replay(key: str, device: Any, seconds: float, held: Sequence[bytes]) -> dict[str, Any]:
    """One pass over an operation, or why there is none."""
    begin_ns, building = time.time_ns(), spent(device)
    try:
        said = executed([Replayer(Call.of(key), device, held)], seconds, device)
        readings = [*building, *said["spent"]]
        return {"key": key, **said, "executions": said["executions"][0], "spent": readings}
    except Exception as error:  # noqa: BLE001 - whatever cannot be replayed is left out by name
        return {"key": key, "start_ns": begin_ns, "end_ns": time.time_ns(), "skipped": in_a_line(error)}


def _free_mhz(device: Any) -> float:
    """The clocks of a GPU that does next to nothing; 0 where there is none."""
    if device.type != "cuda":
        return 0.0
    wait = Wait(device)
    return float(max(mhz for *_, mhz in executed([wait, wait], FREE_S, device)["marks"]))


def _limited(clocks_mhz: Mapping[str, float], free_mhz: float, shares: Mapping[str, float]) -> list[str]:
    """Operations that lower clocks, first those with most time at the lowest ones: how much more they take at
    the highest is known least, and counts most."""
    highest_mhz = max([*clocks_mhz.values(), free_mhz])
    lower = {key: 1 - mhz / highest_mhz for key, mhz in clocks_mhz.items() if 0 < mhz < LIMITED * highest_mhz}
    return sorted(lower, key=lambda key: shares.get(key, 0.0) * lower[key], reverse=True)


def _eased(
    limited: Sequence[str],
    device: Any,
    seconds: float,
    within_s: float,
    values: Mapping[str, Sequence[bytes]],
) -> Iterator[dict[str, Any]]:
    """Operations with waits in between; at least one, where there is any."""
    until_s = time.monotonic() + within_s
    for key in limited:
        try:
            wait = Wait(device)
            both: list[Turn] = [Replayer(Call.of(key), device, values.get(key, ()), TURN_S), wait]
            yield {"eased": key, **executed(both, max(seconds, EASED_S), device), "wait_s": wait.took_s}
        except RuntimeError:  # there was memory for it, but others use it by now
            continue
        if time.monotonic() + EASED_S > until_s:
            return


def main(plan: str, result: str) -> None:
    """Replay a plan; every line of the result is there as soon as it is known. Inductor must not compile in
    processes of its own meanwhile, which would draw power."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    asked = json.loads(Path(plan).read_text())
    asked["values"] = _held(asked["values"], Path(asked["held"]).read_bytes())
    with Path(result).open("w") as file:
        for line in replays(asked):
            print(json.dumps(line), file=file, flush=True)


def _held(sizes: Sequence[tuple[str, Sequence[int]]], whole: bytes) -> dict[str, list[bytes]]:
    """What operands are to hold, by the key of the operation: it lies one after the other."""
    found: dict[str, list[bytes]] = {}
    begin = 0
    for key, each in sizes:
        ends = list(accumulate(each, initial=begin))
        found[key] = [whole[start:end] for start, end in pairwise(ends)]
        begin = ends[-1]
    return found


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # who waits for it says so, without a traceback
    main(*sys.argv[1:])
