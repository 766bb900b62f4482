"""One operation, built again from its signature and ready to be executed over and over on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from joulemap.frameworks.torch.call import Call
from joulemap.frameworks.torch.clock import idle
from joulemap.frameworks.torch.launched import is_generated, launcher
from joulemap.frameworks.torch.operands import with_choice, with_ones
from joulemap.frameworks.torch.rebuild import rebuilt
from joulemap.frameworks.torch.rotation import copies, with_warm
from joulemap.frameworks.torch.values import fill_in

WARM_UP_S = 0.1
MAKING_S = 0.5
"""So long are operands made for one operation: each set is tried, and one that takes long needs no turns."""
IN_A_GRAPH, GRAPH_S = 200, 0.02
"""Executions in one CUDA graph at most, and about how long they take together: few launches keep a GPU busy
then, however short the operation."""
WAIT_S, WAITS = 0.00025, 200
"""How long a GPU waits at a time, and how often until it is known how long that is."""
NO_GRAPH_S = 0.001
"""What takes so long by itself keeps it busy without."""


class Turn(Protocol):
    """What is launched over and over; all that is in one launch are ``in_one`` executions."""

    in_one: int

    def launch_s(self) -> float: ...
    def once(self) -> None: ...


class Wait:
    """A GPU that does nothing for a while: ``took_s``, as it was last found."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.in_one = 1
        self.took_s = WAIT_S

    def launch_s(self) -> float:
        """How long one takes when many follow each other."""
        _wait(self._device)
        begin_s = time.perf_counter()
        for _ in range(WAITS):
            self.once()
        _wait(self._device)
        self.took_s = (time.perf_counter() - begin_s) / WAITS
        return self.took_s

    def once(self) -> None:
        """Launch it, and go on."""
        idle(WAIT_S, self._device)


class Replayer:
    """One operation, ready to be executed so many times."""

    def __init__(self, call: Call, device: Any, held: Sequence[bytes] = (), graph_s: float = GRAPH_S) -> None:
        import torch

        self._device = device
        self._cuda = device.type == "cuda"
        self.copies = self._made(call, held)
        self._graph: Any = None
        self.in_one = 1
        with torch.no_grad():
            self.copies[0]()
            each_s = self._burst(self.copies[0], 0.0)
        if self._cuda and each_s < NO_GRAPH_S:
            self._capture(in_a_graph(each_s, len(self.copies), graph_s))

    def _made(self, call: Call, held: Sequence[bytes]) -> list[Callable[[], Any]]:
        """The operation with as many operands as it takes to leave the cache, within bounds; those that a
        program has there stay there. They hold what the program's do, as far as that was seen."""
        with_held = partial(fill_in, held=held)
        own = is_generated(call)
        made = launcher(call, with_held) if own else partial(_filled, call, self._device, held)
        until_s = time.monotonic() + MAKING_S
        found = [made()]
        for _ in range(copies(found[0], self._device, call.cold) - 1):
            if time.monotonic() > until_s:
                break
            found.append(with_warm(made(), found[0], call.cold))
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

    def launch_s(self) -> float:
        """How long one launch takes once it is warm; all that is in it are ``in_one`` executions."""
        return self._burst(self.once, WARM_UP_S)

    def once(self) -> None:
        """Launch it, and go on."""
        if self._graph is not None:
            self._graph.replay()
            return
        copy = self.copies.pop(0)
        self.copies.append(copy)
        copy()

    def _burst(self, once: Callable[[], None], seconds: float) -> float:
        """Warm up, and how long one launch takes when many are under way."""
        _wait(self._device)
        count = 1
        while True:
            begin_s = time.perf_counter()
            for _ in range(count):
                once()
            _wait(self._device)
            took_s = time.perf_counter() - begin_s
            each_s = took_s / count
            if took_s >= seconds:
                return each_s
            count = max(2 * count, round(seconds / max(each_s, 1e-9)) + 1)


def _filled(call: Call, device: Any, held: Sequence[bytes]) -> Callable[[], Any]:
    made = rebuilt(call, device)
    fill_in(made, held)
    with_choice(call, made)
    with_ones(call, made)
    return made


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def in_a_graph(each_s: float, sets: int, graph_s: float = GRAPH_S) -> int:
    """How many executions of so long go into one graph, so that every set of operands has as many turns."""
    many = min(IN_A_GRAPH, round(graph_s / max(each_s, 1e-9)))
    return max(many // sets, 1) * sets
