"""One channel's readings, turned into power as they come.

The same rules as ``PowerTrace.from_counter`` and ``from_samples``, for a series that has not ended yet: the
energy of a counter reaches from update to update, a power reading holds until the next one. Where the
sensor misbehaves, energy is unknown, never negative, and a note says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.devices import Domain
from joulemap.meters.meter import Quantity
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S, fmt, fmt_seconds

GAP = 10
"""An interval this many times as long as the usual one is a gap."""

RECENT = 200
"""Intervals that say what is usual."""

OVERDUE = 1.5
"""Updates come this many times their usual distance apart at most."""

FROZEN_UPDATES, FROZEN_NS = 20, 2 * NS_PER_S
"""A counter that misses this many updates, and for this long, is frozen."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that whoever reads the recording should know."""

    t_ns: int
    text: str


class Track:
    """The power of one domain, growing. :meth:`take` hands over what is known by now; each part begins
    where the last one ended."""

    def __init__(self, domain: Domain, quantity: Quantity, wraps_at_j: float | None = None) -> None:
        self.domain = domain
        self.notes: list[Note] = []
        self._counter = quantity == "energy_j"
        self._wraps_at_j = wraps_at_j
        self._edges: list[int] = []
        self._energies_j: list[float] = []
        self._unknown: list[int] = []  # intervals whose energy is not known, by their index
        self._stood: list[int] = []  # intervals in which the counter was found frozen
        self._value = 0.0
        self._read_ns = 0
        self._changed_ever = False
        self._declared_ns = self._usual_ns = NS_PER_S * (domain.update_period_s or 0.0)
        self._recent_ns = np.zeros(0, np.int64)
        self._failing = self._frozen = False
        self._counting = False  # a counter that moves, and nothing is wrong with it
        self._opening = self._counter  # no part of a counter was handed over yet
        self._steps = False  # readings between its updates were seen

    def saw(self, t_ns: int, value: float) -> None:
        """Take a reading. One that cannot be right counts as failed; one of the past is passed over."""
        step_j = value - self._value
        if self._counting and 0 < step_j < math.inf and t_ns > self._edges[-1]:  # nearly always, so at once
            self._edges.append(t_ns)
            self._energies_j.append(step_j)
            self._value, self._read_ns = value, t_ns
        else:
            self._look_closely(t_ns, value)
            self._counting = self._changed_ever and not self._failing and not self._frozen

    def _look_closely(self, t_ns: int, value: float) -> None:
        if not math.isfinite(value) or value < 0:
            self.failed(t_ns, f"it says {value}, which cannot be right")
            return
        if self._failing:
            self._recovered(t_ns)
        if not self._edges:
            self._edges, self._value, self._read_ns = [t_ns], value, t_ns
        elif t_ns > self._edges[-1]:
            self._read_ns = t_ns
            self._add(t_ns, value)

    def failed(self, t_ns: int, reason: str) -> None:
        """A reading did not come; said once, until one comes again."""
        self._counting = False
        if not self._failing:
            self._failing = True
            self._note(t_ns, f"{self.domain.name} cannot be read: {reason.rstrip('.')}. It is tried again.")

    def take(self) -> PowerTrace | None:
        """The intervals since the last part; None where there are none."""
        if not self._energies_j:
            return None
        if self._opening:
            self._date_first()
        edges = np.asarray(self._edges, np.int64)
        energy_j, unknown = np.asarray(self._energies_j), np.zeros(len(edges) - 1, bool)
        unknown[self._unknown] = True
        gap = self._gaps(np.diff(edges)) | unknown
        gap[self._stood] = True
        self._edges, self._energies_j, self._unknown, self._stood = self._edges[-1:], [], [], []
        return PowerTrace(self.domain, edges, self._known(energy_j, gap, unknown), gap)

    def finish(self) -> PowerTrace | None:
        """The last part. Where a counter is overdue, the time since its last update has no energy; where it
        had stopped altogether, that is unknown."""
        since_ns = self._read_ns - self._edges[-1] if self._edges else 0
        if self._counter and since_ns > OVERDUE * self._usual_ns and since_ns > 0:
            self._close(self._read_ns, 0.0, unknown=self._frozen)
        return self.take()

    def lost(self, t_ns: int) -> None:
        """Nobody could read it any more until now: what flowed since its last update is unknown."""
        if self._edges and t_ns > self._edges[-1]:
            self._close(t_ns, 0.0, unknown=True)
            self._read_ns = t_ns

    def _date_first(self) -> None:
        """A counter that moves in steps had its last one before it was first read, and the energy until the
        first step that was seen flowed since then: begin one step earlier, not at the first reading."""
        self._opening = False
        strides_ns = [self._declared_ns] if self._declared_ns else []
        if len(self._edges) > 2:
            strides_ns.append(self._edges[2] - self._edges[1])
        if self._steps and strides_ns and 0 not in self._unknown:
            self._edges[0] = min(self._edges[0], self._edges[1] - round(min(strides_ns)))

    def _add(self, t_ns: int, value: float) -> None:
        if not self._counter:
            self._close(t_ns, self._value * ((t_ns - self._edges[-1]) / NS_PER_S))
        elif value != self._value:
            self._count(t_ns, value)
        else:
            self._steps = True
            self._look_for_frozen(t_ns)
        self._value = value

    def _count(self, t_ns: int, value: float) -> None:
        if self._frozen:
            self._stood.append(len(self._energies_j))
        self._frozen, self._changed_ever = False, True
        step_j = value - self._value
        if step_j < 0 and self._wraps_at_j is not None and step_j + self._wraps_at_j < self._wraps_at_j / 2:
            step_j += self._wraps_at_j
        if step_j < 0:
            back, ago = fmt(-step_j, "J"), fmt_seconds((t_ns - self._edges[-1]) / NS_PER_S)
            self._note(
                t_ns, f"{self.domain.name} went back by {back}: its energy of the last {ago} is unknown."
            )
        self._close(t_ns, max(step_j, 0.0), unknown=step_j < 0)

    def _close(self, t_ns: int, energy_j: float, unknown: bool = False) -> None:
        if unknown:
            self._unknown.append(len(self._energies_j))
        self._edges.append(t_ns)
        self._energies_j.append(energy_j)

    def _look_for_frozen(self, t_ns: int) -> None:
        """A counter that has stood at zero all along is a part of the chip that is switched off."""
        since_ns = t_ns - self._edges[-1]
        late = since_ns > FROZEN_NS and since_ns > FROZEN_UPDATES * self._usual_ns
        if late and not self._frozen and (self._changed_ever or self._value):
            self._frozen = True
            self._note(t_ns, f"{self.domain.name} has not changed for {fmt_seconds(since_ns / NS_PER_S)}.")

    def _recovered(self, t_ns: int) -> None:
        self._failing = False
        self._note(t_ns, f"{self.domain.name} can be read again.")

    def _gaps(self, lengths_ns: Int64) -> NDArray[np.bool_]:
        """Against the usual length: what recent intervals show, and no less than the sensor declares."""
        self._recent_ns = np.concatenate((self._recent_ns, lengths_ns))[-RECENT:]
        self._usual_ns = max(self._declared_ns, float(np.median(self._recent_ns)))
        return lengths_ns > GAP * self._usual_ns

    def _known(self, energy_j: Float64, gap: NDArray[np.bool_], unknown: NDArray[np.bool_]) -> Float64:
        """A counter knows the energy of a gap; samples do not."""
        return np.where(unknown if self._counter else gap, 0.0, energy_j)

    def _note(self, t_ns: int, text: str) -> None:
        self.notes.append(Note(t_ns, text))
