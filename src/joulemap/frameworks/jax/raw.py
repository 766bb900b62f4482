"""What the live adapter left behind, read after the program has ended: profiles of some steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.jax.profiles import read_profiles
from joulemap.traces import Steps

PROFILES = "*.xplane.pb"


def read_raw(folder: Path, progress: Callable[[float], None] | None = None) -> ImportedTrace:
    """Read all sessions of a raw folder. Steps are the recorder's to know, so there are none."""
    files = sorted(folder.rglob(PROFILES), key=lambda path: (len(path.parent.name), path.parent.name))
    none = np.zeros(0, np.int64)
    read = read_profiles(files, progress, one_process=True)
    return replace(read, steps=Steps.from_columns(start_ns=none, end_ns=none))
