"""Whole programs on this machine's GPU: ``python -m studies.accuracy.live bert-train --batch 256``.

Does what ``joulemap validate --stop studies/accuracy/programs.py …`` does, and calibrates once for every
budget that is asked for, from nothing, so that one experiment tells what is left of the error as the budget
shrinks. With ``--keep`` the recording stays, and what was found in the run; ``--again`` reports on it anew,
after a calibration where ``--calibration`` asks for one.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from joulemap.calibration.recorded import CALIBRATION
from joulemap.recording import Recording
from joulemap.recording.info import save_info
from joulemap.validating.picture import picture
from joulemap.validating.plan import Wanted
from joulemap.validating.report import Report
from joulemap.validating.validate import Experiment, experiment, report_of

PROGRAMS = Path(__file__).with_name("programs.py")
WARM_UP = 10
RECORDING, KEPT = "run.joulemap", "kept.pickle"


def main() -> None:
    """Run one program, and write a report for every budget of calibration."""
    parser = argparse.ArgumentParser(description=main.__doc__, allow_abbrev=False)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of repeating")
    parser.add_argument("--calibration", type=float, nargs="+", help="seconds of replaying; 60")
    parser.add_argument("--least", type=float, default=0.01, help="of the busy time")
    parser.add_argument("--modules", type=int, default=3)
    parser.add_argument(
        "--output", type=Path, default=Path("accuracy"), help="folder for reports and pictures"
    )
    parser.add_argument("--name", help="of the reports; that of the program where it is left out")
    parser.add_argument("--keep", type=Path, help="folder for what a report can be made of again")
    parser.add_argument("--again", type=Path, nargs="+", help="report on what was kept, and run no program")
    asked, program = parser.parse_known_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    if asked.again:
        for folder in asked.again:
            found, took_s, called = pickle.loads((folder / KEPT).read_bytes())
            if asked.calibration:
                with tempfile.TemporaryDirectory() as scratch:
                    path = Path(shutil.copytree(folder / RECORDING, Path(scratch) / RECORDING))
                    anew(asked, path, found, called, asked.name or folder.name.rpartition("-")[0])
            else:
                write(report_of(folder / RECORDING, found, 0.0), took_s, called, asked.output / folder.name)
        return
    wanted = Wanted(budget_s=asked.budget, least_share=asked.least, modules=asked.modules, stop=True)
    with tempfile.TemporaryDirectory() as scratch:
        path, called = Path(scratch) / RECORDING, " ".join(program)
        found = experiment([str(PROGRAMS), *program], path, wanted, WARM_UP, say)
        anew(asked, path, found, called, asked.name or program[0])


def anew(asked: argparse.Namespace, path: Path, found: Experiment, called: str, name: str) -> None:
    """Report on an experiment after every calibration that was asked for."""
    for budget_s in asked.calibration or [60.0]:
        report, took_s = calibrated(path, found, budget_s)
        here = f"{name}-{budget_s:g}s"
        write(report, took_s, called, asked.output / here)
        if asked.keep is not None:
            shutil.copytree(path, asked.keep / here / RECORDING, dirs_exist_ok=True)
            (asked.keep / here / KEPT).write_bytes(pickle.dumps((found, took_s, called)))


def write(report: Report, took_s: float, program: str, name: Path) -> None:
    """A report, and its picture."""
    content = report.to_json() | {"calibration_s": took_s}
    Path(f"{name}.json").write_text(json.dumps(content, indent=1))
    Path(f"{name}.svg").write_text(picture(report, f"Joules a step: {program}"))
    say(f"calibrated for {took_s:.0f} s: {name}.json")


def calibrated(path: Path, found: Experiment, budget_s: float) -> tuple[Report, float]:
    """The report after a calibration that knew nothing before, and how long that took."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        forget(path)
        begin_s = time.monotonic()
        return report_of(path, found, budget_s), time.monotonic() - begin_s


def forget(path: Path) -> None:
    """What the recording itself knows of costs."""
    info = Recording.open(path).info
    kept = {name: what for name, what in info.extra.items() if name != CALIBRATION}
    save_info(path, replace(info, extra=kept))


def say(text: str) -> None:
    """How it goes."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
