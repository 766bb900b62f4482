"""Stretches of time as lines: steps, their kinds, and the regions that a program names."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulemap.accounting.footprint import Footprint
from joulemap.accounting.regions import Region
from joulemap.accounting.student import NORMAL_975
from joulemap.errors import InputError
from joulemap.views.question import Line, Question, drawn_j


def step_rows(footprint: Footprint) -> list[dict[str, Any]]:
    """Every step in every domain, for JSON and CSV."""
    return [
        {
            "step": step,
            "domain": account.domain.name,
            "energy_j": energy,
            "provenance": account.domain.provenance,
        }
        for account in footprint.accounts
        for step, energy in enumerate(account.step_j.tolist())
    ]


def step_lines(footprint: Footprint, question: Question) -> list[Line]:
    """Every step's energy, idle included, to what the meters resolve in that time."""
    if question.power or question.summarised or question.rules:
        raise InputError(
            "Steps have no power footprint and no layers to merge.", "Leave out --power and --summarised."
        )
    if not any(len(account.step_j) for account in footprint.accounts):
        raise InputError("This recording has no steps.", "Show it by module, op, phase or device.")
    energy = np.sum([account.step_j for account in footprint.accounts], axis=0)
    half = NORMAL_975 * np.sqrt(np.sum([account.step_rms_j() ** 2 for account in footprint.accounts], axis=0))
    total = float(energy.sum())
    estimated = any(account.domain.provenance == "estimated" for account in footprint.accounts)
    lines = [
        Line(
            label=f"step {step}",
            path=str(step),
            depth=0,
            energy_j=joules,
            low_j=max(joules - width, 0.0),
            high_j=joules + width,
            share=joules / total if total else 0.0,
            active_s=None,
            calls=None,
            provenance="estimated" if estimated else "measured",
            spread=False,
        )
        for step, (joules, width) in enumerate(zip(energy.tolist(), half.tolist(), strict=True))
    ]
    if question.top is None:
        return lines
    return sorted(lines, key=lambda line: -line.energy_j)[: question.top]


def region_rows(question: Question) -> list[dict[str, Any]]:
    """Every region, or kind of step, in every domain, for JSON and CSV."""
    rows = [
        {
            question.by: region.name,
            "domain": region.domain.name,
            "energy_j": region.energy_j,
            "low_j": region.low_j,
            "high_j": region.high_j,
            "active_s": region.seconds,
            "calls": region.calls,
            **({"count": region.count, "unit": region.unit} if region.unit else {}),
            "provenance": region.domain.provenance,
        }
        for region in question.regions
    ]
    return sorted(rows, key=lambda row: -float(row["energy_j"]))


def region_lines(footprint: Footprint, question: Question) -> list[Line]:
    """What was drawn while each region was open, or steps of each kind, over all domains."""
    what = "Regions" if question.by == "region" else "Steps"
    if question.power or question.summarised or question.rules or question.baseline_w is not None:
        raise InputError(f"{what} are stretches of time.", "Leave out --power, --summarised and --net.")
    if not question.regions and question.by == "kind":
        raise InputError("This recording has no steps.", "Show it by module, op, phase or device.")
    if not question.regions:
        raise InputError("This recording has no regions.", 'Name one: with joulemap.measure("loading"): …')
    total = drawn_j(footprint)
    lines = []
    for name in dict.fromkeys(region.name for region in question.regions):
        alike = [region for region in question.regions if region.name == name]
        energy = sum(region.energy_j for region in alike)
        half = NORMAL_975 * sum(region.rms_j for region in alike)  # devices in step err to the same side
        lines.append(
            Line(
                label=name,
                path=name,
                depth=0,
                energy_j=energy,
                low_j=max(energy - half, 0.0),
                high_j=energy + half,
                share=energy / total if total else 0.0,
                active_s=alike[0].seconds,
                calls=alike[0].calls,
                provenance=_weakest(alike),
                count=alike[0].count,
                unit=alike[0].unit,
            )
        )
    return sorted(lines, key=lambda line: -line.energy_j)[: question.top]


def _weakest(alike: list[Region]) -> str:
    return "estimated" if any(one.domain.provenance == "estimated" for one in alike) else "measured"
