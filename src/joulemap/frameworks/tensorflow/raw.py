"""What the live adapter left behind, read after the program has ended: graphs, and profiles of some steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.tensorflow.graphs import read_graphs
from joulemap.frameworks.tensorflow.profiles import read_profiles
from joulemap.traces import Steps

GRAPHS, PROFILES = "graphs", "*.xplane.pb"


def read_raw(folder: Path, progress: Callable[[float], None] | None = None) -> ImportedTrace:
    """Read all sessions of a raw folder; a damaged one is left out with a note.

    Steps are the recorder's to know, so there are none.
    """
    graphs = read_graphs(folder / GRAPHS)
    read = read_profiles(sorted(folder.rglob(PROFILES)), graphs, progress, leave_out_damaged=True)
    return replace(read, steps=Steps.from_columns(start_ns=np.zeros(0), end_ns=np.zeros(0)))
