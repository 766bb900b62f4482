"""What the recorder tells the monitor process, and what that says in return: one line of JSON each."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.meters.meter import Meter
from joulemap.monitor.quality import Quality
from joulemap.monitor.sampler import Summary
from joulemap.traces import ClockAnchor

EVERY_METER = "joulemap.meters.available:every_meter"


@dataclass(frozen=True)
class Settings:
    """``meters`` names a function as ``module:function``; called with ``arguments`` it returns the meters."""

    recording: str
    parent_pid: int
    program_pid: int
    meters: str = EVERY_METER
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: Sequence[str] = ()
    """Where the process looks for modules, as its parent does."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return cls(**json.loads(text))


def meters_from(reference: str, arguments: Mapping[str, Any]) -> Sequence[Meter]:
    """Call the function that ``module:function`` names."""
    module, _, function = reference.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{reference!r} names no meters: {error}.", "Write it as module:function."
        ) from error
    return cast("Sequence[Meter]", make(**arguments))


@dataclass(frozen=True, slots=True)
class Report:
    """How the monitor fared. ``quality`` and ``anchor`` are missing where it did not live to tell.

    ``notes`` are sentences for the warnings of the recording."""

    notes: Sequence[str]
    quality: Quality | None = None
    anchor: ClockAnchor | None = None

    def to_json(self) -> str:
        return json.dumps({"report": dataclasses.asdict(self)})

    @classmethod
    def of(cls, summary: Summary, problem: str = "") -> Report:
        """What the sampler says at its end, and what could not be written."""
        notes = [note.text for note in summary.notes]
        return cls([*notes, problem] if problem else notes, summary.quality, summary.anchor)

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Report:
        quality, anchor = content["quality"], content["anchor"]
        return cls(content["notes"], quality and Quality(**quality), anchor and ClockAnchor(**anchor))


def ready_line(domains: Sequence[Domain]) -> str:
    """Said once the first reading is taken."""
    return json.dumps({"ready": [dataclasses.asdict(domain) for domain in domains]})


def error_line(message: str, hint: str) -> str:
    """Said where the monitor cannot go on."""
    return json.dumps({"error": message, "hint": hint})
