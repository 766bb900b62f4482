"""Metered API calls by the place in the source that made them, as ``show --by call`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulemap.call_energy import account_calls_of
from joulemap.calls.table import Sites
from joulemap.recording import Recording
from joulemap.report.numbers import short
from joulemap.views.callgroups import Group, groups

MOST_SITES = 500


def call_sites(recording: Recording, baseline_w: Mapping[str, float] | None) -> dict[str, Any] | None:
    """The most expensive places, each with all its calls; None where no calls were metered."""
    if not recording.calls():
        return None
    calls, accounted = account_calls_of(recording, baseline_w)
    found = groups(calls, accounted)
    text = _texts(calls.sites)
    estimated = any(domain.domain.provenance == "estimated" for domain in accounted.domains)
    sites = [_site(group, text, "estimated" if estimated else "measured") for group in found[:MOST_SITES]]
    return {"sites": sites, "left_out": len(found) - len(sites)}


def _texts(sites: Sites) -> dict[tuple[str, int, int], str]:
    """What stands at each place in the source."""
    places = zip(sites.file, sites.line.tolist(), sites.column.tolist(), strict=True)
    return dict(zip(places, sites.text, strict=True))


def _site(group: Group, text: Mapping[tuple[str, int, int], str], provenance: str) -> dict[str, Any]:
    place = group.place
    return {
        "api": place.api,
        "text": text[place.file, place.line, place.column],
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "calls": round(group.calls),
        "raised": round(group.raised),
        "energy_j": short(group.energy_j),
        "low_j": short(group.low_j),
        "high_j": short(group.high_j),
        "interval": True,
        "inclusive_j": short(group.inclusive_j),
        "net_j": None if group.net_j is None else short(group.net_j),
        "active_s": short(group.seconds),
        "provenance": provenance,
    }
