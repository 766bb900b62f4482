"""Operations by themselves: built again from their signatures and executed back to back on the same device.

A program of its own, run while the meters are read::

    python -m joulemap.frameworks.torch.replay PLAN.json RESULT.jsonl

The plan (``joulemap.replaying``) names the device, the operations and how long to spend; every pass over an
operation is a line of the result, as is every operation that could not be replayed, with the reason.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch import flags
from joulemap.frameworks.torch.launched import PREFIX, launcher
from joulemap.frameworks.torch.rebuild import Call, in_a_line, rebuilt
from joulemap.frameworks.torch.rotation import copies

WARM_UP_S = 0.1
MAKING_S = 0.5
"""So long are operands made for one operation: each set is tried, and one that takes long needs no turns."""
AT_ONCE_S, BETWEEN_RESTS_S = 0.2, 0.005
"""So much is launched before the device is waited for: the wait is lost in it, and the end comes in time.
Where it rests, it does so every few milliseconds, as in a program: clocks follow the power of some more."""
IN_A_GRAPH, GRAPH_S = 200, 0.02
"""Executions in one CUDA graph at most, and about how long they take together: few launches keep a GPU busy
then, however short the operation."""
NO_GRAPH_S = 0.001
"""What takes so long by itself keeps it busy without."""


class Replayer:
    """One operation, ready to be executed so many times."""

    def __init__(self, call: Call, device: Any) -> None:
        import torch

        self._device = device
        self._cuda = device.type == "cuda"
        self.copies = self._made(call)
        self._graph: Any = None
        self.in_one = 1
        with torch.no_grad():
            self.copies[0]()
            each_s = self._burst(self.copies[0], 0.0)
        if self._cuda and each_s < NO_GRAPH_S:
            self._capture(in_a_graph(each_s, len(self.copies)))

    def _made(self, call: Call) -> list[Callable[[], Any]]:
        """The operation with as many operands as it takes to leave the cache, within bounds."""
        generated = call.op.startswith(PREFIX)
        made = launcher(call) if generated else partial(rebuilt, call, self._device)
        until_s = time.monotonic() + MAKING_S
        found = [made()]
        for _ in range(copies(found[0], self._device) - 1):
            if time.monotonic() > until_s:
                break
            found.append(made())
        return found

    def _capture(self, times: int) -> None:
        """Into a CUDA graph, so many times; what cannot be captured is launched from Python."""
        import torch

        stream = torch.cuda.Stream(self._device)
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                for copy in self.copies:
                    copy()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for number in range(times):
                        self.copies[number % len(self.copies)]()
        except RuntimeError:
            torch.cuda.synchronize(self._device)
            return
        self._graph, self.in_one = graph, times

    def run(self, seconds: float, busy: float = 1.0) -> dict[str, Any]:
        """Execute for so long, however much slower or faster than the warm-up said, ``busy`` a part of the
        time: start and end (epoch ns), how often, and how long it rested."""
        import torch

        with torch.no_grad():
            self._wait()
            each_s = self._burst(self._once, WARM_UP_S)
            at_once_s = AT_ONCE_S if busy >= 1 else BETWEEN_RESTS_S
            start_ns, begin_s, count, rested_s = time.time_ns(), time.monotonic(), 0, 0.0
            while (left_s := begin_s + seconds - time.monotonic()) > 0:
                many = max(round(min(left_s, at_once_s) / each_s), 1)
                worked_s = self._work(many)
                count += many
                if busy < 1:
                    rested_s += _rest(worked_s * (1 / busy - 1))
            executions = count * self.in_one
            return {
                "start_ns": start_ns,
                "end_ns": time.time_ns(),
                "executions": executions,
                "rested_s": rested_s,
            }

    def _work(self, many: int) -> float:
        """Execute, and how long that took."""
        begin_s = time.monotonic()
        for _ in range(many):
            self._once()
        self._wait()
        return time.monotonic() - begin_s

    def _once(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        copy = self.copies.pop(0)
        self.copies.append(copy)
        copy()

    def _burst(self, once: Callable[[], None], seconds: float) -> float:
        """Warm up, and how long one launch takes when many are under way."""
        self._wait()
        count = 1
        while True:
            begin_s = time.perf_counter()
            for _ in range(count):
                once()
            self._wait()
            took_s = time.perf_counter() - begin_s
            each_s = took_s / count
            if took_s >= seconds:
                return each_s
            count = max(2 * count, round(seconds / max(each_s, 1e-9)) + 1)

    def _wait(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize(self._device)


def _rest(seconds: float) -> float:
    """Do nothing, and how long that was."""
    begin_s = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - begin_s


def in_a_graph(each_s: float, sets: int) -> int:
    """How many executions of so long go into one graph, so that every set of operands has as many turns."""
    many = min(IN_A_GRAPH, round(GRAPH_S / max(each_s, 1e-9)))
    return max(many // sets, 1) * sets


def replays(
    plan: Mapping[str, Any], clock_s: Callable[[], float] = time.monotonic
) -> Iterator[dict[str, Any]]:
    """What the budget buys, most busy time first: every operation ``passes`` times, all others in between, so
    that a drift shows as spread, and idle after each time. One is replayed in any case."""
    import torch

    device = torch.device(plan["device"])
    flags.put(plan["flags"])
    _works(device)  # a GPU's context takes seconds, which replay nothing
    begin_s = clock_s()
    each_s = plan["budget_s"] / plan["passes"] - plan["idle_s"]
    chosen: list[str] = []
    covered = plan["known"]
    for key, share in plan["shares"]:
        if covered >= plan["enough"] or (chosen and clock_s() - begin_s > each_s - plan["seconds"]):
            break
        said = _replay(key, device, plan["seconds"], plan["busy"])
        yield said
        if "skipped" not in said:
            chosen.append(key)
            covered += share
        elif not _works(device):
            return
    yield _idle(plan["idle_s"])
    for _ in range(1, plan["passes"]):
        for key in chosen:
            if clock_s() - begin_s <= plan["budget_s"] - plan["idle_s"]:
                yield _replay(key, device, plan["seconds"], plan["busy"])
        yield _idle(plan["idle_s"])


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


def _idle(seconds: float) -> dict[str, Any]:
    start_ns = time.time_ns()
    time.sleep(seconds)
    return {"key": "", "start_ns": start_ns, "end_ns": time.time_ns(), "executions": 1}


def _replay(key: str, device: Any, seconds: float, busy: float) -> dict[str, Any]:
    """One pass over an operation, or why there is none."""
    begin_ns = time.time_ns()
    try:
        return {"key": key, **Replayer(Call.of(key), device).run(seconds, busy)}
    except Exception as error:  # noqa: BLE001 - whatever cannot be replayed is left out by name
        return {"key": key, "start_ns": begin_ns, "end_ns": time.time_ns(), "skipped": in_a_line(error)}


def main(plan: str, result: str) -> None:
    """Replay a plan; every line of the result is there as soon as it is known. Inductor must not compile in
    processes of its own meanwhile, which would draw power."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with Path(result).open("w") as file:
        for line in replays(json.loads(Path(plan).read_text())):
            print(json.dumps(line), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
