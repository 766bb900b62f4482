"""``joulemap doctor``: which meters work here, why the others do not, and what to do about it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from joulemap import __version__
from joulemap.commands.output import console, print_json, progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from joulemap.meters import Channel, Meter
    from joulemap.meters.available import OpenMeters
    from joulemap.meters.characterise import Characteristics, Load

ONLY_ESTIMATES = 3
"""The exit code that says so; all of them are listed in ``cli.py``."""

_FORMAT = 1
_STYLES = {"measures": "green", "estimates": "yellow", "not available": "dim"}


@dataclass
class Finding:
    """One meter on this machine."""

    name: str
    state: str
    """``measures``, ``estimates`` or ``not available``."""
    reason: str
    remedy: str = ""
    domains: list[dict[str, Any]] = field(default_factory=list)


@click.command("doctor")
@click.option("--characterise", "measure", is_flag=True, help="Measure on the spot what each sensor does.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=8.0,
    show_default=True,
    metavar="S",
    help="How long to watch each device for --characterise.",
)
@click.option("--json", "as_json", is_flag=True, help="The documented JSON instead of tables.")
@click.pass_context
def command(ctx: click.Context, measure: bool, seconds: float, as_json: bool) -> None:
    """Say which meters work here, why the others do not, and what to do about it.

    \b
    joulemap doctor                     every meter, its state and the remedy
    joulemap doctor --characterise      and how often each sensor updates, what it sees, how noisy it is

    Exits with 0 when something can be measured, with 3 when energy can only be estimated.
    """
    from joulemap.meters.available import every_meter

    meters = every_meter()
    findings = [examine(meter) for meter in meters]
    found = list(_characterise(meters, seconds)) if measure else None
    if as_json:
        print_json(to_json(findings, found))
    else:
        _render(findings, found, console())
    ctx.exit(0 if any(finding.state == "measures" for finding in findings) else ONLY_ESTIMATES)


def examine(meter: Meter) -> Finding:
    """Probe a meter; where it works, list its domains."""
    from joulemap.errors import MeterError

    said = meter.probe()
    if not said.available:
        return Finding(meter.name, "not available", said.reason, said.remedy)
    try:
        channels = meter.open()
    except MeterError as error:
        return Finding(meter.name, "not available", error.message, error.hint)
    domains = [_domain(channel) for channel in channels]
    for channel in channels:
        channel.close()
    estimated = all(domain["provenance"] == "estimated" for domain in domains)
    return Finding(meter.name, "estimates" if estimated else "measures", said.reason, said.remedy, domains)


def to_json(findings: Sequence[Finding], found: Sequence[Characteristics] | None) -> dict[str, Any]:
    """Everything that is known, for programs."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "joulemap": __version__,
        "system": platform.platform(),
        "python": platform.python_version(),
        "measured": any(finding.state == "measures" for finding in findings),
        "meters": [vars(finding) for finding in findings],
    }
    if found is not None:
        content["characteristics"] = [_characteristics(one) for one in found]
    return content


def _domain(channel: Channel) -> dict[str, Any]:
    domain = channel.domain
    return {
        "name": domain.name,
        "device": domain.device,
        "parent": domain.parent,
        "sensor": domain.sensor,
        "provenance": domain.provenance,
        "quantity": channel.quantity,
        "update_period_s": domain.update_period_s,
    }


def _characteristics(found: Characteristics) -> dict[str, Any]:
    from dataclasses import asdict

    derived = {
        "resolved": found.resolved,
        "kind": found.kind,
        "duty": found.duty,
        "aliases_s": found.aliases_s(),
    }
    return asdict(found) | derived


def _characterise(meters: Sequence[Meter], seconds: float) -> Iterator[Characteristics]:
    """Watch every reading of what works, a device at a time, under a load where we can make one."""
    from joulemap.meters.available import open_meters
    from joulemap.meters.characterise import characterise_together

    with open_meters(meters) as opened, progress("watching the sensors") as advance:
        devices = _by_device(_readings(opened))
        for done, channels in enumerate(devices):
            yield from characterise_together(channels, seconds, _load_for(channels[0]))
            if advance is not None:
                advance((done + 1) / len(devices))


def _readings(opened: OpenMeters) -> Iterator[Channel]:
    """What is metered, and the readings beside it."""
    from joulemap.meters.gpu import Beside

    for open_ in opened.opened:
        yield from open_.channels
        if isinstance(open_.meter, Beside):
            yield from open_.meter.beside()


def _by_device(channels: Iterable[Channel]) -> list[list[Channel]]:
    """All of the CPUs', and all of each GPU's: they are watched under one load. Estimates are apart."""
    from joulemap.devices import Device

    found: dict[tuple[str, str], list[Channel]] = {}
    for channel in channels:
        device = Device.parse(channel.domain.device)
        which = "CPU" if device.kind == "CPU" else str(device)
        found.setdefault((which, channel.domain.provenance), []).append(channel)
    return list(found.values())


def _load_for(channel: Channel) -> Load | None:
    """Something to do for the device of a measured channel; an estimate has no sensor to find out about."""
    from joulemap.devices import Device
    from joulemap.meters.load import cpu_bursts, gpu_bursts

    device = Device.parse(channel.domain.device)
    if channel.domain.provenance == "estimated":
        return None
    if device.kind == "GPU":
        return gpu_bursts(device.index or 0)
    return cpu_bursts if device.kind == "CPU" else None


def _render(findings: Sequence[Finding], found: Sequence[Characteristics] | None, out: Console) -> None:
    out.print(
        f"joulemap {__version__} on {platform.platform()}, Python {platform.python_version()}\n", style="dim"
    )
    out.print(_meters(findings))
    out.print(f"\n{_conclusion(findings)}", soft_wrap=True, markup=False)
    if found is not None:
        out.print()
        out.print(_sensors(found))
        out.print()
        for line in dict.fromkeys(line for one in found for line in _advice(one)):
            out.print(line, soft_wrap=True, markup=False)


def _meters(findings: Sequence[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("meter", "state", "domains"):
        table.add_column(heading, no_wrap=heading != "domains")
    table.add_column("why, and what to do", ratio=1)
    for finding in findings:
        what = Text(finding.reason)
        if finding.remedy:
            what.append(f"\n→ {finding.remedy}", style="dim")
        state = Text(finding.state, style=_STYLES[finding.state])
        table.add_row(finding.name, state, ", ".join(domain["name"] for domain in finding.domains), what)
    return table


def _conclusion(findings: Sequence[Finding]) -> str:
    names = {
        state: ", ".join(
            domain["name"] for finding in findings if finding.state == state for domain in finding.domains
        )
        for state in ("measures", "estimates")
    }
    if names["measures"]:
        return f"Measured here: {names['measures']}."
    if names["estimates"]:
        return f"Nothing can be measured here. {names['estimates']}: estimated, as every number will say."
    return "Nothing can be measured or estimated here."


def _sensors(found: Sequence[Characteristics]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("domain", no_wrap=True)
    table.add_column("reading", no_wrap=True)
    for heading in (
        "updates every",
        "averages over",
        "seen",
        "lag",
        "quantum",
        "noise",
        "a read costs",
    ):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(one.domain, _reading(one), *_cells(one))
    return table


def _cells(one: Characteristics) -> list[str]:
    from joulemap.units import fmt, fmt_share

    unit = "J" if one.quantity == "energy_j" else "W"
    period = "" if one.period_s is None else ("" if one.resolved else "< ") + fmt(one.period_s, "s")
    return [
        period,
        "" if one.window_s is None else fmt(one.window_s, "s", digits=2),
        "" if one.duty is None else fmt_share(one.duty),
        "" if one.lag_s is None else f"{one.lag_s * 1e3:.0f} ms",
        "" if one.quantum is None else fmt(one.quantum, unit, digits=2),
        "" if one.noise_w is None else fmt(one.noise_w, "W", digits=2),
        fmt(one.read_cost_s, "s", digits=2),
    ]


def _reading(one: Characteristics) -> str:
    """A sensor's name, without what it is known to do: that is what is measured here."""
    return one.sensor.partition(",")[0] or {"energy_j": "energy", "power_w": "power"}[one.quantity]


def _advice(one: Characteristics) -> Iterator[str]:
    """What it means for a program."""
    from joulemap.units import fmt

    who = f"{one.domain}, {_reading(one)}"
    if one.provenance == "estimated":
        yield f"{one.domain} is computed, not sensed: there is nothing that could alias."
    elif one.period_s is None:
        yield f"{who} showed {one.updates} new values, too few to say more."
    elif one.kind == "part-time":
        times = ", ".join(fmt(step_s, "s", digits=2) for step_s in one.aliases_s())
        yield f"{who} sees part of the time only: steps of about {times} would alias."
    elif one.kind == "moving average":
        late = fmt(one.window_s or 0.0, "s", digits=2)
        yield f"{who} is a moving average: its energy is late by up to {late}."
    elif one.kind == "continuous":
        yield f"{who} misses nothing: no step time aliases."
    else:
        yield f"{who}: what it averages over was not seen, so which step times alias is not known."
    if one.no_load:
        yield one.no_load
