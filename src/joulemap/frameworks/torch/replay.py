"""Operations by themselves: built again from their signatures and executed back to back on the same device.

A program of its own, run while the meters are read::

    python -m joulemap.frameworks.torch.replay PLAN.json RESULT.jsonl

The plan names the device, the operations and how long to spend; every pass over an operation is a line of
the result, as is every operation that could not be replayed, with the reason.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch import flags

COPIES = 64
CACHE_TIMES = 3
"""Operands are taken in turn from copies that together are so many times the size of the GPU's cache, so that
none is still there from the time before."""
MEMORY_SHARE = 0.25
"""What the copies may take of the device's free memory."""
WARM_UP_S = 0.1
AT_ONCE_S = 0.2
"""So much is launched before the device is waited for: the wait is lost in it, and the end comes in time."""
IN_A_GRAPH = 200
"""Executions in one CUDA graph at most: few launches keep a GPU busy then, however short the operation."""
_TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "unsigned short": "uint16",
}
_KEEPS_ITS_VALUES = ("mul_", "div_", "_foreach_mul_", "_foreach_div_")
"""In place, over and over, these would run into zero or infinity, which draw less: they are given one instead
of their factor."""


class NotRebuilt(Exception):
    """An operation cannot be called from what is known of it."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation as it was called; see ``joulemap.calibration.operation``."""

    key: str
    op: str
    shapes: Sequence[Any]
    strides: Sequence[Any]
    types: Sequence[str]
    scalars: Sequence[Any]

    @classmethod
    def of(cls, key: str) -> Call:
        op, *columns = json.loads(key)
        return cls(key, op, *(json.loads(one) if one else [] for one in columns))


def rebuilt(call: Call, device: Any) -> Callable[[], Any]:
    """The call with operands of its own, made anew."""
    arguments = [_argument(call, place, device) for place in range(len(call.types))]
    if call.op.rpartition("::")[2] in _KEEPS_ITS_VALUES:
        arguments = [1.0 if isinstance(one, float) else one for one in arguments]
    problems = []
    for overload in _overloads(call.op):
        positional, named = _as_declared(overload, arguments)
        try:
            overload(*positional, **named)
        except (RuntimeError, TypeError, IndexError) as error:
            problems.append(in_a_line(error))
            continue
        return lambda: overload(*positional, **named)
    raise NotRebuilt(problems[0] if problems else f"torch has no {call.op} with {len(arguments)} arguments")


def _overloads(op: str) -> list[Any]:
    """What an operation's name may stand for: the profiler does not say which. The plain ones first, those
    that write into a given output last."""
    import torch

    space, _, name = op.rpartition("::")
    try:
        packet = getattr(getattr(torch.ops, space or "aten"), name)
    except (AttributeError, RuntimeError) as error:
        raise NotRebuilt(f"torch has no operation {op}") from error
    return [getattr(packet, one) for one in sorted(packet.overloads(), key=lambda one: "out" in one)]


def _as_declared(overload: Any, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position, and those that are by name only. What was not given has its default."""
    positional, named = [], {}
    for declared, value in zip(overload._schema.arguments, arguments, strict=False):
        if declared.kwarg_only:
            named[declared.name] = value
        else:
            positional.append(value)
    return positional, {name: value for name, value in named.items() if value is not None}


def _argument(call: Call, place: int, device: Any) -> Any:
    kind = call.types[place]
    shape = call.shapes[place] if place < len(call.shapes) else []
    stride = call.strides[place] if place < len(call.strides) else []
    if kind in _TYPES:
        return _tensor(shape, stride, kind, _rows(call), device)
    if kind == "TensorList":
        return [
            _tensor(one, stride[number] if number < len(stride) else [], "float", _rows(call), device)
            for number, one in enumerate(shape)
        ]
    if kind in ("Scalar", "ScalarList", ""):
        return call.scalars[place] if place < len(call.scalars) else None
    raise NotRebuilt(f"it takes {kind!r}, which cannot be made up")


def _rows(call: Call) -> int:
    """The length of the shortest table that indices may go into."""
    tables = [
        shape[0]
        for shape, kind in zip(call.shapes, call.types, strict=False)
        if kind in ("float", "double", "c10::Half", "c10::BFloat16") and shape and isinstance(shape[0], int)
    ]
    return max(min(tables, default=2), 1)


def _tensor(shape: Sequence[int], stride: Sequence[int], kind: str, rows: int, device: Any) -> Any:
    """Values as a program has them: a normal distribution, and indices that point somewhere."""
    import torch

    dtype = getattr(torch, _TYPES[kind])
    strided = len(stride) == len(shape) and 0 not in shape
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if strided else 0
    memory = torch.empty([reach] if strided else shape, dtype=dtype, device=device)
    if dtype == torch.bool:
        memory.random_(0, 2)
    elif dtype.is_floating_point:
        memory.normal_()
    else:
        memory.random_(0, rows)
    return memory.as_strided(shape, stride) if strided else memory


class Replayer:
    """One operation, ready to be executed so many times."""

    def __init__(self, call: Call, device: Any) -> None:
        import torch

        self._device = device
        self._cuda = device.type == "cuda"
        self._copies = self._made(call)
        self._graph: Any = None
        with torch.no_grad():
            self._copies[0]()
        self._wait()
        self.in_one = 1
        if self._cuda:
            self._capture()

    def _made(self, call: Call) -> list[Callable[[], Any]]:
        """As many copies of the operands as it takes to leave the cache, within bounds."""
        import torch

        if not self._cuda:
            return [rebuilt(call, self._device)]
        before = torch.cuda.memory_allocated(self._device)
        copies = [rebuilt(call, self._device)]
        size = max(torch.cuda.memory_allocated(self._device) - before, 1)
        cache = torch.cuda.get_device_properties(self._device).L2_cache_size
        free, _ = torch.cuda.mem_get_info(self._device)
        wanted = min(-(-CACHE_TIMES * cache // size), COPIES, int(MEMORY_SHARE * free) // size)
        return copies + [rebuilt(call, self._device) for _ in range(wanted - 1)]

    def _capture(self) -> None:
        """Into a CUDA graph; one that cannot be captured is launched from Python."""
        import torch

        stream = torch.cuda.Stream(self._device)
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                for copy in self._copies:
                    copy()
                graph = torch.cuda.CUDAGraph()
                times = max(IN_A_GRAPH // len(self._copies), 1) * len(self._copies)
                with torch.cuda.graph(graph, stream=stream):
                    for number in range(times):
                        self._copies[number % len(self._copies)]()
        except RuntimeError:
            torch.cuda.synchronize(self._device)
            return
        self._graph, self.in_one = graph, times

    def run(self, seconds: float) -> tuple[int, int, int]:
        """Execute for so long, however much slower or faster than the warm-up said: start and end (epoch ns),
        and how often."""
        import torch

        with torch.no_grad():
            self._wait()
            each_s = self._burst(self._once, WARM_UP_S)
            start_ns, until_s, count = time.time_ns(), time.monotonic() + seconds, 0
            while (left_s := until_s - time.monotonic()) > 0:
                many = max(round(min(left_s, AT_ONCE_S) / each_s), 1)
                for _ in range(many):
                    self._once()
                self._wait()
                count += many
            return start_ns, time.time_ns(), count * self.in_one

    def _once(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        copy = self._copies.pop(0)
        self._copies.append(copy)
        copy()

    def _burst(self, once: Callable[[], None], seconds: float) -> float:
        """Warm up, and how long one launch takes when many are under way."""
        count, took_s = 1, 0.0
        while took_s < seconds:
            begin_s = time.perf_counter()
            for _ in range(count):
                once()
            self._wait()
            took_s = time.perf_counter() - begin_s
            each_s = took_s / count
            count = max(2 * count, round(seconds / max(each_s, 1e-9)) + 1)
        return each_s

    def _wait(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize(self._device)


def replays(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every operation ``passes`` times in turn, so that a drift shows as spread; and idle between two."""
    import torch

    device = torch.device(plan["device"])
    flags.put(plan.get("flags", {}))
    skipped: set[str] = set()
    for number in range(plan["passes"]):
        for key in plan["operations"]:
            if key in skipped:
                continue
            said = _replay(key, device, plan["seconds"])
            if "skipped" in said:
                skipped.add(key)
            yield said
        if number == plan["passes"] - 1 or number == 0:
            start_ns = time.time_ns()
            time.sleep(plan["idle_s"])
            yield {"key": "", "start_ns": start_ns, "end_ns": time.time_ns(), "executions": 1}


def _replay(key: str, device: Any, seconds: float) -> dict[str, Any]:
    """One pass over an operation, or why there is none."""
    try:
        start_ns, end_ns, executions = Replayer(Call.of(key), device).run(seconds)
    except Exception as error:  # noqa: BLE001 - whatever cannot be replayed is left out by name
        return {"key": key, "skipped": in_a_line(error)}
    return {"key": key, "start_ns": start_ns, "end_ns": end_ns, "executions": executions}


def in_a_line(error: Exception) -> str:
    """An error as a reason: what it is, and the first line of what it says, if it says anything."""
    first = next(iter(str(error).splitlines()), "")[:200]
    return ": ".join(filter(None, (type(error).__name__, first)))


def main(plan: str, result: str) -> None:
    """Replay a plan; every line of the result is there as soon as it is known."""
    with Path(result).open("w") as file:
        for line in replays(json.loads(Path(plan).read_text())):
            print(json.dumps(line), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
