"""Made-up traces of any size with the shape of real ones, for the benchmarks."""

from __future__ import annotations

import numpy as np

from joulemap.devices import Domain
from joulemap.frameworks.kineto import KinetoColumns
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


LAYERS = 40
_FORWARD = ("M:layers.{}", "aten::linear", "aten::addmm", "cudaLaunchKernel", "gemm")
_BACKWARD = ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm")
_CALL = (*_FORWARD, *_BACKWARD, "cudaLaunchKernel", "gemm")
_CATEGORIES = ("cpu_op", "cuda_runtime", "kernel")


def kineto_columns(count: int) -> KinetoColumns:
    """Training steps as PyTorch's profiler has them: of every ten events, five are a layer's forward pass and
    five its backward pass on another thread, each with a launch and its kernel."""
    calls = count // len(_CALL)
    number = np.arange(calls)
    layer, step = number % LAYERS, number // LAYERS
    forward = EPOCH_NS + (2 * step * LAYERS + layer) * 10_000
    backward = EPOCH_NS + (2 * step * LAYERS + 2 * LAYERS - 1 - layer) * 10_000
    begin = np.column_stack((*[forward] * 5, *[backward] * 5))
    begin = begin + np.array([0, 500, 1_000, 1_500, 3_000, 0, 500, 1_000, 1_500, 3_000])
    length = np.array([9_000, 8_000, 7_000, 500, 6_000] * 2)
    words = tuple(word.format(one) for one in range(LAYERS) for word in _CALL)
    kernel = np.array([0, 0, 0, 0, 1] * 2)
    launch = np.array([0, 0, 0, 1, 1] * 2)
    of_backward = np.repeat([0, 1], 5)
    first = number[:, None] * len(_CALL) + 1  # ids count events, and a launch and its kernel share theirs
    own = first + np.arange(len(_CALL))
    sequence = np.where(np.isin(np.arange(10), (2, 5, 6)), number[:, None], -1)
    return KinetoColumns(
        name=Labels((layer[:, None] * len(_CALL) + np.arange(len(_CALL))).ravel().astype(np.int32), words),
        category=Labels(np.tile(kernel * 2 + launch * (1 - kernel), calls).astype(np.int32), _CATEGORIES),
        start_ns=begin.ravel(),
        end_ns=(begin + length).ravel(),
        device=np.tile(kernel - 1, calls),
        lane=Labels(
            np.tile(np.where(kernel, 2, of_backward), calls).astype(np.int32), ("1", "2", "stream 7")
        ),
        op_id=np.where(launch, first + 5 * of_backward + 2, own).ravel(),
        correlation=(launch * (first + 5 * of_backward + 3)).ravel(),
        sequence=sequence.ravel(),
        forward_thread=np.tile(np.isin(np.arange(10), (5, 6)).astype(np.int64), calls),
        thread_number=np.tile(1 + of_backward, calls),
    )


def _names(rng: np.random.Generator, count: int) -> Labels:
    return Labels(rng.integers(0, len(NAMES), count).astype(np.int32), NAMES)
