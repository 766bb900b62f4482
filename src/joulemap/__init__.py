"""joulemap: where do my joules go?

The energy of a deep-learning program by layer, tensor operation, phase and device. The public names are
imported when they are first used: ``import joulemap`` itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulemap.accounting.attribute import attribute
    from joulemap.accounting.diagram import Diagram, energy_distribution
    from joulemap.accounting.footprint import Footprint
    from joulemap.api import account, load
    from joulemap.devices import Device, Domain
    from joulemap.errors import JoulemapError
    from joulemap.program import Program, QualifiedName
    from joulemap.recorder.record import measure, record, step
    from joulemap.recording import Recording, RecordingWriter
    from joulemap.traces import ClockAnchor, EventTrace, PowerTrace, Steps

__version__ = "0.1.0.dev0"

_HOME = {
    "ClockAnchor": "joulemap.traces",
    "Device": "joulemap.devices",
    "Diagram": "joulemap.accounting.diagram",
    "Domain": "joulemap.devices",
    "EventTrace": "joulemap.traces",
    "Footprint": "joulemap.accounting.footprint",
    "JoulemapError": "joulemap.errors",
    "PowerTrace": "joulemap.traces",
    "Program": "joulemap.program",
    "QualifiedName": "joulemap.program",
    "Recording": "joulemap.recording",
    "RecordingWriter": "joulemap.recording",
    "Steps": "joulemap.traces",
    "account": "joulemap.api",
    "attribute": "joulemap.accounting.attribute",
    "energy_distribution": "joulemap.accounting.diagram",
    "load": "joulemap.api",
    "measure": "joulemap.recorder.record",
    "record": "joulemap.recorder.record",
    "step": "joulemap.recorder.record",
}

__all__ = [
    "ClockAnchor",
    "Device",
    "Diagram",
    "Domain",
    "EventTrace",
    "Footprint",
    "JoulemapError",
    "PowerTrace",
    "Program",
    "QualifiedName",
    "Recording",
    "RecordingWriter",
    "Steps",
    "__version__",
    "account",
    "attribute",
    "energy_distribution",
    "load",
    "measure",
    "record",
    "step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'joulemap' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
