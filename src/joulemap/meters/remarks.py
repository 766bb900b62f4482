"""What facts mean in words, said once: a GPU that others use too, a GPU that is held back.

Facts are numbers, read about once a second and kept. Some of them change what the energy means, and whoever
reads the recording should be told in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

OTHERS = "other_processes_count"
THROTTLE = "throttle_reasons_bits"
THROTTLED = "throttled_flag"

REASONS = {
    0x04: "its power limit",
    0x08: "its hardware (heat or power)",
    0x20: "heat",
    0x40: "heat (its hardware's own limit)",
    0x80: "the power supply (power brake)",
}
"""Bits of NVML's reasons that hold a GPU back against its program's will. Idle, clocks that somebody has set,
and GPUs that keep in step with each other are as they are wanted."""


def reasons(bits: float) -> list[str]:
    """What holds a GPU back, in words."""
    return [text for bit, text in REASONS.items() if int(bits) & bit]


class Remarks:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def new(self, facts: Mapping[str, float]) -> list[str]:
        """Sentences about these facts that were not said before."""
        new = [text for key, text in _remarks(facts) if key not in self._said]
        self._said |= {key for key, _ in _remarks(facts)}
        return new


def _remarks(facts: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Each with what it is about, so that another number does not make it news."""
    for name, value in facts.items():
        device, _, what = name.rpartition(" ")
        if what == OTHERS and value > 0:
            yield name, _others(device, round(value))
        elif what == THROTTLE:
            for reason in reasons(value):
                yield f"{name} {reason}", f"{device} was slowed down by {reason}."
        elif what == THROTTLED and value > 0:
            yield name, f"{device} was slowed down by heat or its power limit."


def _others(device: str, count: int) -> str:
    processes = "Another process uses" if count == 1 else f"{count} other processes use"
    return f"{processes} {device}: the energy of {device} is theirs, too."
