"""The environment of programs that the tests start."""

from __future__ import annotations

import os


def uncovered() -> dict[str, str]:
    """The environment without coverage, which would make every program slower by half."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COV")}
