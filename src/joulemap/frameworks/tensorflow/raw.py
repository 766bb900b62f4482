"""What the live adapter left behind, read after the program has ended: graphs, and profiles of some steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from joulemap.errors import InputError
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.tensorflow.graphs import read_graphs
from joulemap.frameworks.tensorflow.host import host_events
from joulemap.frameworks.tensorflow.naming import Naming
from joulemap.frameworks.xplane.space import HOST, read_space
from joulemap.program import Program
from joulemap.traces import EventTrace, Steps

TENSORFLOW = "tensorflow"
GRAPHS, PROFILES = "graphs", "*.xplane.pb"


def read_raw(folder: Path, progress: Callable[[float], None] | None = None) -> ImportedTrace:
    """Read all sessions of a raw folder. Steps are the recorder's to know, so there are none."""
    naming = Naming(read_graphs(folder / GRAPHS))
    files = sorted(folder.rglob(PROFILES))
    parts, notes = [], []
    for number, path in enumerate(files):
        try:
            space = read_space(path)
        except InputError as error:
            notes.append(f"Left out: {error.message}")
            continue
        parts.append(host_events(space.events[HOST], str(number), naming))
        if progress is not None:
            progress((number + 1) / len(files))
    none = np.zeros(0, np.int64)
    events = (
        EventTrace.joined(parts)
        if parts
        else EventTrace.from_columns(name=(), device=(), start_ns=none, end_ns=none)
    )
    return ImportedTrace(events, Steps.from_columns(start_ns=none, end_ns=none), Program(), TENSORFLOW, notes)
