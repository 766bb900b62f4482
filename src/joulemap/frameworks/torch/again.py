"""Executing something again in place: what all do who repeat targets of an experiment.

The program gets the result of its own execution; of the others each is thrown away before the next is made.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from joulemap.frameworks.torch.clock import idle
from joulemap.frameworks.torch.rotation import (
    cache_bytes,
    copied,
    counted,
    free_bytes,
    size_of,
    tensors_in,
    wanted,
    with_tensors,
)
from joulemap.frameworks.watch import from_a_signal

KINDS = 8
"""Of one target, calls with operands of other sizes have copies of their own; further ones have none."""


class Refused(Exception):
    """An operation, or one call of it, must not be executed again; the text says why."""


class Thread(threading.local):
    """Whether this thread executes a target: what that calls in turn is a part of it. Where it calls a module
    ``again``, operations in that are no targets, and the GPU waits after them as it does after others."""

    inside = False
    again = False


def device_of(first: Any) -> Any:
    """Where a call is computed: where the first of its arguments is."""
    while isinstance(first, (list, tuple)):
        first = first[0] if first else None
    return getattr(first, "device", None)


class Turns:
    """Calls with copies of operands that come from memory in the program: the ones that it was called with
    are in the cache by now. As many take turns as it takes to leave that, within bounds; indices are never
    another call's."""

    def __init__(self, cold: Mapping[Any, str]) -> None:
        self._cold = cold
        self._copies: dict[Any, list[list[Any]]] = {}

    def next(self, what: Hashable, call: Any, many: int) -> list[Any]:
        """What to execute in its place, ``many`` of them: first what was not for longest."""
        letters = zip(counted(tensors_in(call)), self._cold.get(what, ""), strict=False)
        tensors = [one for one, letter in letters if letter == "1" and one.is_floating_point()]
        if not tensors:
            return [call] * many
        lie = tuple((one.shape, one.stride()) for one in tensors)
        if (what, lie) not in self._copies:
            self._copies[what, lie] = _copies(tensors) if len(self._copies) < KINDS else []
        copies = self._copies[what, lie]
        if not copies:
            return [call] * many
        self._copies[what, lie] = copies[many % len(copies) :] + copies[: many % len(copies)]
        calls = [
            with_tensors(call, {id(one): other for one, other in zip(tensors, some, strict=True)})
            for some in copies[:many]
        ]
        return [calls[number % len(calls)] for number in range(many)]

    def clear(self) -> None:
        """Their memory is the program's again."""
        self._copies.clear()


def _copies(tensors: Sequence[Any]) -> list[list[Any]]:
    """So many that they leave the cache; none where the tensors themselves do, or there is no memory."""
    import torch

    device = tensors[0].device
    free = int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_bytes(device)
    many = wanted(size_of(tensors), cache_bytes(device), free)
    return [[copied(one) for one in tensors] for _ in range(many)] if many > 1 else []


class Again:
    """Counts executions of targets, and executes one of them again while it is ``target``: ``more`` times.

    ``seen`` and ``extra`` count executions and those that were added, by target; ``refused`` says of targets
    why not. With ``ease`` a GPU waits after each execution, for that many times what one takes: ``each_s``,
    by target. ``cold`` says which operands come from memory in the program, and are to when they are executed
    again. What ``thread`` says is common to all who repeat.
    """

    def __init__(
        self, device: str, each_s: Mapping[int, float], cold: Mapping[Any, str], thread: Thread
    ) -> None:
        self.device, self.thread = device, thread
        self._each_s, self._turns = each_s, Turns(cold)
        self.target, self.more, self.ease = -1, 0, 0.0
        self.seen: Counter[int] = Counter()
        self.extra: Counter[int] = Counter()
        self.refused: dict[int, str] = {}

    def wait(self, target: int, device: Any) -> None:
        """After an execution of a target, where the GPU is eased."""
        if self.ease and self.device != "cpu":
            idle(self.ease * self._each_s[target], device)

    def again(self, target: int, what: Hashable, make: Callable[[], Callable[[], Any]], device: Any) -> None:
        """Each result is gone before the next is made. ``make`` makes what is executed; what fails here
        (memory) is not the program's."""
        try:
            for call in self._turns.next(what, make(), self.more):
                self.wait(target, device)
                call()
                self.extra[target] += 1
        except Refused as why:
            self.refused[target] = str(why)
        except Exception as error:
            if from_a_signal(error):
                raise
            self.refused[target] = f"it could not be executed again: {type(error).__name__}"
            self.forget()

    def take_counts(self) -> tuple[dict[int, int], dict[int, int]]:
        """What was seen and added since this was last asked. While nothing is repeated, nothing is kept."""
        if self.target < 0:
            self.forget()
        taken = dict(self.seen), dict(self.extra)
        self.seen, self.extra = Counter(), Counter()
        return taken

    def forget(self) -> None:
        """Memory that was found for further executions is the program's again."""
        self._turns.clear()
