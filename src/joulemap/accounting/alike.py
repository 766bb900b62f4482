"""Whether traced steps are like those that they stand for.

A program fills caches, makes plans for new shapes, or is given longer inputs: then steps of one label take
far longer at one time than at another, and do not do the same. Where steps were traced at both times, those
of each stand for the others of theirs. Where they were not, that is said. Steps that are given far more than
others have labels of their own: where none of these was traced, they go by the others, too, and that is said
where they take some of the time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.sums import sums_by
from joulemap.labels import Labels
from joulemap.program import SLICE, unsized
from joulemap.traces import Float64, Int64, Steps
from joulemap.units import NS_PER_S, fmt_seconds

UNLIKE = 2.0
"""Steps that take so many times as long as others do something else; by less a busy host varies."""
AROUND = 15
"""Steps on each side that tell how long steps take at a time: on the mean, since one that returns at once, or
waits for a device that is behind, tells nothing by itself."""
NEAR, FEWEST = 3, 10
"""Steps on each side of a traced one that tell how long it would have taken, and of how many it is asked."""
SEVERAL, MUCH, MORE = 3, 1 / 3, 1.5
"""Long steps must be so many, and not just one that was held up, take so much of the time, and make the mean
so many times as long as a traced step: where a host waits for several steps at once, the others are short."""
TRACER_S, TRACED_S = 0.01, 2e-6
"""What a tracer takes of a step at most, 5 ms of TensorFlow's sessions, and of it for each event: 1 to 2 µs
for PyTorch's, on a CPU and a GPU."""
NOTABLE, NAMED = 0.03, 3
"""What steps may take of the time of all, and go by those of another size, before it is said; and how many
such sizes are named."""
_OFF = "what is projected from these may be off. joulemap run --steps traces others."
_LEAST_S = 1e-9


def told_apart(steps: Steps) -> Steps:
    """The same steps, in which those of a label have several where some were traced at times when steps took
    far longer than when others were."""
    steps = _sizes_together(steps)
    codes, words = steps.label.codes.copy(), list(steps.label.words)
    for code, others, traced in _kinds(steps):
        lasted_s = _lasted_s(steps, others)
        beside_s = _beside_s(lasted_s, np.searchsorted(others, traced), _lasted_s(steps, traced))
        typical_s = _typical_s(beside_s)
        if len(typical_s) < 2:
            continue
        for chosen, took_s in ((traced, beside_s), (others, _around_s(lasted_s))):
            codes[chosen] = len(words) + _apart(took_s[:, None], typical_s).argmin(axis=1)
        words += [f"{words[code]} of about {fmt_seconds(one)}" for one in typical_s.tolist()]
    return replace(steps, label=Labels(codes, tuple(words)).used())


def borrowed(steps: Steps) -> list[str]:
    """What to say where steps of sizes of which none was traced take some of the time: they go by steps of
    another size, which may do something else."""
    instead, words = _instead(steps), steps.label.words
    by_label_s = sums_by(steps.label.codes, (steps.end_ns - steps.start_ns) / NS_PER_S, len(words))
    others_s = np.where(instead == np.arange(len(words)), 0.0, by_label_s)
    part = float(others_s.sum() / max(by_label_s.sum(), _LEAST_S))
    if part <= NOTABLE:
        return []
    longest = np.argsort(-others_s, kind="stable")[: np.count_nonzero(others_s)].tolist()
    by_whom = [f"{words[code]} by {words[instead[code]]}" for code in longest[:NAMED]]
    by_whom += [f"{len(longest) - NAMED} more"] if len(longest) > NAMED else []
    return [
        f"Of sizes that take {part:.0%} of the time of steps none was traced. They go by others, "
        f"{', '.join(by_whom)}: {_OFF} A longer run has time for all."
    ]


def _sizes_together(steps: Steps) -> Steps:
    """Those of a size of which none was traced are like those of another size that were."""
    return replace(steps, label=Labels(_instead(steps)[steps.label.codes], steps.label.words).used())


def _instead(steps: Steps) -> NDArray[np.int32]:
    """For each label the one whose steps stand for its own: itself, or that of another size of its model, of
    which some were traced and take about as long."""
    codes, words = steps.label.codes, steps.label.words
    here, traced = set(np.unique(codes).tolist()), set(np.unique(codes[steps.traced]).tolist())
    of_model = [unsized(word) for word in words]
    instead = np.arange(len(words), dtype=codes.dtype)
    for code in here - traced:
        others = sorted(one for one in traced if of_model[one] == of_model[code])
        if others:
            own_s, *their_s = (
                _lasted_s(steps, np.flatnonzero(codes == one)).mean() for one in (code, *others)
            )
            instead[code] = others[int(_apart(np.array(their_s), np.array(own_s)).argmin())]
    return instead


def unlike(steps: Steps, ended_ns: Int64, events: Int64) -> list[str]:
    """What to say where traced steps are unlike those that they stand for: these were slow then, while the
    program warmed up, or are of several kinds, of which the long ones were not traced; or the traced ones
    were held up. ``ended_ns`` is when all that began in each step was over, and ``events`` how many that
    are."""
    said = []
    for code, others, traced in _kinds(steps):
        lasted_s, traced_s = _lasted_s(steps, others), float(_lasted_s(steps, traced).mean())
        near_s, usual_s = _near_s(lasted_s, np.searchsorted(others, traced)), float(np.median(lasted_s))
        took_s, mean_s = float((ended_ns - steps.start_ns)[traced].max()) / NS_PER_S, float(lasted_s.mean())
        name = steps.label.words[code]
        long_s = lasted_s[lasted_s > UNLIKE * took_s]
        if len(long_s) >= SEVERAL and long_s.sum() > MUCH * lasted_s.sum() and mean_s > MORE * took_s:
            took = f"Steps of {name} that were traced took {fmt_seconds(took_s)} at most, and all of them "
            said.append(f"{took}{fmt_seconds(mean_s)} on the mean: {_OFF}")
        elif near_s > UNLIKE * usual_s:
            took = f"Steps of {name} took {fmt_seconds(near_s)} when they were traced, and mostly "
            said.append(f"{took}{fmt_seconds(usual_s)}: {_OFF}")
        elif traced_s > UNLIKE * (max(usual_s, mean_s) + _tracing_s(events[traced])):
            took = f"Steps of {name} took {fmt_seconds(traced_s)} when they were traced, and "
            more = "which tracing does not explain: something held them up, and"
            said.append(f"{took}{fmt_seconds(max(usual_s, mean_s))} otherwise, {more} {_OFF}")
    return said


def _tracing_s(events: Int64) -> float:
    """What a tracer may make a step longer by, on the mean of some."""
    return TRACER_S + TRACED_S * float(events.mean())


def _kinds(steps: Steps) -> list[tuple[int, Int64, Int64]]:
    """Labels of which some steps were traced, and many were not; these, and those. Slices of time are as long
    as they like."""
    found = []
    for code in np.unique(steps.label.codes[steps.traced]).tolist():
        alike = steps.label.codes == code
        others, traced = np.flatnonzero(alike & ~steps.traced), np.flatnonzero(alike & steps.traced)
        if len(others) >= FEWEST and steps.label.words[code] != SLICE:
            found.append((code, others, traced))
    return found


def _lasted_s(steps: Steps, chosen: Int64) -> Float64:
    return np.asarray((steps.end_ns - steps.start_ns)[chosen] / NS_PER_S, np.float64)


def _near_s(lasted_s: Float64, following: Int64) -> float:
    """How long traced steps, which are slower, would have taken: as a few before them do, or after them,
    whichever are shorter."""
    next_one = following[:, None]
    before, after = next_one - 1 - np.arange(NEAR), next_one + np.arange(NEAR)
    sides = (one[(one >= 0) & (one < len(lasted_s))] for one in (before, after))
    return min(float(np.median(lasted_s[side])) for side in sides if len(side))


def _beside_s(lasted_s: Float64, following: Int64, own_s: Float64) -> Float64:
    """How long steps take at the time of each traced one: those before it or after it, where two times meet
    those that it is more like itself; but the first few of all say little."""
    first = np.stack((following - AROUND, following))
    sides_s, count = _mean_s(lasted_s, first, first + AROUND)
    unlike = _apart(sides_s, own_s)
    unlike[(count < FEWEST) & (count < count.max(axis=0))] = np.inf
    return np.asarray(np.take_along_axis(sides_s, unlike.argmin(axis=0)[None], axis=0)[0], np.float64)


def _around_s(lasted_s: Float64) -> Float64:
    """How long steps take at the time of each."""
    own = np.arange(len(lasted_s))
    return _mean_s(lasted_s, own - AROUND, own + AROUND + 1)[0]


def _mean_s(lasted_s: Float64, first: Int64, until: Int64) -> tuple[Float64, Int64]:
    """The mean of stretches of steps, 0 where there are none, and how many there are."""
    first, until = np.clip(first, 0, len(lasted_s)), np.clip(until, 0, len(lasted_s))
    total_s = np.concatenate(([0.0], np.cumsum(lasted_s)))
    return (total_s[until] - total_s[first]) / np.maximum(until - first, 1), until - first


def _typical_s(beside_s: Float64) -> Float64:
    """Times of which each is far longer than the one before it: the means of those that lie together."""
    in_order = np.log(np.maximum(np.sort(beside_s), _LEAST_S))
    borders = np.flatnonzero(np.diff(in_order) > np.log(UNLIKE)) + 1
    together = [float(one.mean()) for one in np.split(in_order, borders)]
    return np.asarray(np.exp(together), np.float64)


def _apart(one_s: Float64, other_s: Float64) -> Float64:
    """By how much two times differ, as the size of a ratio's logarithm."""
    ratio = np.maximum(one_s, _LEAST_S) / np.maximum(other_s, _LEAST_S)
    return np.asarray(np.abs(np.log(ratio)), np.float64)
