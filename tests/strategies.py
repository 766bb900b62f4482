"""Small traces with everything in them that real ones have, for hypothesis.

Times are a few dozen nanoseconds, so that ties, touching borders and zero lengths are common.
"""

from itertools import pairwise

from hypothesis import strategies as st

from joulemap.devices import Domain
from joulemap.traces import EventTrace, PowerTrace, Steps

NAMES = ("a/x", "a/y", "b", "b/z")
HORIZON = 40


@st.composite
def events(
    draw, devices=("GPU:0", "CPU:0"), kinds=("op", "worker", "kernel", "runtime"), lanes=True, most=12
):
    rows = draw(st.integers(0, most))
    times = st.integers(-5, HORIZON + 5)
    spans = draw(st.lists(st.tuples(times, times).map(sorted), min_size=rows, max_size=rows))

    def column(choices):
        return draw(st.lists(st.sampled_from(choices), min_size=rows, max_size=rows))

    return EventTrace.from_columns(
        name=column(NAMES),
        device=column(devices),
        start_ns=[start for start, _ in spans],
        end_ns=[end for _, end in spans],
        lane=column((0, 1, 2)) if lanes and draw(st.booleans()) else None,
        kind=column(kinds),
        phase=column(("forward", "backward")),
    )


@st.composite
def power(draw, domain=None):
    """A few intervals, some of them without length (and then without energy)."""
    edges = sorted(draw(st.lists(st.integers(0, HORIZON), min_size=2, max_size=6)))
    joules = st.just(0.0) | st.floats(1e-6, 1e4)
    energy = [draw(joules) if end > start else 0.0 for start, end in pairwise(edges)]
    return PowerTrace(domain or Domain("gpu", "GPU:0"), edges, energy)


@st.composite
def steps(draw):
    borders = sorted(draw(st.lists(st.integers(0, HORIZON), min_size=2, max_size=8, unique=True)))
    starts, ends = borders[:-1:2], borders[1::2]
    flags = draw(st.lists(st.booleans(), min_size=len(starts), max_size=len(starts)))
    labels = draw(st.lists(st.sampled_from(("train", "test")), min_size=len(starts), max_size=len(starts)))
    return Steps.from_columns(start_ns=starts, end_ns=ends, traced=flags, label=labels)
