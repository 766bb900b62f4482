"""Parts for a reader that does not keep up: fewer of them, with all their energy.

Intervals of a domain chain, and its energy is never lost; what a slow reader loses is when it was used. So
instead of being dropped, the oldest parts are made one, in which each domain has a single interval, marked as
a gap.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from joulemap.monitor.quality import Quality
from joulemap.monitor.sampler import Batch
from joulemap.monitor.wire import Delivery
from joulemap.processes import ProcessShares
from joulemap.traces import PowerTrace


def coarse(earlier: Delivery, later: Delivery) -> Delivery:
    """Two parts as one. Notes are kept, facts only of the later one."""
    first, second = earlier.batch, later.batch
    power = [_one_interval(traces) for traces in _by_domain([*first.power, *second.power])]
    notes = [*first.notes, *second.notes]
    batch = Batch(second.t_ns, power, second.facts, notes, _together(first.quality, second.quality))
    return Delivery(batch, _one_share([*earlier.shares, *later.shares]))


def _by_domain(traces: Iterable[PowerTrace]) -> Iterable[list[PowerTrace]]:
    found = dict[str, list[PowerTrace]]()
    for trace in traces:
        found.setdefault(trace.domain.name, []).append(trace)
    return found.values()


def _one_interval(traces: list[PowerTrace]) -> PowerTrace:
    edges = [int(traces[0].edges_ns[0]), int(traces[-1].edges_ns[-1])]
    energy_j = sum(trace.total_j for trace in traces)
    return PowerTrace(traces[0].domain, edges, [energy_j], np.ones(1, bool))


def _one_share(shares: Iterable[ProcessShares]) -> list[ProcessShares]:
    """A share for each domain: the mean, by time."""
    found = dict[str, list[ProcessShares]]()
    for part in shares:
        found.setdefault(part.domain, []).append(part)
    return [_mean_share(domain, parts) for domain, parts in found.items()]


def _mean_share(domain: str, parts: list[ProcessShares]) -> ProcessShares:
    lengths = np.concatenate([np.diff(part.edges_ns) for part in parts])

    def mean(column: str) -> float:
        return float(np.average(np.concatenate([getattr(part, column) for part in parts]), weights=lengths))

    edges_ns, share = [parts[0].edges_ns[0], parts[-1].edges_ns[-1]], min(mean("share"), 1.0)
    return ProcessShares.from_columns(domain, edges_ns, [share], [min(mean("loading"), share)])


def _together(first: Quality, second: Quality) -> Quality:
    """Counts add up; of lateness the worse is kept."""
    return Quality(
        first.reads + second.reads,
        first.failed + second.failed,
        first.missed + second.missed,
        max(first.late_p50_s, second.late_p50_s),
        max(first.late_p99_s, second.late_p99_s),
        first.cpu_s + second.cpu_s,
        first.span_s + second.span_s,
    )
