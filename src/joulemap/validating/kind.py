"""Which events are of the kind of step that is validated: others may have the same names in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.attribute import step_of_event
from joulemap.traces import EventTrace, Steps


def of_kind(events: EventTrace, steps: Steps, label: str) -> NDArray[np.bool_]:
    """All that lie in no step of another label."""
    alike = steps.label.codes == steps.label.code(label)
    return np.asarray(np.append(alike, True)[step_of_event(events, steps)], np.bool_)  # NO_STEP is the last
