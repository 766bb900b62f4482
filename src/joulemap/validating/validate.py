"""A program, run once: some steps traced, then operations repeated; and what the rules say of it."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from joulemap.api import load
from joulemap.calibrating import calibrate
from joulemap.calibration.book import Book
from joulemap.calibration.recorded import CALIBRATION, Calibrated, calibrated, own_power
from joulemap.errors import InputError, JoulemapError
from joulemap.recorder.budget import Plan
from joulemap.recorder.look import FIRST, WAYS
from joulemap.recorder.run import run
from joulemap.recording import Recording
from joulemap.replaying import Watching
from joulemap.traces import PowerTrace, Steps
from joulemap.units import fmt_share
from joulemap.validating import limit
from joulemap.validating.easing import Easing
from joulemap.validating.laws import laws
from joulemap.validating.metered import Metered
from joulemap.validating.plan import Wanted
from joulemap.validating.referee import Referee
from joulemap.validating.report import CALIBRATED, TIME, NotValidated, Report, Row
from joulemap.validating.rules import Charge, charged, only_plain
from joulemap.validating.stretch import Stretch, clocked, plain
from joulemap.validating.target import Target, work_s
from joulemap.validating.truth import FEWEST, Truth, step_energy_j, truths

MOST_OF_OTHERS = 0.1
TRACED = 5
"""Steps that are traced after the warm-up: one session."""
_AGAIN = "joulemap calibrate --clear forgets what is stored; the next validation measures all of it anew."
INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
"""How programs end that were interrupted: by the signal, or as a shell would say it."""


@dataclass(frozen=True)
class Experiment:
    """What came back from the program's run, beside the recording. ``failure`` is the program's exit code,
    where it failed by itself; the end that ``--stop`` asked for is no failure."""

    label: str
    domain: str
    waits: bool
    targets: Sequence[Target]
    refused: Mapping[int, str]
    stretches: Sequence[Stretch]
    blocks: int
    restless: int
    reached: str
    problem: str
    failure: int

    @property
    def interrupted(self) -> bool:
        """By somebody who wants it to end."""
        return self.failure in INTERRUPTED

    @classmethod
    def of(cls, referee: Referee, code: int) -> Experiment:
        """When it is over."""
        said = {one.name: getattr(referee, one.name) for one in fields(cls) if one.name != "failure"}
        return cls(**said, failure=0 if referee.stopped and code in INTERRUPTED else code)


def experiment(
    program: Sequence[str],
    path: Path,
    wanted: Wanted,
    warm_up: int,
    say: Callable[[str], None],
    overwrite: bool = False,
) -> Experiment:
    """Run ``python PROGRAM…``, with its output on standard error, and order repetitions meanwhile; ``say`` is
    told of each. ``overwrite`` replaces a recording of that name."""
    with tempfile.TemporaryDirectory() as folder:
        referee = Referee(path, Path(folder), wanted, say).start()
        plan = Plan(steps=((warm_up, warm_up + TRACED - 1),))
        first = max(min(FIRST, warm_up - WAYS), 0) if warm_up else None
        try:
            ran = run(
                program,
                path,
                plan,
                overwrite=overwrite,
                output_to_errors=True,
                experiment=Path(folder),
                caches=first,
            )
        finally:
            referee.stop()
    if ran.problem is not None:
        raise ran.problem
    return Experiment.of(referee, ran.code)


def report_of(path: Path, found: Experiment, calibrate_s: float, watching: Watching | None = None) -> Report:
    """Everything that there is to say about a program's run; calibrated before, for so long unless it was
    interrupted, or with the costs that the recording carries."""
    powers = load(path).power()
    if not powers:
        raise InputError(
            "Nothing could be validated: nothing was metered.", "joulemap doctor says what works here."
        )
    power = next((one for one in powers if one.domain.name == found.domain), None)
    if power is None or not found.targets:
        raise InputError(
            f"Nothing could be validated: {found.problem or found.reached}.",
            "It takes a PyTorch program with a few hundred steps; joulemap run shows which steps it has.",
        )
    missing = _replayed(path, 0.0 if found.interrupted else calibrate_s, watching)
    recording = load(path)
    own = own_power(recording, power)
    stretches = clocked(found.stretches, recording, power.domain.device)
    metered = Metered.of(own, stretches)
    steps, drawn = only_plain(_steps(recording), stretches, found.label), metered.refined(stretches)
    costs, notes = _calibrated(recording, steps, drawn)
    idle_w = _idle_w(costs, power)
    easing = Easing.of(metered, stretches, work_s(found.targets))
    asked = (found.targets, steps, found.label, drawn)
    charges = {TIME: charged(recording, "exact", *asked)}
    if costs is not None:
        charges[CALIBRATED] = charged(recording, "calibrated", *asked)
    each = laws(recording, *asked[:-1], easing, power.domain.device) if costs is not None else {}
    busy_s = {one.number: one.step_s for one in found.targets}
    known = truths(busy_s, stretches, metered, _waiting_w(found, metered, idle_w), easing, each)
    rows = _rows(found.targets, known, charges)
    base = plain(found.stretches)
    count = sum(one.steps for one in base)
    return Report(
        domain=power.domain,
        rows=rows,
        not_validated=_missing(found, known),
        step_j=step_energy_j(stretches, metered),
        step_s=sum(one.seconds for one in base) / max(count, 1),
        steps=count,
        blocks=found.blocks,
        reached=found.reached,
        easing=easing,
        notes=[
            *missing,
            *notes,
            *_notes(found, rows),
            *_shared(own, power, found.stretches),
            *limit.remarks(recording, metered, stretches, easing, with_laws=bool(each)),
        ],
    )


def _steps(recording: Recording) -> Steps:
    return recording.steps() or Steps.from_columns(start_ns=[], end_ns=[])


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


def _replayed(path: Path, calibrate_s: float, watching: Watching | None) -> list[str]:
    """Replay the operations by themselves, now that the device is free; what to say of it, or why not."""
    if calibrate_s <= 0:
        return []
    try:
        found = calibrate(load(path), calibrate_s, book := Book(), watching)
    except JoulemapError as error:
        return [f"Not calibrated: {_whole(error)}"]
    said = found.remarks(_AGAIN)
    if book.problem is not None:
        said.append(f"The costs are not kept for the next time. {_whole(book.problem)}")
    if book.reused:
        said.append(
            f"{len(book.reused)} of {len(found.costs)} costs were known from earlier calibrations, and were "
            f"not measured again. {_AGAIN}"
        )
    return said


def _whole(error: JoulemapError) -> str:
    """With what to do about it."""
    return f"{error.message} {error.hint}".strip()


def _calibrated(recording: Recording, steps: Steps, power: PowerTrace) -> tuple[Calibrated | None, list[str]]:
    if CALIBRATION not in recording.info.extra:
        return None, []
    try:
        found = calibrated(recording, steps, power)
    except JoulemapError as error:
        return None, [f"Not calibrated: {_whole(error)}"]
    if power.domain.name not in found.calibration.idle_weight:
        return None, [f"{', '.join(found.calibration.idle_weight)} was calibrated, not {power.domain.name}."]
    return found, [*found.notes(), *found.warnings("--calibration", _AGAIN)]


def _idle_w(costs: Calibrated | None, power: PowerTrace) -> float:
    """What a GPU draws when it waits; 0 where that is not known, or where the host is the device."""
    on_gpu = power.domain.device.startswith("GPU")
    return costs.calibration.idle_w if costs is not None and on_gpu else 0.0


def _waiting_w(found: Experiment, metered: Metered, idle_w: float) -> float:
    """What is drawn in the time that executions add and do not work in; 0 where there is none."""
    if any(one.ease for one in found.stretches):
        return metered.rest_w
    return idle_w if found.waits else 0.0


def _rows(
    targets: Sequence[Target], found: dict[int, Truth], charges: dict[str, dict[int, Charge]]
) -> list[Row]:
    rows = [
        Row(one.kind, one.name, found[one.number], {rule: of[one.number] for rule, of in charges.items()})
        for one in targets
        if one.number in found
    ]
    return sorted(rows, key=lambda row: -row.truth_j)


def _missing(found: Experiment, known: dict[int, Truth]) -> list[NotValidated]:
    return [
        NotValidated(one.kind, one.name, one.share, found.refused.get(one.number, found.reached))
        for one in found.targets
        if one.number not in known
    ]


def _notes(found: Experiment, rows: Sequence[Row]) -> list[str]:
    notes = []
    unsure = sum(not row.is_known for row in rows)
    if unsure:
        notes.append(
            f"{unsure} of {len(rows)} are not known well enough to count: fewer than {FEWEST} blocks, or an "
            "interval that reaches zero."
        )
    if found.restless:
        notes.append(f"Before {found.restless} of {found.blocks} blocks the power was not level in time.")
    if found.problem:
        notes.append(f"The experiment ended early: {found.problem}.")
    if found.interrupted:
        notes.append("The program was interrupted, so its operations were not calibrated.")
    elif found.failure:
        notes.append(f"The program failed (exit code {found.failure}).")
    return notes
