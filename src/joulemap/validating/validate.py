"""A program, run once: some steps traced, then operations repeated; and what the rules say of it."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulemap.api import load
from joulemap.calibrating import calibrate
from joulemap.calibration.book import Book
from joulemap.calibration.recorded import Calibrated, calibrated, own_power
from joulemap.errors import InputError, JoulemapError
from joulemap.frameworks.torch.caches import FIRST, STEPS
from joulemap.recorder.budget import Plan
from joulemap.recorder.run import Ran, run
from joulemap.traces import PowerTrace, Steps
from joulemap.units import fmt_share
from joulemap.validating import limit
from joulemap.validating.easing import Easing
from joulemap.validating.metered import Metered
from joulemap.validating.plan import Wanted
from joulemap.validating.referee import Referee
from joulemap.validating.report import CALIBRATED, TIME, NotValidated, Report, Row
from joulemap.validating.rules import Charge, charged, only_plain
from joulemap.validating.stretch import Stretch, clocked, plain
from joulemap.validating.target import Target
from joulemap.validating.truth import FEWEST, Truth, step_energy_j, truths

MOST_OF_OTHERS = 0.1
TRACED = 5
"""Steps that are traced after the warm-up: one session."""
INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
"""How programs end that were interrupted: by the signal, or as a shell would say it."""


@dataclass(frozen=True)
class Experiment:
    """What came back from the program's run."""

    referee: Referee
    ran: Ran

    @property
    def failure(self) -> int:
        """The program's exit code, where it failed by itself. The end that ``--stop`` asked
        for is no failure."""
        return 0 if self.referee.stopped and self.ran.code in INTERRUPTED else self.ran.code


def experiment(
    program: Sequence[str], path: Path, wanted: Wanted, warm_up: int, say: Callable[[str], None]
) -> Experiment:
    """Run ``python PROGRAM…``, with its output on standard error, and order repetitions meanwhile; ``say`` is
    told of each."""
    with tempfile.TemporaryDirectory() as folder:
        referee = Referee(path, Path(folder), wanted, say).start()
        plan = Plan(steps=((warm_up, warm_up + TRACED - 1),))
        first = min(FIRST, warm_up - STEPS) if warm_up >= STEPS else None
        try:
            ran = run(program, path, plan, output_to_errors=True, experiment=Path(folder), caches=first)
        finally:
            referee.stop()
    if ran.problem is not None:
        raise ran.problem
    return Experiment(referee, ran)


def report_of(path: Path, found: Experiment, calibrate_s: float) -> Report:
    """Everything that there is to say about a program's run."""
    referee = found.referee
    power = next((one for one in load(path).power() if one.domain.name == referee.domain), None)
    if power is None or not referee.targets:
        raise InputError(
            f"Nothing could be validated: {referee.problem or referee.reached}.",
            "It takes a PyTorch program with a few hundred steps; joulemap run shows which steps it has.",
        )
    recording = load(path)
    own = own_power(recording, power)
    stretches = clocked(referee.stretches, recording, power.domain.device)
    metered = Metered.of(own, stretches)
    steps, drawn = only_plain(_steps(path), stretches, referee.label), metered.refined(stretches)
    costs, notes = _calibrated(path, calibrate_s, steps, drawn)
    idle_w = _idle_w(costs, power)
    easing = Easing.of(metered, stretches)
    busy_s = {one.number: one.step_s for one in referee.targets}
    known = truths(busy_s, stretches, metered, idle_w if referee.waits else 0.0, easing)
    charges = _charges(path, referee, steps, drawn, costs is not None)
    rows = _rows(referee.targets, known, charges)
    base = plain(referee.stretches)
    count = sum(one.steps for one in base)
    return Report(
        domain=power.domain,
        rows=rows,
        not_validated=_missing(referee, known),
        step_j=step_energy_j(stretches, metered),
        step_s=sum(one.seconds for one in base) / max(count, 1),
        steps=count,
        blocks=referee.blocks,
        reached=referee.reached,
        easing=easing,
        notes=[
            *notes,
            *_notes(found, rows),
            *_shared(own, power, referee.stretches),
            *limit.remarks(recording, metered, stretches, easing),
        ],
    )


def _steps(path: Path) -> Steps:
    return load(path).steps() or Steps.from_columns(start_ns=[], end_ns=[])


def _shared(own: PowerTrace, power: PowerTrace, stretches: Sequence[Stretch]) -> list[str]:
    """What to say where others used the device: their work comes and goes as it likes."""
    spans = [(one.start_ns, one.end_ns) for one in stretches]
    own_j, all_j = (sum(trace.energy_between(a, b) for a, b in spans) for trace in (own, power))
    if all_j <= 0 or own_j > (1 - MOST_OF_OTHERS) * all_j:
        return []
    return [
        f"Other processes drew {fmt_share(1 - own_j / all_j)} of what {power.domain.name} did meanwhile: "
        "beside them no truth can be found. Validate on a machine of your own."
    ]


def _calibrated(
    path: Path, calibrate_s: float, steps: Steps, power: PowerTrace
) -> tuple[Calibrated | None, list[str]]:
    """Replay the operations by themselves, now that the device is free."""
    if calibrate_s <= 0:
        return None, []
    try:
        calibration = calibrate(load(path), calibrate_s, Book())
        if calibration.device != power.domain.device:
            return None, [f"{calibration.device} was calibrated, not {power.domain.device}."]
        found = calibrated(load(path), steps, power)
        return found, [*found.notes(), *found.warnings()]
    except JoulemapError as error:
        return None, [f"Not calibrated: {error.message}"]


def _idle_w(costs: Calibrated | None, power: PowerTrace) -> float:
    """What a GPU draws when it waits; 0 where that is not known, or where the host is the device."""
    on_gpu = power.domain.device.startswith("GPU")
    return costs.calibration.idle_w if costs is not None and on_gpu else 0.0


def _charges(
    path: Path, referee: Referee, steps: Steps, power: PowerTrace, with_costs: bool
) -> dict[str, dict[int, Charge]]:
    recording, asked = load(path), (referee.targets, steps, referee.label, power)
    found = {TIME: charged(recording, "exact", *asked)}
    if with_costs:
        found[CALIBRATED] = charged(recording, "calibrated", *asked)
    return found


def _rows(
    targets: Sequence[Target], found: dict[int, Truth], charges: dict[str, dict[int, Charge]]
) -> list[Row]:
    rows = [
        Row(one.kind, one.name, found[one.number], {rule: of[one.number] for rule, of in charges.items()})
        for one in targets
        if one.number in found
    ]
    return sorted(rows, key=lambda row: -row.truth_j)


def _missing(referee: Referee, found: dict[int, Truth]) -> list[NotValidated]:
    return [
        NotValidated(one.kind, one.name, one.share, referee.refused.get(one.number, referee.reached))
        for one in referee.targets
        if one.number not in found
    ]


def _notes(found: Experiment, rows: Sequence[Row]) -> list[str]:
    referee, notes = found.referee, []
    unsure = sum(not row.is_known for row in rows)
    if unsure:
        notes.append(
            f"{unsure} of {len(rows)} are not known well enough to count: fewer than {FEWEST} blocks, or an "
            "interval that reaches zero."
        )
    if referee.restless:
        notes.append(f"Before {referee.restless} of {referee.blocks} blocks the power was not level in time.")
    if referee.problem:
        notes.append(f"The experiment ended early: {referee.problem}.")
    if found.failure:
        notes.append(f"The program failed (exit code {found.failure}).")
    return notes
