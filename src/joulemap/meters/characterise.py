"""Find out what a sensor does: how often it updates, what it averages over, how late, how fine, at what cost.

The period, the quantum, the noise and the cost of a read can be seen in any dense series of readings. What
the sensor averages over shows only against a load that is known: each shown power is compared with the mean
of the load over a window that ends some lag before the update, and the window and lag that explain the
readings best are the sensor's. A window longer than the period is a moving average, which smears energy in
time; a shorter one misses part of each period, and a program whose steps keep pace with the period is then
seen at one phase only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulemap.errors import MeterError
from joulemap.meters.meter import Channel, Quantity
from joulemap.meters.readings import Readings, watch
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S

Load = Callable[[float], PowerTrace]
"""Works in bursts for so many seconds, and returns when (``load.py``): 1 W while it worked, else 0 W."""

FEWEST_UPDATES = 8
ALIAS_WIDTH = 0.03
"""How near to the period over k a step time must be, relative: the phase then drifts by less than a step in
thirty updates."""

_CONTINUOUS = (0.7, 1.5)  # a window this near to the period misses nothing and smears nothing
_EXPLAINED = 0.5  # the least correlation with the load at which a fit says anything
_STEADY = 6  # updates in a stretch whose spread is taken as noise
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Characteristics:
    """What was found. None is not known: the readings do not show it, or no load was there to show it."""

    domain: str
    sensor: str
    provenance: str
    quantity: Quantity
    updates: int
    read_cost_s: float
    read_every_s: float
    period_s: float | None = None
    quantum: float | None = None
    noise_w: float | None = None
    window_s: float | None = None
    lag_s: float | None = None
    explained: float | None = None
    """How well the window and lag explain the readings: the squared correlation with the load."""
    no_load: str = ""
    """Why there was no load to see the window against; empty where there was one."""

    @property
    def resolved(self) -> bool:
        """Whether it was read often enough to see single updates; else the period is only an upper bound."""
        return self.period_s is not None and self.period_s > 1.7 * self.read_every_s

    @property
    def duty(self) -> float | None:
        """The part of each period that is seen; 1 where nothing is missed."""
        if self.window_s is None or self.period_s is None:
            return None
        share = self.window_s / self.period_s
        return 1.0 if share >= _CONTINUOUS[0] else share

    @property
    def kind(self) -> str:
        """``continuous``, ``moving average``, ``part-time`` or ``not known``."""
        if self.duty is None or self.window_s is None or self.period_s is None:
            return "not known"
        if self.duty < 1:
            return "part-time"
        return "continuous" if self.window_s <= _CONTINUOUS[1] * self.period_s else "moving average"

    def aliases_s(self) -> tuple[float, ...]:
        """Step times that a part-time sensor sees at one phase only: the period over k, as long as a step is
        longer than what is seen of it. Empty where nothing is missed, or where that is not known."""
        if self.kind != "part-time" or self.period_s is None or self.window_s is None:
            return ()
        most = int(np.ceil(self.period_s / self.window_s)) - 1
        return tuple(self.period_s / k for k in range(1, most + 1))

    def aliases(self, step_s: float) -> bool:
        """Whether steps of this length would be misjudged."""
        return any(abs(step_s - alias_s) <= ALIAS_WIDTH * alias_s for alias_s in self.aliases_s())


def characterise(
    channel: Channel, seconds: float, load: Load | None = None, every_s: float = 0.25e-3
) -> Characteristics:
    """Read a live channel densely for some seconds, with a known load beside it where one is given."""
    (found,) = characterise_together([channel], seconds, load, every_s)
    return found


def characterise_together(
    channels: Sequence[Channel], seconds: float, load: Load | None = None, every_s: float = 0.25e-3
) -> list[Characteristics]:
    """Read channels of one device by turns under one load, so that what they show is of the same time."""
    if load is None:
        return [characteristics(readings) for readings in watch(channels, seconds, every_s=every_s)]
    worker = _Worker(load, seconds)
    worker.start()
    seen = watch(channels, seconds, every_s=every_s, until=lambda: not worker.is_alive())
    worker.join()
    return [replace(characteristics(one, worker.worked), no_load=worker.problem) for one in seen]


class _Worker(threading.Thread):
    """Has the load run beside the readings. Without it, what needs no load is still found."""

    def __init__(self, load: Load, seconds: float) -> None:
        super().__init__()
        self._load, self._seconds = load, seconds
        self.worked: PowerTrace | None = None
        self.problem = ""

    def run(self) -> None:
        try:
            self.worked = self._load(self._seconds)
        except MeterError as error:
            self.problem = str(error).replace("\n", " ")


def characteristics(readings: Readings, load: PowerTrace | None = None) -> Characteristics:
    """What a dense series of readings shows; with the load that caused it, also window and lag."""
    update_ns, value = updates(readings)
    seen = Characteristics(
        domain=readings.domain.name,
        sensor=readings.domain.sensor,
        provenance=readings.domain.provenance,
        quantity=readings.quantity,
        updates=len(update_ns),
        read_cost_s=_median_s(readings.after_ns - readings.before_ns),
        read_every_s=_median_s(np.diff(readings.before_ns)),
    )
    if len(update_ns) < FEWEST_UPDATES:
        return seen
    shown = shown_power(update_ns, value, readings.quantity, readings.wraps_at_j)
    seen = replace(seen, period_s=period_s(update_ns), quantum=quantum(value), noise_w=noise(*shown, load))
    if load is None or seen.period_s is None or not seen.resolved:
        return seen
    fit = fit_window(*shown, load, seen.period_s)
    if fit is None:
        return seen
    return replace(seen, window_s=fit.window_s, lag_s=fit.lag_s, explained=fit.explained)


def _median_s(times_ns: Int64) -> float:
    return float(np.median(times_ns)) / NS_PER_S if len(times_ns) else 0.0


def updates(readings: Readings) -> tuple[Int64, Float64]:
    """When the value changed, half-way between the last old and the first new reading, and to what."""
    new = np.flatnonzero(np.diff(readings.value) != 0) + 1
    middle = readings.middle_ns
    return middle[new - 1] + (middle[new] - middle[new - 1]) // 2, readings.value[new]


def period_s(update_ns: Int64) -> float:
    """The time between updates. An update that repeats the value cannot be seen, so the shorter of the times
    between changes count. Where they keep to a grid it is the grid's, which is more precise than any one."""
    between = np.diff(update_ns) / NS_PER_S
    usual = float(np.median(between[between <= 1.5 * np.quantile(between, 0.2)]))
    place = np.concatenate(([0.0], np.cumsum(np.maximum(np.rint(between / usual), 1.0))))
    since_s = (update_ns - update_ns[0]) / NS_PER_S
    slope, offset = np.polyfit(place, since_s, 1)
    on_grid = np.std(since_s - slope * place - offset) < 0.05 * usual
    return float(slope) if on_grid else usual


def quantum(value: Float64) -> float | None:
    """The finest step: the largest number of which all changes are multiples, no finer than a millionth."""
    steps = np.abs(np.rint(np.diff(value) * _MICRO)).astype(np.int64)
    steps = steps[steps > 0]
    return float(np.gcd.reduce(steps)) / _MICRO if len(steps) else None


def noise(update_ns: Int64, shown_w: Float64, load: PowerTrace | None = None) -> float | None:
    """The standard deviation of one update while nothing changes: the spread of stretches of a few updates.

    Of all stretches the steadiest quarter counts, since a program may run; where the load is known, those
    that saw none of it for as long again before they began.
    """
    if len(shown_w) < _STEADY:
        return None
    spread = np.lib.stride_tricks.sliding_window_view(shown_w, _STEADY).std(axis=1, ddof=1)
    if load is not None:
        first, last = update_ns[: len(spread)], update_ns[_STEADY - 1 :]
        quiet = load.energy_until(last) - load.energy_until(first - (last - first)) == 0
        if quiet.sum() >= _STEADY:
            return float(np.median(spread[quiet]))
    return float(np.quantile(spread, 0.25))


def shown_power(
    update_ns: Int64, value: Float64, quantity: Quantity, wraps_at_j: float | None = None
) -> tuple[Int64, Float64]:
    """The power that each update shows; a counter shows what it grew by since the one before."""
    if quantity == "power_w":
        return update_ns, value
    grown = np.diff(value)
    if wraps_at_j is not None:
        grown = np.where(grown < 0, grown + wraps_at_j, grown)
    return update_ns[1:], grown / (np.diff(update_ns) / NS_PER_S)


@dataclass(frozen=True, slots=True)
class Window:
    """Over what a sensor averages, how late, and how much of the readings that explains."""

    window_s: float
    lag_s: float
    explained: float


def fit_window(update_ns: Int64, shown_w: Float64, load: PowerTrace, period: float) -> Window | None:
    """The window and lag whose mean of the load follows the readings best; None where none does.

    First on a coarse grid, from a twentieth of a period to twenty periods, then twice finer around the best.
    """
    start = int(load.edges_ns[0])
    known_s = (update_ns - start) / NS_PER_S
    edges_s = (load.edges_ns - start) / NS_PER_S
    done = np.concatenate(([0.0], np.cumsum(load.energy_j)))
    inside = (known_s > 0) & (known_s < edges_s[-1] + period)
    if inside.sum() < FEWEST_UPDATES or np.ptp(shown_w[inside]) == 0:
        return None
    t_s, shown = known_s[inside], shown_w[inside]
    windows, lags = period * np.geomspace(0.05, 20, 49), period * np.arange(-0.1, 3.0, 0.1)
    for finer in (8, 8, 0):
        best, window_s, lag_s = _best(t_s, shown, edges_s, done, windows, lags)
        ratio, step = windows[1] / windows[0], lags[1] - lags[0]
        if finer:
            windows = window_s * np.geomspace(1 / ratio, ratio, 2 * finer + 1)
            lags = lag_s + np.linspace(-step, step, 2 * finer + 1)
    return Window(window_s, lag_s, best**2) if best > _EXPLAINED else None


def _best(
    t_s: Float64, shown: Float64, edges_s: Float64, done: Float64, windows: Float64, lags: Float64
) -> tuple[float, float, float]:
    """The highest correlation over all windows and lags, and where it is."""
    scores = np.array([_correlations(t_s, shown, edges_s, done, window, lags) for window in windows])
    row, column = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[row, column]), float(windows[row]), float(lags[column])


def _correlations(
    t_s: Float64, shown: Float64, edges_s: Float64, done: Float64, window_s: float, lags: Float64
) -> NDArray[np.float64]:
    """Of the readings with the load's mean over the window, for each lag."""
    until = t_s[:, None] - lags[None, :]
    mean = np.interp(until, edges_s, done) - np.interp(until - window_s, edges_s, done)
    mean -= mean.mean(axis=0)
    y = shown - shown.mean()
    size = np.sqrt((mean**2).sum(axis=0) * (y**2).sum())
    return np.asarray(np.divide(y @ mean, size, out=np.zeros(len(lags)), where=size > 0))
