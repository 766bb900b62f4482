"""Every meter that joulemap knows, and those that work here.

CPU energy has a ladder: RAPL, then the same counters through perf events, then sensors on the board, then
what a running ``joulemap monitor`` reads, then an estimate. The first rung that holds is used, so that no
energy is counted twice and none is estimated that can be measured.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from joulemap.devices import Device
from joulemap.errors import MeterError
from joulemap.meters.meter import Channel, Meter, Probe

_METERS = (
    ("joulemap.meters.rapl", "RaplMeter"),
    ("joulemap.meters.perf", "PerfMeter"),
    ("joulemap.meters.nvml", "NvmlMeter"),
    ("joulemap.meters.amd", "AmdMeter"),
    ("joulemap.meters.hwmon", "HwmonMeter"),
    ("joulemap.meters.remote", "RemoteMeter"),
    ("joulemap.meters.estimate", "EstimateMeter"),
)


@dataclass(frozen=True)
class OpenMeter:
    """A meter that was opened, with the channels that are used of it."""

    meter: Meter
    channels: Sequence[Channel]

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


@dataclass(frozen=True)
class OpenMeters:
    """What is open, and what was left out with the reason, by the meter's name."""

    opened: Sequence[OpenMeter]
    left_out: dict[str, Probe]

    @property
    def channels(self) -> list[Channel]:
        return [channel for meter in self.opened for channel in meter.channels]

    def facts(self) -> dict[str, float]:
        """What explains the energy, from all meters."""
        return {name: value for open_ in self.opened for name, value in open_.meter.facts().items()}

    def close(self) -> None:
        for open_ in self.opened:
            open_.close()

    def __enter__(self) -> OpenMeters:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def every_meter() -> list[Meter]:
    """One of each kind, in the order of preference; none is opened, no vendor's library is needed."""
    return [
        getattr(importlib.import_module(module), name)()
        for module, name in _METERS
        if importlib.util.find_spec(module) is not None
    ]


def open_meters(meters: Sequence[Meter] | None = None) -> OpenMeters:
    """Open what works here: every domain once, and an estimate only where no CPU can be measured."""
    opened: list[OpenMeter] = []
    left_out: dict[str, Probe] = {}
    for meter in every_meter() if meters is None else meters:
        taken = [channel for open_ in opened for channel in open_.channels]
        said = _superseded(meter, opened, taken) or meter.probe()
        if not said.available:
            left_out[meter.name] = said
            continue
        try:
            opened.append(OpenMeter(meter, _new(meter, meter.open(), taken)))
        except MeterError as error:
            left_out[meter.name] = Probe(False, error.message, error.hint)
    return OpenMeters(opened, left_out)


def _superseded(meter: Meter, opened: Sequence[OpenMeter], taken: Sequence[Channel]) -> Probe | None:
    """Why a meter is not needed, where a better one is open."""
    if meter.name == "perf" and any(open_.meter.name == "rapl" for open_ in opened):
        return Probe(False, "Not needed: RAPL is read directly.")
    if meter.name == "remote" and any(open_.meter.name in ("rapl", "perf") for open_ in opened):
        return Probe(False, "Not needed: RAPL is read directly.")
    if meter.name == "estimate" and "CPU" in _kinds(taken):
        return Probe(False, "Not needed: the CPU is measured.")
    return None


def _new(meter: Meter, channels: Sequence[Channel], taken: Sequence[Channel]) -> list[Channel]:
    """Channels of domains that are not open yet; the others are closed. A monitor may number its devices in
    another way than a program that sees only some of them, so of it only other kinds of devices are new."""
    names, kinds = {channel.domain.name for channel in taken}, _kinds(taken)

    def is_new(channel: Channel) -> bool:
        return channel.domain.name not in names and not (
            meter.name == "remote" and _kinds([channel]) <= kinds
        )

    for channel in channels:
        if not is_new(channel):
            channel.close()
    return [channel for channel in channels if is_new(channel)]


def _kinds(channels: Sequence[Channel]) -> set[str]:
    return {Device.parse(channel.domain.device).kind for channel in channels}
