"""When to read a sensor."""

from __future__ import annotations

from dataclasses import dataclass

from joulemap.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Every:
    """At a fixed rate, on a grid of absolute times: a late reading does not delay those after it."""

    period_s: float

    def next_ns(self, now_ns: int) -> int:
        """The next point of the grid."""
        period_ns = round(self.period_s * NS_PER_S)
        return (now_ns // period_ns + 1) * period_ns

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """A fixed rate does not depend on what is read."""
