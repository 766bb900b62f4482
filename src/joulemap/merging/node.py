"""One rank's recording as a part of the job's: its devices and domains, told from those of other machines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from joulemap.devices import Device, Domain
from joulemap.errors import InputError
from joulemap.merging.job import machine_of, rank_of
from joulemap.processes import ProcessShares
from joulemap.recording import Recording
from joulemap.traces import EventTrace, PowerTrace

_APART = 1000


@dataclass(frozen=True)
class Node:
    """A rank's recording, and the machine it ran on: devices of several machines are told apart by counting
    on, ``GPU:0`` of the second being ``GPU:1000``, domains by the machine's name."""

    recording: Recording
    machine: int
    machines: int

    def events(self) -> EventTrace:
        """Its events on the job's devices, in lanes of its own."""
        events = self.recording.events()
        device = events.device.mapped([self.device(word) for word in events.device.words])
        prefix = f"rank {rank_of(self.recording)} "
        lane = (
            None if events.lane is None else events.lane.mapped([prefix + word for word in events.lane.words])
        )
        return dataclasses.replace(events, device=device, lane=lane)

    def power(self) -> list[PowerTrace]:
        """What was metered for it and the others on its machine."""
        return [
            PowerTrace(self._domain(trace.domain), trace.edges_ns, trace.energy_j, trace.gap)
            for trace in self.recording.power()
        ]

    def shares(self) -> list[ProcessShares]:
        """The job's part of what was metered."""
        return [
            dataclasses.replace(shares, domain=self._name(shares.domain))
            for shares in self.recording.shares().values()
        ]

    def fact(self, name: str) -> str:
        """``GPU:0 sm_clock_mhz`` of the job's device; what is of no device is the machine's."""
        device, _, what = name.partition(" ")
        try:
            return f"{self.device(device)} {what}" if what else self._name(name)
        except InputError:
            return self._name(name)

    def device(self, word: str) -> str:
        """The job's name of a device."""
        if self.machines == 1:
            return word
        device = Device.parse(word)
        if device.kind == "CPU":  # threads move between the sockets of their machine, and nowhere else
            return f"CPU:{self.machine}"
        return f"{device.kind}:{_APART * self.machine + (device.index or 0)}"

    def _domain(self, domain: Domain) -> Domain:
        parent = None if domain.parent is None else self._name(domain.parent)
        return dataclasses.replace(
            domain, name=self._name(domain.name), device=self.device(domain.device), parent=parent
        )

    def _name(self, domain: str) -> str:
        return domain if self.machines == 1 else f"{machine_of(self.recording)} {domain}"
