"""Run a program and look at its first steps, as ``joulemap run --calibrate`` does before it calibrates:
``python look_at.py RECORDING PROGRAM …``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from joulemap.recorder import run
from joulemap.recorder.budget import Plan

if __name__ == "__main__":
    recording, *program = sys.argv[1:]
    vars(run)["finish"] = partial(run.finish, keep_raw=True)  # what was seen is there
    sys.exit(run.run(program, Path(recording), Plan(), caches=1).code)
