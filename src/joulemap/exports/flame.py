"""Flame graphs of joules: modules as stack frames, weighted by energy, for speedscope and flamegraph.pl.

All of what was drawn while recording is in it: what operations got, and each device's idle energy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulemap import __version__
from joulemap.exports.source import Source
from joulemap.program import split

_UJ_PER_J, _MJ_PER_J = 1_000_000, 1_000
_UNFIT = re.compile(r"[;\s]+")


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames from the outside in, on one device, and the energy that is theirs alone."""

    device: str
    frames: tuple[str, ...]
    energy_j: float


def stacks(source: Source) -> list[Stack]:
    """Every operation of every phase, and idle; what a phase is, its last frame says."""
    footprint = source.footprint
    rows = footprint.rollup(keep=("phase", "device"))
    columns = zip(rows.device, rows.name, rows.phase, rows.energy_j.tolist(), strict=True)
    found = [
        Stack(device, _frames(name, phase), energy) for device, name, phase, energy in columns if energy > 0
    ]
    found += [
        Stack(account.domain.device, (f"{account.domain.name} idle",), account.idle_j)
        for account in footprint.accounts
        if account.idle_j > 0
    ]
    return found


def _frames(name: str, phase: str) -> tuple[str, ...]:
    *layers, operation = split(name)
    return (*layers, operation if phase == "forward" else f"{operation} ({phase})")


def write_folded(source: Source, path: Path) -> None:
    """One line a stack, ``a;b;c 1234``, in microjoules: flame graph tools want whole numbers."""
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in _folded(source))


def _folded(source: Source) -> Iterator[str]:
    found = stacks(source)
    several = len({stack.device for stack in found}) > 1
    for stack in found:
        frames = (stack.device, *stack.frames) if several else stack.frames
        weight = round(stack.energy_j * _UJ_PER_J)
        if weight:
            yield f"{';'.join(_UNFIT.sub('_', frame) for frame in frames)} {weight}"


def write_speedscope(source: Source, path: Path) -> None:
    """A profile for each device, in millijoules (speedscope knows no joules: they are bare numbers)."""
    found = stacks(source)
    frames = {frame: number for number, frame in enumerate(dict.fromkeys(f for s in found for f in s.frames))}
    devices = dict.fromkeys(stack.device for stack in found)
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"joulemap {__version__}",
        "name": source.recording.path.stem,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [_profile(device, found, frames) for device in devices],
    }
    path.write_text(json.dumps(content))


def _profile(device: str, found: list[Stack], frames: dict[str, int]) -> dict[str, Any]:
    here = sorted((stack for stack in found if stack.device == device), key=lambda stack: stack.frames)
    weights = [stack.energy_j * _MJ_PER_J for stack in here]
    return {
        "type": "sampled",
        "name": f"{device}, energy in mJ",
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [[frames[frame] for frame in stack.frames] for stack in here],
        "weights": weights,
    }
