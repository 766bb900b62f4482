"""This program's energy so far, for who wants to know it while the program runs: callbacks, progress bars.

The meters are read in this process, when asked. A recording needs none of this, and has finer answers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType

from joulemap.devices import Device, Domain
from joulemap.errors import MeterError
from joulemap.meters.available import every_meter
from joulemap.meters.meter import Meter
from joulemap.monitor.sampler import Sampler
from joulemap.monitor.whose import Whose
from joulemap.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy since the reader was opened: this program's part of each domain. Was all measured?"""

    seconds: float
    energy_j: float
    by_domain_j: dict[str, float]
    provenance: str


class EnergyReader:
    """Opens every meter that works here and adds up. ``MeterError`` where none does. Of GPUs and the like
    only ``accelerators`` count, where they are given."""

    def __init__(
        self, meters: Sequence[Meter] | None = None, accelerators: Collection[Device] | None = None
    ) -> None:
        self._sampler = Sampler(every_meter() if meters is None else meters)
        self._start_ns = self._sampler.timeline.now_ns()
        domains = [domain for domain in self._sampler.domains if _counts(domain, accelerators)]
        if not domains:
            self._sampler.close()
            raise MeterError("Nothing of what can be metered is this process's.", "joulemap doctor has more.")
        self._whose = Whose(os.getpid(), domains, self._start_ns)
        self._total_j = {domain.name: 0.0 for domain in domains if domain.parent is None}
        estimated = any(domain.provenance == "estimated" for domain in domains)
        self._provenance = "estimated" if estimated else "measured"
        self._share: dict[str, float] = {}
        self._sampler.read()

    def read(self) -> Reading:
        """Read the meters now. A counter that updates every 100 ms is known up to its last update."""
        batch = self._sampler.read()
        for share in self._whose.shares(batch.t_ns):
            self._share[share.domain] = float(share.share[-1])
        for part in batch.power:
            name = part.domain.name
            if name in self._total_j:
                self._total_j[name] += part.total_j * self._share.get(name, 1.0)
        seconds = (batch.t_ns - self._start_ns) / NS_PER_S
        return Reading(seconds, sum(self._total_j.values()), dict(self._total_j), self._provenance)

    def close(self) -> None:
        """Let go of the meters."""
        self._sampler.close()

    def __enter__(self) -> EnergyReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _counts(domain: Domain, accelerators: Collection[Device] | None) -> bool:
    """Whether a domain is this process's: CPUs are, whose energy is shared by processor time."""
    device = Device.parse(domain.device)
    return device.kind == "CPU" or accelerators is None or any(device.runs(own) for own in accelerators)
