"""What calibration costs, and what remains as its budget shrinks: ``python -m studies.accuracy.budget``.

The eight kernels again. A budget buys the replays that ``joulemap calibrate`` would do in it; the recorded
replays are cut to that length, and the other kernels have what is left, as they do in the product.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from joulemap.accounting import attribute
from joulemap.calibrating import IDLE_S
from joulemap.calibration.book import Calibration
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation, Place
from joulemap.calibration.weights import weigh, what_is_left
from joulemap.replaying import BUILDING_S, USUAL_PERIOD_S, affordable, eased_part_s, way
from joulemap.traces import EventTrace, Float64
from joulemap.units import NS_PER_S, fmt_share
from studies.accuracy.eight import Eight
from studies.page import markdown

BUDGETS_S = (60.0, 30.0, 20.0, 15.0, 10.0, 7.5, 5.0)


def replayed(eight: Eight, passes: int, seconds: float) -> dict[str, Cost]:
    """What every kernel costs by the last passes over it, each cut to so many seconds."""
    steady = [one for one in eight.phases if str(one[0]).startswith("steady:")]
    last = steady[-passes * len(eight.names) :]
    return replace(eight, phases=last).costs(seconds)


def errors(eight: Eight, known: Mapping[str, Cost], chosen: Collection[str]) -> tuple[float, Float64]:
    """The share of busy time that is calibrated, and the relative error of every kernel's share."""
    mix = eight.mix
    names = [eight.names[kernel] for kernel in mix[:, 0]]
    events = EventTrace.from_columns(name=names, device="GPU:0", start_ns=mix[:, 1], end_ns=mix[:, 2])
    operations = {name: Operation(name, "", "", "", "") for name in eight.names}
    length_s = (mix[:, 2] - mix[:, 1]) / NS_PER_S
    rows = [np.flatnonzero(mix[:, 0] == number) for number in range(len(eight.names))]
    places = [
        Place(name, "other", {operations[name]: 1}, float(length_s[own].sum()), len(eight.steps), own)
        for name, own in zip(eight.names, rows, strict=True)
    ]
    costs = {operations[name]: _of_turn(known[name], eight.counts[name]) for name in chosen}
    calibration = Calibration("GPU:0", 0.0, costs)  # turns as the host saw them: no kernel's own time
    weights = weigh(events, places, calibration)
    measured_j = eight.power.energy_between(int(mix[0, 1]), int(mix[-1, 2]))
    part = what_is_left(weights.known_j, weights.unknown_j, measured_j)
    weights = weigh(events, places, calibration, part)
    footprint = attribute(
        events,
        eight.power,
        "calibrated",
        steps=eight.steps,
        window_ns=(int(mix[0, 1]), int(mix[-1, 2])),
        weights=weights.watts,
        idle_weight=eight.idle_w,
        cost_rms=weights.cost_rms,
    )
    energy_j = {row["name"]: row["energy_j"] for row in footprint.to_records()}
    found_j = np.array([energy_j[name] for name in eight.names])
    return weights.covered, found_j / found_j.sum() / truths(eight) - 1


def truths(eight: Eight) -> Float64:
    """Every kernel's true share of the energy."""
    truth_j = np.array([eight.truth(number).step_j for number in range(len(eight.names))])
    return np.asarray(truth_j / truth_j.sum())


def _of_turn(launch: Cost, times: int) -> Cost:
    return Cost(launch.energy_j * times, launch.seconds * times, launch.rms, launch.passes)


def row(eight: Eight, budget_s: float) -> list[str]:
    """One budget: by whichever of the kernels it buys, on the mean."""
    kernels = len(eight.names)
    eased_s = eased_part_s("cuda", budget_s)
    passes, seconds = way(kernels, budget_s, IDLE_S, USUAL_PERIOD_S, eased_s)
    count = min(affordable(budget_s, passes, seconds, IDLE_S, eased_s), kernels)
    known = replayed(eight, passes, seconds)
    found = [errors(eight, known, chosen) for chosen in itertools.combinations(eight.names, count)]
    covered = float(np.mean([covered for covered, _ in found]))
    off = np.abs(np.array([each for _, each in found]))
    weighted = off @ truths(eight)
    takes_s = passes * (count * (seconds + BUILDING_S) + IDLE_S)
    figures = (covered, float(off.mean()), float(weighted.mean()), float(weighted.max()))
    how = f"{count} of {kernels}, {passes} x {seconds:g} s"
    return [f"{budget_s:g} s", f"{takes_s:.0f} s", how, *map(fmt_share, figures)]


def main() -> None:
    """Print the table."""
    eight = Eight.read()
    heads = (
        "budget",
        "takes",
        "replayed",
        "of the busy time",
        "mean error",
        "weighted by energy",
        "at worst",
    )
    print(markdown(heads, [row(eight, budget_s) for budget_s in BUDGETS_S]))


if __name__ == "__main__":
    main()
