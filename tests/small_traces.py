"""Traces in whole seconds, and the energy of a footprint by name."""

from joulemap.devices import Domain
from joulemap.traces import EventTrace, PowerTrace

S = 1_000_000_000
GPU = Domain("GPU:0", "GPU:0")


def by_name(footprint, **where):
    rows = [row for row in footprint.to_records() if all(row[key] == value for key, value in where.items())]
    total = {}
    for row in rows:
        total[row["name"]] = total.get(row["name"], 0.0) + row["energy_j"]
    return total


def trace(*spans, device="GPU:0", **columns):
    names, starts, ends = zip(*spans, strict=True) if spans else ((), (), ())
    return EventTrace.from_columns(
        name=names,
        device=device,
        start_ns=[int(t * S) for t in starts],
        end_ns=[int(t * S) for t in ends],
        **columns,
    )


def one_watt(seconds, domain=GPU):
    return PowerTrace.from_samples(domain, [t * S for t in range(seconds + 1)], [1.0] * (seconds + 1))
