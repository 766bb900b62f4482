"""Made-up traces of any size with the shape of real ones, for the benchmarks."""

from __future__ import annotations

import numpy as np

from joulemap.devices import Domain
from joulemap.labels import Labels
from joulemap.traces import EventTrace, PowerTrace

EPOCH_NS = 1_790_000_000_000_000_000
NAMES = tuple(f"model/layer_{layer}/{op}" for layer in range(40) for op in ("norm", "matmul", "gelu", "add"))


def power_over(events: EventTrace, intervals: int, device: str) -> PowerTrace:
    """Power of a few hundred watts over all of the events."""
    begin, end = events.span_ns or (EPOCH_NS, EPOCH_NS + 1)
    edges = np.linspace(begin, end, intervals + 1).astype(np.int64)
    watts = np.random.default_rng(1).uniform(100, 700, intervals)
    return PowerTrace(Domain(device, device), edges, watts * np.diff(edges) / 1e9)


def flat_events(count: int, shuffled: bool = False) -> EventTrace:
    """Kernels on a GPU, two at a time on average."""
    rng = np.random.default_rng(0)
    start = EPOCH_NS + np.cumsum(rng.integers(1, 10_000, count))
    end = start + rng.integers(1_000, 19_000, count)
    order = rng.permutation(count) if shuffled else np.arange(count)
    return EventTrace.from_columns(
        name=_names(rng, count), device="GPU:0", start_ns=start[order], end_ns=end[order]
    )


def nested_events(count: int) -> EventTrace:
    """Two calling threads with two pool threads each: of every ten events, an outer operation, six
    operations inside it, a runtime call inside one of them, and two worker slices of another."""
    rng = np.random.default_rng(0)
    calls = count // 10
    caller = np.arange(calls) % 2
    begin = EPOCH_NS + np.arange(calls) // 2 * 30_000 + rng.integers(0, 500, calls)
    inner = begin[:, None] + 500 + np.arange(6) * 4_000
    starts = np.column_stack((begin, inner, inner[:, 2] + 500, inner[:, 1] + 200, inner[:, 1] + 300))
    lengths = np.broadcast_to([25_000, *[3_500] * 6, 800, 2_500, 2_800], starts.shape)
    lanes = np.column_stack((np.broadcast_to(caller, (8, calls)).T, 2 + 2 * caller, 3 + 2 * caller))
    kinds = np.broadcast_to(np.array([0, 0, 0, 0, 0, 0, 0, 3, 1, 1], np.int32), starts.shape)
    names = np.asarray(rng.integers(0, len(NAMES), starts.shape), np.int32)
    names[:, 8:] = names[:, 2:3]
    order = np.argsort(starts.ravel(), kind="stable")
    return EventTrace.from_columns(
        name=Labels(names.ravel()[order], NAMES),
        device="CPU:0",
        start_ns=starts.ravel()[order],
        end_ns=(starts + lengths).ravel()[order],
        lane=lanes.ravel()[order],
        kind=Labels(kinds.ravel()[order], ("op", "worker", "kernel", "runtime")),
    )


def _names(rng: np.random.Generator, count: int) -> Labels:
    return Labels(rng.integers(0, len(NAMES), count).astype(np.int32), NAMES)
