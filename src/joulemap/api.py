"""The two verbs of the Python interface: load a recording, account it."""

from __future__ import annotations

import os
from dataclasses import replace

from joulemap.accounting import Footprint, Rule, attribute
from joulemap.recording import Recording


def load(path: str | os.PathLike[str], *, salvage: bool = False) -> Recording:
    """Open a recording. ``salvage`` goes on with what is left of a damaged one."""
    return Recording.open(path, salvage=salvage)


def account(recording: Recording | str | os.PathLike[str], rule: Rule = "exact") -> Footprint:
    """Account a recording, or the recording at a path; conservation is checked."""
    opened = recording if isinstance(recording, Recording) else load(recording)
    footprint = attribute(
        opened.events(),
        opened.power(),
        rule,
        steps=opened.steps(),
        window_ns=opened.info.window_ns,
        shares=opened.shares(),
    )
    return replace(footprint, warnings=(*opened.info.warnings, *opened.notes, *footprint.warnings))
