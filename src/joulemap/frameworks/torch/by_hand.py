"""Gradients that no optimizer of torch's makes use of: the program's own training, attacks, saliency maps.

Nothing says when the program is done with them, so that such a step lasts until the next call of a module. It
begins with a call of the module that was the first one called with gradients on before a backward pass: what
its calls are is known from the first of these passes on.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from joulemap.frameworks.torch.kinds import TRAIN

GRADIENTS = "gradients"
"""Steps of a module in evaluation mode, which does not learn."""
FEW = 64
"""A step has at most so many outermost calls before its backward pass: a program that has gradients on and
seldom makes use of them has none."""
_PAUSE_S, _PAUSE_STEPS, _FORGETS = 1.0, 64, 0.05
"""A step that takes longer than a second, and than so many usual ones, was a pause. What comes again and
again is usual."""
_REMEMBERED = 1000
_Key = tuple[int, bool]


class Round(NamedTuple):
    """Calls with gradients on since the last backward pass: the first module, whether it was in training mode
    then, and how many they are."""

    module: Callable[[], Any]
    trains: bool
    calls: int


class Step(NamedTuple):
    """One that is open: which calls begin it, how it is called, and since when."""

    key: _Key
    label: str
    since_s: float


class ByHand:
    """Which calls begin such steps."""

    def __init__(self) -> None:
        self._labels: dict[_Key, tuple[Callable[[], Any], str]] = {}
        self._usual_s: dict[str, float] = {}

    def step(self, module: Any) -> Step | None:
        """The one that a call of this module begins, with gradients on."""
        key = id(module), _trains(module)
        known, label = self._labels.get(key, (_nobody, ""))
        return Step(key, label, time.monotonic()) if known() is module else None

    def learn(self, calls: Round) -> None:
        """A backward pass has followed these."""
        module = calls.module()
        if module is None or calls.calls > FEW:
            return
        if len(self._labels) >= _REMEMBERED:
            self._labels.clear()
        self._labels[id(module), calls.trains] = weakref.ref(module), _label(calls.trains)

    def forget(self, step: Step) -> None:
        """None has followed this one's."""
        self._labels.pop(step.key, None)

    def rename(self, step: Step, label: str) -> None:
        """The next one like it is called so."""
        if step.key in self._labels and step.label != label:
            self._labels[step.key] = self._labels[step.key][0], label

    def ended(self, step: Step) -> str:
        """What a step was that nothing but the next call has ended; nothing where that was a pause."""
        label, took_s = _label(step.key[1]), time.monotonic() - step.since_s
        self.rename(step, label)
        usual_s = self._usual_s.get(label, took_s)
        self._usual_s[label] = usual_s + _FORGETS * (took_s - usual_s)
        return "" if took_s > max(_PAUSE_S, _PAUSE_STEPS * usual_s) else label


def following(calls: Round | None, module: Any) -> Round:
    """The calls, and one more. Those before it were of evaluation where the first module is in another mode
    now."""
    trains = _trains(module)
    first = None if calls is None else calls.module()
    if calls is None or first is None or (first is module and calls.trains != trains):
        return Round(weakref.ref(module), trains, 1)
    return calls._replace(calls=calls.calls + 1)


def _trains(module: Any) -> bool:
    return bool(getattr(module, "training", True))


def _label(trains: bool) -> str:
    return TRAIN if trains else GRADIENTS


def _nobody() -> None:
    """In the place of a module that is gone."""
