"""Events of a busy machine, as if no thread had waited for a core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulemap.traces import EventTrace


def undisturbed(events: EventTrace) -> EventTrace:
    """Each as quick as the quickest of its name, phase and kind."""
    what = np.stack([column.codes for column in (events.name, events.phase, events.kind)])
    _, same = np.unique(what, axis=1, return_inverse=True)
    lengths_ns = events.end_ns - events.start_ns
    quickest_ns = np.full(same.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(quickest_ns, same.ravel(), lengths_ns)
    return replace(events, end_ns=events.start_ns + quickest_ns[same.ravel()])
