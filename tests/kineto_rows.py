"""What the tests of PyTorch's traces look at."""

from collections import Counter

import numpy as np


def table(events, kind=None):
    """(name, phase) -> calls, of one kind of rows."""
    kept = events if kind is None else events.take(np.array([k == kind for k in events.kind], bool))
    return Counter(zip(kept.name, kept.phase, strict=True))
