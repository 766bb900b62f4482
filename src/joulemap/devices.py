"""Where events run, and what a meter measures.

A *device* executes events: ``GPU:0``, ``CPU:0``. A *domain* is what one meter reading covers: a GPU
board, a CPU package, the memory beside it. Several domains can feed one device: the energy of a
package and of its DRAM both belong to what ran on that CPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from joulemap.errors import InputError

Provenance = Literal["measured", "apportioned", "calibrated", "projected", "estimated"]

_DEVICE = re.compile(r"(?:.*device:)?(?P<kind>[A-Za-z]+)[:_-]?(?P<index>\d+)?$")
_KINDS = {"cuda": "GPU", "gpu": "GPU", "rocm": "GPU", "hip": "GPU", "xpu": "XPU", "cpu": "CPU"}


@dataclass(frozen=True, slots=True)
class Device:
    """One device, or all of a kind where the index is not known (``CPU`` on a two-socket machine)."""

    kind: str
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> Device:
        """Understand ``GPU:0``, ``cuda:0``, ``/job:localhost/replica:0/task:0/device:CPU:0``, ``cpu``."""
        match = _DEVICE.match(text.strip())
        if match is None:
            raise InputError(
                f"{text!r} does not name a device.",
                "Devices are written like GPU:0, CPU:0 or CPU.",
            )
        kind = _KINDS.get(match["kind"].lower(), match["kind"].upper())
        return cls(kind, int(match["index"]) if match["index"] else None)

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def runs(self, other: Device) -> bool:
        """Whether an event on ``other`` may draw its energy from this device.

        A missing index stands for any: threads migrate between sockets, so an event on ``CPU`` draws
        from every package, while an event on ``GPU:1`` never draws from ``GPU:0``.
        """
        return self.kind == other.kind and (
            self.index is None or other.index is None or self.index == other.index
        )


@dataclass(frozen=True, slots=True)
class Domain:
    """What one meter measures.

    Domains nest (``psys`` contains the package, the package contains its cores): ``parent`` names the
    domain whose reading already includes this one, and only roots are added up.
    """

    name: str
    device: str
    parent: str | None = None
    sensor: str = ""
    provenance: Literal["measured", "estimated"] = "measured"
    update_period_s: float | None = None

    def __post_init__(self) -> None:
        Device.parse(self.device)
        if self.provenance not in ("measured", "estimated"):
            raise InputError(
                f"Domain {self.name!r} has provenance {self.provenance!r}.",
                "A meter's reading is either 'measured' or 'estimated'.",
            )
        if self.update_period_s is not None and not self.update_period_s > 0:
            raise InputError(
                f"Domain {self.name!r} has an update period of {self.update_period_s} s.",
                "Leave it out when it is not known.",
            )


def roots(domains: Sequence[Domain]) -> list[Domain]:
    """The domains that add up without counting any energy twice."""
    names = {domain.name for domain in domains}
    return [domain for domain in domains if domain.parent not in names]
