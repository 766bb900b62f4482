"""What the program's side is told by the other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from joulemap.recorder.budget import Plan


@dataclass(frozen=True)
class Settings:
    """Where raw data go, and what to trace."""

    raw: str
    plan: Plan = field(default_factory=Plan)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Settings:
        said = json.loads(content)
        plan = said["plan"]
        steps = tuple((first, last) for first, last in plan.pop("steps"))
        return cls(said["raw"], Plan(**plan, steps=steps))
