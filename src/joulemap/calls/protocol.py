"""How calls are isolated: when the machine counts as calm, what the baseline is, and how long to wait.

``joulemap`` is the default: the gate alone, on samples that are there already, so that a calm machine is not
waited for. ``fecom`` has the constants of the published protocol: its sleeps, and no look at the level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ISOLATION = "isolation"
"""Where a recording keeps the protocol of its calls (``extra`` of ``recording.json``)."""


@dataclass(frozen=True)
class Protocol:
    """Limits by kind of domain are shares of one and degrees Celsius; times are seconds."""

    name: str
    samples: int = 20
    """How many of the last samples the gate looks at."""
    sample_s: float = 0.1
    """How long a sample is; it is never shorter than the meter's updates."""
    spread: Mapping[str, float] = field(
        default_factory=lambda: {"CPU": 0.03, "DRAM": 0.03, "GPU": 0.01, "other": 0.03}
    )
    """The most that the samples may vary: standard deviation over mean."""
    above_idle: float | None = 0.1
    """How far over the idle level their mean may be, relative; None does not look."""
    hottest_c: Mapping[str, float] = field(default_factory=lambda: {"CPU": 55.0, "GPU": 40.0})
    busiest_percent: Mapping[str, float] = field(default_factory=lambda: {"CPU": 10.0, "GPU": 5.0})
    before_s: float = 0.0
    """How long to wait before the gate is first asked."""
    look_every_s: float = 0.5
    """How often the gate is asked again."""
    timeout_s: float = 30.0
    """How long to wait before a call; then it runs all the same, and is marked."""
    baseline_s: float = 2.0
    """The baseline of a call is the mean power of so many seconds before it."""
    tail_s: float = 0.0
    """How long to wait after a call at least."""
    tail_timeout_s: float = 10.0
    """How long to wait for calm after a call at most."""

    @property
    def patience_s(self) -> float:
        """The longest wait."""
        return max(self.before_s + self.timeout_s, self.tail_s + self.tail_timeout_s)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Protocol:
        return cls(**content)


PROTOCOLS = {
    "joulemap": Protocol("joulemap"),
    "fecom": Protocol(
        "fecom",
        sample_s=0.5,
        above_idle=None,
        busiest_percent={},
        before_s=20.0,
        look_every_s=20.0,
        timeout_s=120.0,
        baseline_s=20.0,
        tail_s=30.0,
        tail_timeout_s=30.0,
    ),
}
"""By the name that ``joulemap run --protocol`` takes."""
