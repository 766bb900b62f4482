"""What the program's side is told by the other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from joulemap.recorder.budget import Plan


@dataclass(frozen=True)
class CallSettings:
    """Which libraries' calls are metered, and in which of the program's files: those below ``root``, and
    those of some packages. ``fence`` waits for devices at the end of each call. ``patience_s`` is how long to
    wait for calm around each call, None where calls are not isolated."""

    libraries: tuple[str, ...]
    root: str = ""
    packages: tuple[str, ...] = ()
    script: str = ""
    fence: bool = False
    patience_s: float | None = None


@dataclass(frozen=True)
class Settings:
    """Where raw data go, what to trace, and which calls to meter; where an experiment's orders are; and the
    step in which to look at what is in caches, None where not to."""

    raw: str
    plan: Plan = field(default_factory=Plan)
    calls: CallSettings | None = None
    experiment: str | None = None
    caches: int | None = None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Settings:
        said = json.loads(content)
        plan = said["plan"]
        steps = tuple((first, last) for first, last in plan.pop("steps"))
        calls = said.get("calls")
        if calls is not None:
            lists: dict[str, Any] = {name: tuple(calls.pop(name)) for name in ("libraries", "packages")}
            calls = CallSettings(**lists, **calls)
        return cls(said["raw"], Plan(**plan, steps=steps), calls, said.get("experiment"), said.get("caches"))
