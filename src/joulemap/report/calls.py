"""Metered API calls by the place in the source that made them."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulemap.accounting.calls import CallFootprint, Stretches, account_calls
from joulemap.accounting.regions import NORMAL_975
from joulemap.accounting.sums import sums_by
from joulemap.calls.table import Calls
from joulemap.recording import Recording
from joulemap.report.numbers import short
from joulemap.units import NS_PER_S

MOST_SITES = 500


def call_sites(recording: Recording) -> dict[str, Any] | None:
    """The most expensive places, each with all its calls; None where no calls were metered."""
    calls = recording.calls()
    if calls is None or not len(calls):
        return None
    stretches = Stretches.of(calls.call, calls.parent, calls.thread, calls.start_ns, calls.end_ns)
    accounted = account_calls(
        stretches, recording.power(), window_ns=recording.info.window_ns, shares=recording.shares()
    )
    sites = sorted(_sites(calls, accounted), key=lambda site: -float(site["energy_j"]))
    return {"sites": sites[:MOST_SITES], "left_out": max(len(sites) - MOST_SITES, 0)}


def _sites(calls: Calls, accounted: CallFootprint) -> list[dict[str, Any]]:
    """A site may call several functions (``getattr(tf, name)``): each is a row of its own."""
    key = calls.site.astype(np.int64) * len(calls.api.words) + calls.api.codes
    _, example, group = np.unique(key, return_index=True, return_inverse=True)
    count = len(example)
    energy = sums_by(group, accounted.energy_j, count)
    half = NORMAL_975 * np.sqrt(sums_by(group, accounted.rms_j**2, count))
    inclusive = sums_by(group, accounted.inclusive_j, count)
    seconds = sums_by(group, (calls.end_ns - calls.start_ns) / NS_PER_S, count)
    times = np.bincount(group, minlength=count)
    place = calls.sites.rows(calls.site[example])
    estimated = any(domain.domain.provenance == "estimated" for domain in accounted.domains)
    return [
        {
            "api": calls.api.words[calls.api.codes[example[row]]],
            "text": calls.sites.text.words[calls.sites.text.codes[place[row]]],
            "file": calls.sites.file.words[calls.sites.file.codes[place[row]]],
            "line": int(calls.sites.line[place[row]]),
            "calls": int(times[row]),
            "energy_j": short(energy[row]),
            "low_j": short(max(energy[row] - half[row], 0.0)),
            "high_j": short(energy[row] + half[row]),
            "inclusive_j": short(inclusive[row]),
            "active_s": short(seconds[row]),
            "provenance": "estimated" if estimated else "measured",
        }
        for row in range(count)
    ]
