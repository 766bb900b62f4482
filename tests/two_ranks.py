"""Two processes of one job, recorded each by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import joulemap

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(joulemap.__file__).parents[1])}
LAUNCHER = """
import os, subprocess, sys, time
ranks = []
for rank in range(2):
    ranks.append(
        subprocess.Popen(
            [sys.executable, "-m", "joulemap", "run", *sys.argv[1:], "work.py"],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
        )
    )
    time.sleep(1.1)
sys.exit(max(rank.wait() for rank in ranks))
"""
WORK = "import joulemap\nwith joulemap.step():\n    sum(range(30_000_000))\n"


def launched(folder: Path, *options: str, work: str = WORK) -> str:
    """Two ranks, the second of which begins a little later; what they said."""
    (folder / "launch.py").write_text(LAUNCHER)
    (folder / "work.py").write_text(work)
    done = subprocess.run(
        [sys.executable, "launch.py", *options],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
