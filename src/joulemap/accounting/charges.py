"""What every single event was charged: the accounting before it is added up by name, for views over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from joulemap.accounting.attribute import actors_of, events_on, outermost
from joulemap.accounting.supply import supply
from joulemap.accounting.sweep import modelled, share_out
from joulemap.devices import Device, Domain
from joulemap.processes import ProcessShares
from joulemap.traces import EventTrace, Float64, PowerTrace, Steps


@dataclass(frozen=True, eq=False)
class EventEnergy:
    """One domain's energy by event: zero for events of other devices."""

    domain: Domain
    energy_j: Float64


def energy_of_events(
    events: EventTrace,
    power: Iterable[PowerTrace],
    *,
    steps: Steps | None = None,
    window_ns: tuple[int, int] | None = None,
    shares: Mapping[str, ProcessShares] | None = None,
    weights: Float64 | None = None,
    idle_weight: Mapping[str, float] | None = None,
) -> list[EventEnergy]:
    """Each event's energy from every domain: by the ``exact`` rule, in domains with an ``idle_weight`` by the
    ``calibrated`` one. Nothing is projected: an event in a traced step does not stand for those of the
    untraced ones, so these are the part of a footprint that happened while events were traced."""
    found = []
    for trace in outermost(list(power)):
        event = np.arange(len(events))[events_on(events, Device.parse(trace.domain.device))]
        event = event[events.end_ns[event] > events.start_ns[event]]
        idle_w = (idle_weight or {}).get(trace.domain.name)
        actors = actors_of(events, event, weights=None if idle_w is None else weights)
        density = None if idle_w is None else partial(modelled, actors, idle_weight=idle_w)
        curve = supply(trace, steps=steps, window_ns=window_ns, shares=shares, density=density).energy
        (shared,), _ = share_out(actors, [curve], np.zeros(0, np.int64), idle_w)
        energy = np.zeros(len(events))
        energy[event] = np.maximum(shared.charge, 0.0)
        found.append(EventEnergy(trace.domain, energy))
    return found
