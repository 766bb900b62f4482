"""Steps in which one operation is executed several times instead of once, as ``joulemap validate`` orders.

All thinking is done outside the program. It hears of the targets when they are known, takes an order when
there is one, and has plain steps meanwhile; at every border between the two it waits for its devices, so that
the energy between two borders belongs to the steps between them. The standard library only.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from joulemap.frameworks.adapter import StepListener
from joulemap.frameworks.watch import from_a_signal
from joulemap.recorder.interruption import interrupt
from joulemap.recorder.journal import Journal

TARGETS, ORDERS = "targets.json", "orders.jsonl"
REPEATING = " (repeating)"
"""What the label of a step ends with in which something was repeated: it is no example of others."""
EASED_STEP = " (eased)"
"""And of a step in which nothing was repeated, and the GPU waited after each target."""
PLAIN, REFERENCE = -1, -2
"""What is no target, and nothing is repeated: between blocks; and in a block that others refer to."""
WARM_UP = 1
"""Steps in which a target is repeated before they count: memory is found for it, and the host gets ahead. And
the first one of all, in which modules are watched."""


class Repeats(Protocol):
    """Who executes targets again."""

    target: int
    more: int
    ease: float
    refused: dict[int, str]

    def install(self) -> None: ...
    def remove(self) -> None: ...
    def take_counts(self) -> tuple[dict[int, int], dict[int, int]]: ...


class Experiment:
    """A ``StepListener`` before another one: hears of borders first, and acts at the beginnings of steps."""

    def __init__(self, folder: Path, steps: StepListener, now_ns: Callable[[], int]) -> None:
        self._folder, self._steps, self._now_ns = folder, steps, now_ns
        self._journal = Journal(folder)
        self._orders = Tail(folder / ORDERS)
        self._repeats: list[Repeats] = []
        self._pause_s = self._paused_s = 0.0
        self._is_paused = False
        self._of_step = ""
        self._depth = 0
        self._label = ""
        self._target, self._more, self._ease = PLAIN, 0, 0.0
        self._left = self._rest = self._warm_up = 0
        self._rest_ease = 0.0
        self._start_ns: int | None = None
        self._counted = 0
        self._said: dict[int, str] = {}
        self._thread: int | None = None
        self._over = self._stops = False

    def begin(self, label: str) -> None:
        inside = self._steps.is_open()
        if not inside and self._may_begin():
            self._safely_border(label)
        self._steps.begin(label)
        if self._steps.is_open():
            self._depth = self._depth + 1 if inside else 1
            self._label = self._label if inside else label

    def end(self, done: bool = False) -> None:
        if self._steps.is_open():
            self._depth -= 1
            if not self._depth and not self._over and self._of_step in ("", self._label):
                self._counted += self._start_ns is not None
                if self._target >= 0 or self._ease:
                    self._steps.rename(self._label + (REPEATING if self._target >= 0 else EASED_STEP))
        self._steps.end(done)

    def compiled(self) -> None:
        self._steps.compiled()

    def has_compiled(self) -> None:
        self._steps.has_compiled()

    def noted(self, label: str) -> bool:
        """Something may come of every step."""
        return False

    def is_open(self) -> bool:
        return self._steps.is_open()

    def forget_others(self) -> None:
        self._steps.forget_others()

    def open_label(self) -> str:
        return self._steps.open_label()

    def rename(self, label: str) -> None:
        if self._steps.is_open() and self._depth == 1:
            self._label = label
        self._steps.rename(label)

    def cancel(self) -> None:
        if self._steps.is_open():
            self._depth -= 1
        self._steps.cancel()

    def stop(self) -> None:
        """The program ends: what is not closed is not known."""
        for one in self._repeats:
            one.remove()
        self._journal.close()

    def leave(self) -> None:
        """In a forked child: it is its parent's, and nothing is repeated here."""
        self._over = True
        self._repeat(PLAIN, 0, 0.0)
        self._journal.leave()

    def _may_begin(self) -> bool:
        """Whether there is anything to do here: the experiment is of one thread's steps."""
        if self._over or not (self._repeats or (self._folder / TARGETS).exists()):
            return False
        self._thread = self._thread or threading.get_ident()
        return self._thread == threading.get_ident()

    def _safely_border(self, label: str) -> None:
        try:
            self._border(label)
        except Exception as error:
            if from_a_signal(error):
                raise
            self._over = True  # the program goes on, and the experiment does not
            self._journal.put("problem", f"{type(error).__name__}: {error}")
            self.stop()
            if self._stops:
                interrupt()

    def _border(self, label: str) -> None:
        """A step is about to begin. Another order holds from here, if there is one; and a step of another
        kind is no part of anything."""
        self._is_paused = False
        if not self._repeats:
            self._install()
        self._say_refused()
        if self._of_step and label != self._of_step:
            self._close()
            return
        if self._target != PLAIN and self._counted >= self._left:
            self._aim(PLAIN, 0, self._rest_ease, self._rest)
        order = self._orders.next() if self._target == PLAIN and self._counted >= self._left else None
        if order is not None and order.get("stop"):
            self._close()
            self._journal.flush()
            interrupt()
        elif order is not None:
            self._pause_s = order["pause_s"]
            self._aim(order["target"], order["times"] - 1, order["ease"], order["steps"])
            self._rest, self._rest_ease, self._warm_up = order["rest"], order["rest_ease"], WARM_UP
        if self._warm_up:
            self._warm_up -= 1
            self._repeat(self._target, self._more, self._ease)
        elif self._start_ns is None:
            self._open()

    def _install(self) -> None:
        said = json.loads((self._folder / TARGETS).read_text())
        from joulemap.frameworks.torch.repeaters import repeaters

        self._repeats = list(repeaters(said))
        self._of_step, self._stops = said["label"], said["stop"]
        for one in self._repeats:
            one.install()
        self._warm_up = WARM_UP

    def _aim(self, target: int, more: int, ease: float, steps: int) -> None:
        """What was before ends here; what comes is repeated so often, for so many steps at least."""
        self._close()
        self._target, self._more, self._ease, self._left = target, more, ease, steps

    def _repeat(self, target: int, more: int, ease: float) -> None:
        for one in self._repeats:
            one.target, one.more, one.ease = target, more, ease

    def _open(self) -> None:
        self._wait()
        self._pause()
        self._taken()
        self._repeat(self._target, self._more, self._ease)
        self._paused_s = self._pause_s
        self._start_ns, self._counted = self._now_ns(), 0

    def _close(self) -> None:
        """A stretch of steps has ended, and what they gave the devices to do."""
        if self._start_ns is None:
            self._repeat(PLAIN, 0, 0.0)
            return
        self._wait()
        end_ns = self._now_ns()
        seen, extra = self._taken()
        self._journal.put(
            "stretch",
            {
                "target": self._target,
                "start_ns": self._start_ns,
                "end_ns": end_ns,
                "steps": self._counted,
                "seen": seen,
                "extra": extra.get(self._target, 0),
                "ease": self._ease,
                "pause_s": min(self._paused_s, self._pause_s),
            },
        )
        self._say_refused()
        self._journal.flush()
        self._left -= self._counted
        self._start_ns, self._counted = None, 0
        self._repeat(PLAIN, 0, 0.0)
        self._pause()

    def _pause(self) -> None:
        """The devices rest for a while at a border, where that is wanted and they have not just done so: a
        meter that updates meanwhile has all of the steps before, and none of those to come."""
        if self._pause_s and not self._is_paused:
            time.sleep(self._pause_s)
            self._is_paused = True

    def _taken(self) -> tuple[dict[int, int], dict[int, int]]:
        """What was seen and added since this was last asked."""
        seen: Counter[int] = Counter()
        extra: Counter[int] = Counter()
        for one in self._repeats:
            for into, counts in zip((seen, extra), one.take_counts(), strict=True):
                into.update(counts)
        return seen, extra

    def _say_refused(self) -> None:
        """At once: until then blocks are ordered of it."""
        every = {target: why for one in self._repeats for target, why in one.refused.items()}
        new = {target: why for target, why in every.items() if target not in self._said}
        for target, why in new.items():
            self._said[target] = why
            self._journal.put("refused", [target, why])
        if new:
            self._journal.flush()

    @staticmethod
    def _wait() -> None:
        from joulemap.frameworks.torch import gpus

        if gpus.in_use() and not gpus.captures():
            gpus.wait()


class Tail:
    """The lines of a file that somebody else appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        self._rest = b""

    def next(self) -> Any:
        """What the next line says, if there is one yet."""
        if self._handle is None:
            with suppress(FileNotFoundError):
                self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if self._handle is not None and b"\n" not in self._rest:
            self._rest += os.read(self._handle, 4096)
        line, whole, rest = self._rest.partition(b"\n")
        if not whole:
            return None
        self._rest = rest
        return json.loads(line)
