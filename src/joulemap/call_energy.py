"""The calls of a recording, with their energy."""

from __future__ import annotations

from collections.abc import Mapping

from joulemap.accounting.calls import CallFootprint, Stretches, account_calls
from joulemap.calls.protocol import ISOLATION
from joulemap.calls.table import Calls
from joulemap.errors import InputError
from joulemap.recording import Recording


def calls_of(recording: Recording) -> Calls:
    """The calls of a recording; ``InputError`` where they were not metered."""
    calls = recording.calls()
    if calls is None:
        raise InputError(
            f"{recording.path} has no calls.", "Record them: joulemap run --calls tensorflow train.py"
        )
    return calls


def account_calls_of(
    recording: Recording, baseline_w: Mapping[str, float] | None = None
) -> tuple[Calls, CallFootprint]:
    """The calls of a recording and their energy; isolated ones over the baseline before each."""
    calls, protocol = calls_of(recording), recording.info.extra.get(ISOLATION)
    footprint = account_calls(
        Stretches.of_table(calls),
        recording.power(),
        window_ns=recording.info.window_ns,
        shares=recording.shares(),
        baseline_w=baseline_w,
        baseline_s=None if protocol is None else float(protocol["baseline_s"]),
    )
    return calls, footprint
