"""A kernel of one thread that counts clocks: how fast a GPU runs; or that it does nothing for a while."""

from __future__ import annotations

from typing import Any

CYCLES = 150_000
"""Less than a tenth of a millisecond."""
MOST_LAUNCH = 0.2
"""Of what counting takes: a launch is a twenty-fifth of it on an H200."""
USUAL_MHZ = 1800.0


def clock_mhz() -> float:
    """Of the current GPU, once it has done what it was given; 0 where the host was held up in between. What
    it takes to count to one is the launch's, which the counting has in it, too. The first launch of all loads
    the kernel, and is not looked at."""
    _, begin, mid, end = _counted(1, CYCLES, 1)
    end.synchronize()
    took_ms, launch_ms = begin.elapsed_time(mid), mid.elapsed_time(end)
    if launch_ms > MOST_LAUNCH * took_ms:
        return 0.0
    return float((CYCLES - 1) / (1e3 * (took_ms - launch_ms)))


def idle(seconds: float, device: Any) -> None:
    """Have a GPU do nothing but count for about so long, after what it was given; and go on."""
    import torch

    with torch.cuda.device(device):
        torch.cuda._sleep(round(seconds * USUAL_MHZ * 1e6))


def _counted(*cycles: int) -> tuple[Any, ...]:
    """Events around so many cycles each."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(cycles) + 1)]
    events[0].record()
    for count, event in zip(cycles, events[1:], strict=True):
        torch.cuda._sleep(count)
        event.record()
    return tuple(events)
