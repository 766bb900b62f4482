"""Eight kernels of an H200 whose true costs are known: ``python -m studies.accuracy.eight``.

The recording beside the repository has the kernels alone, in a loop together, and the loop with one of them
three times instead of once. All numbers come from the product's own code.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from joulemap.accounting import Footprint, Rule, attribute
from joulemap.calibration.cost import TRANSFER_RMS, Cost, Replay, costs, level_power_w
from joulemap.devices import Domain
from joulemap.recorder.experiment import PLAIN
from joulemap.traces import EventTrace, Float64, Int64, PowerTrace, Steps
from joulemap.units import NS_PER_S, fmt_pm, fmt_share
from joulemap.validating.metered import Metered
from joulemap.validating.picture import picture
from joulemap.validating.report import CALIBRATED, TIME, Report, Row
from joulemap.validating.rules import per_step
from joulemap.validating.stretch import Stretch
from joulemap.validating.target import Target
from joulemap.validating.truth import Truth, truths
from studies.page import markdown

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "h200"
GPU = Domain("GPU:0", "GPU:0", sensor="NVML total energy", update_period_s=0.1)
BLOCKS = 5
"""Every phase of repetitions is looked at in so many blocks, of 1.2 s each."""
TIMES = 3
"""A kernel was executed so often instead of once."""
REPLAYED_S = (0.5, 1.0, 2.0, 4.0)

Segments = Int64
"""Kernel, start and end of each of its turns."""


@dataclass(frozen=True)
class Eight:
    """The recorded experiment; ``counts`` has how often a kernel is launched in each of its turns."""

    counts: Mapping[str, int]
    phases: Sequence[Sequence[Any]]
    power: PowerTrace

    @classmethod
    def read(cls, folder: Path = DATA) -> Eight:
        readings = np.load(folder / "attrib-power.npz")["rows"]
        middle, energy_mj = (readings[:, 0] + readings[:, 1]) // 2, readings[:, 2]
        updates = np.flatnonzero(np.diff(energy_mj)) + 1
        power = PowerTrace(GPU, middle[updates], np.diff(energy_mj[updates]) / 1e3)
        phases = json.loads(gzip.decompress((folder / "attrib-phases.json.gz").read_bytes()))
        return cls(json.loads((folder / "attrib-counts.json").read_text()), phases, power)

    @property
    def names(self) -> list[str]:
        return list(self.counts)

    def segments(self, phase: str) -> Segments:
        return np.array(next(segments for name, _, _, segments in self.phases if name == phase), np.int64)

    def costs(self, seconds: float | None = None) -> dict[str, Cost]:
        """Of one launch alone; from the first ``seconds`` of each replay where that is asked."""
        replays = [
            _shortened(Replay(name.removeprefix("steady:"), begin, end, segments[0]), seconds)
            for name, begin, end, segments in self.phases
            if name.startswith("steady:")
        ]
        return costs(replays, self.power)

    @property
    def idle_w(self) -> float:
        found = [
            level_power_w(self.power, begin, end) for name, begin, end, _ in self.phases if name == "idle"
        ]
        return float(np.mean([one for one in found if one is not None]))

    @cached_property
    def mix(self) -> Segments:
        """The loop of all kernels."""
        return self.segments("mix")

    @cached_property
    def steps(self) -> Steps:
        """One turn of each is a step."""
        begins = self.mix[:: len(self.counts), 1]
        return Steps.from_columns(start_ns=begins, end_ns=np.append(begins[1:], self.mix[-1, 2]))

    def truth(self, kernel: int) -> Truth:
        """What a turn of a kernel adds to a step."""
        plain = [self._stretch("mix", PLAIN), self._stretch("mix2", PLAIN)]
        blocks = self._blocks(kernel)
        metered = Metered(self.power)
        found = truths({kernel: 0.0}, [plain[0], *blocks, plain[1]], metered)[kernel]
        steps_j = [metered.energy_j(one) / one.steps for one in plain]
        of_plain_j = abs(steps_j[0] - steps_j[1]) / 2 / (TIMES - 1)
        return replace(found, half_j=float(np.hypot(found.half_j, of_plain_j)))

    def _stretch(self, phase: str, target: int) -> Stretch:
        return _stretch(self.segments(phase), target, len(self.counts))

    def _blocks(self, kernel: int) -> list[Stretch]:
        segments = self.segments(f"insitu:{self.names[kernel]}")
        turns = len(self.counts) + TIMES - 1
        steps = np.array_split(np.arange(len(segments) // turns), BLOCKS)
        return [_stretch(segments[one[0] * turns : (one[-1] + 1) * turns], kernel, turns) for one in steps]

    def accounted(self, rule: Rule, known: Mapping[str, Cost]) -> Footprint:
        """The loop, accounted as a program's steps are."""
        mix = self.mix
        events = EventTrace.from_columns(
            name=[self.names[kernel] for kernel in mix[:, 0]],
            device="GPU:0",
            start_ns=mix[:, 1],
            end_ns=mix[:, 2],
        )
        window = (int(mix[0, 1]), int(mix[-1, 2]))
        weights = self._weights(known) if rule == "calibrated" else {}
        return attribute(events, self.power, rule, steps=self.steps, window_ns=window, **weights)

    def _weights(self, known: Mapping[str, Cost]) -> dict[str, Any]:
        kernel, length_s = self.mix[:, 0], (self.mix[:, 2] - self.mix[:, 1]) / NS_PER_S
        turn_j = np.array([known[name].energy_j * count for name, count in self.counts.items()])
        rms = np.array([float(np.hypot(known[name].rms, TRANSFER_RMS)) for name in self.counts])
        return {
            "weights": turn_j[kernel] / length_s,
            "idle_weight": self.idle_w,
            "cost_rms": rms[kernel],
        }

    def report(self, scaled: bool = True, seconds: float | None = None) -> Report:
        """Truths against both rules; ``scaled`` to the same sum, so that only the shares are compared."""
        known = self.costs(seconds)
        of = [
            Target(number, "operation", name, name, (), frozenset({(name, "other")}), 1.0, 0.0)
            for number, name in enumerate(self.names)
        ]
        rules: dict[str, Rule] = {TIME: "exact", CALIBRATED: "calibrated"}
        footprints = {word: self.accounted(rule, known) for word, rule in rules.items()}
        charges = {word: per_step(one, of, len(self.steps)) for word, one in footprints.items()}
        true = [self.truth(number) for number in range(len(of))]
        step_j = Metered(self.power).energy_j(self._stretch("mix", PLAIN)) / len(self.steps)
        sum_j = sum(truth.step_j for truth in true)
        scale = footprints[TIME].attributed_j / len(self.steps) / sum_j if scaled else 1.0
        rows = [
            Row(
                "operation",
                one.name,
                replace(truth, energy_j=truth.energy_j * scale, half_j=truth.half_j * scale),
                {word: found[one.number] for word, found in charges.items()},
            )
            for one, truth in zip(of, true, strict=True)
        ]
        rows.sort(key=lambda row: -row.truth_j)
        step_s = (self.mix[-1, 2] - self.mix[0, 1]) / NS_PER_S / len(self.steps)
        notes = [f"The truths add up to {fmt_share(sum_j / step_j)} of a step before they are scaled."]
        blocks = BLOCKS * len(of)
        return Report(GPU, rows, [], step_j, step_s, len(self.steps), blocks, "recorded", notes=notes)


def _shortened(replay: Replay, seconds: float | None) -> Replay:
    """The first so many seconds of a replay, as if it had ended then."""
    length_ns = replay.end_ns - replay.start_ns
    if seconds is None or seconds * NS_PER_S >= length_ns:
        return replay
    end_ns = replay.start_ns + round(seconds * NS_PER_S)
    part = round(replay.executions * seconds * NS_PER_S / length_ns)
    return Replay(replay.key, replay.start_ns, end_ns, max(part, 1))


def _stretch(segments: Segments, target: int, turns: int) -> Stretch:
    """Whole steps; a step has so many turns of kernels."""
    steps = len(segments) // turns
    last = segments[steps * turns - 1]
    extra = 0 if target == PLAIN else (TIMES - 1) * steps
    seen = dict.fromkeys(range(turns), steps)
    return Stretch(target, int(segments[0, 1]), int(last[2]), steps, seen, extra)


def table(report: Report) -> str:
    """Joules a step and errors, by kernel."""
    rows = []
    for row in report.rows:
        cells = [fmt_pm(row.truth_j, "J", row.half_j)]
        for rule in (TIME, CALIBRATED):
            charge, error = row.charges[rule], row.error(rule)
            half_j = (charge.high_j - charge.low_j) / 2
            cells += [fmt_pm(charge.energy_j, "J", half_j), "" if error is None else f"{100 * error:+.1f} %"]
        rows.append([row.name, *cells])
    return markdown(["kernel", "truth", "by time", "off", "calibrated", "off"], rows)


def summary(report: Report) -> str:
    """What it comes to."""
    rows = []
    for word in (TIME, CALIBRATED):
        found = report.errors("operation", word)
        if found is not None:
            figures = (found.mean, found.weighted, found.held, found.contained)
            rows.append([word, *map(fmt_share, figures)])
    heads = ("rule", "mean error", "weighted by energy", "intervals that hold", "that contain")
    return markdown(heads, rows)


def by_seconds(eight: Eight) -> str:
    """What is left of the error when each kernel is replayed for less long."""
    rows = []
    for seconds in REPLAYED_S:
        found = eight.report(seconds=seconds).errors("operation", CALIBRATED)
        if found is not None:
            rows.append([f"{seconds:g} s", fmt_share(found.mean), fmt_share(found.weighted)])
    return markdown(["each replay at most", "mean error", "weighted by energy"], rows)


def closure(eight: Eight) -> Float64:
    """What costs alone and waiting add up to, over what a step drew."""
    known, report = eight.costs(), eight.report()
    alone_j = sum(known[name].energy_j * count for name, count in eight.counts.items())
    busy_s = float((eight.mix[:, 2] - eight.mix[:, 1]).sum()) / NS_PER_S / len(eight.steps)
    waiting_j = (report.step_s - busy_s) * eight.idle_w
    return np.array([alone_j, waiting_j]) / report.step_j


def main() -> None:
    """Print the tables, and draw the picture where ``--plots`` says."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--plots", type=Path, default=ROOT / "docs" / "accuracy", help="where plots go")
    options = parser.parse_args()
    eight = Eight.read()
    report = eight.report()
    print(table(report), summary(report), *report.notes, sep="\n\n")
    print("\nNot scaled:\n", summary(eight.report(scaled=False)), sep="\n")
    alone, waiting = closure(eight)
    print(f"\nClosure: costs alone {fmt_share(alone)} and waiting {fmt_share(waiting)} of a step.\n")
    print(by_seconds(eight))
    options.plots.mkdir(parents=True, exist_ok=True)
    title = "Eight kernels on an H200: joules a step"
    (options.plots / "eight-kernels.svg").write_text(picture(report, title))


if __name__ == "__main__":
    main()
