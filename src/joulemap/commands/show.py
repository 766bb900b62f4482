"""``joulemap show``: a recording's energy, in the terminal or as JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulemap.commands.output import console, print_csv, print_json, progress
from joulemap.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from joulemap.accounting import Footprint, Rule
    from joulemap.accounting.regions import Region
    from joulemap.recording import Recording
    from joulemap.traces import PowerTrace
    from joulemap.views.question import By
    from joulemap.views.table import Heading

BYS = ("module", "tensor", "op", "phase", "device", "step", "kind", "region", "call")
RULES = ("exact", "recency", "calibrated")

whole_fusions_option = click.option(
    "--whole-fusions",
    is_flag=True,
    help="Do not split a fusion of JAX over its layers: it goes where its result was computed.",
)
_OPTIONS = (
    click.option(
        "--by", type=click.Choice(BYS), default="module", show_default=True, help="What a line stands for."
    ),
    click.option(
        "--depth", type=click.IntRange(1), metavar="N", help="How deep to go into modules; 3 by default."
    ),
    click.option("--top", type=click.IntRange(1), metavar="N", help="Only the N largest, at each level."),
    click.option("--all", "everything", is_flag=True, help="Show modules below 0.2 % too."),
    click.option(
        "--summarised", is_flag=True, help="Merge self-similar blocks: layer_0 … layer_11 into layer_*."
    ),
    click.option(
        "--name", "names", multiple=True, metavar="OLD=NEW", help="Name merged blocks: layer_*=transformer."
    ),
    click.option("--power", is_flag=True, help="Sort by mean power while running, and show it."),
    click.option(
        "--net", is_flag=True, help="Energy above the idle baseline, read off the recording's quiet time."
    ),
    click.option(
        "--baseline", multiple=True, metavar="DOMAIN=WATTS", help="Use this baseline (GPU:0=122W) for --net."
    ),
    click.option(
        "--rule", type=click.Choice(RULES), default="exact", show_default=True, help="The sharing rule."
    ),
    whole_fusions_option,
    click.option("--salvage", is_flag=True, help="Go on with what is left of a damaged recording."),
    click.option("--json", "as_json", is_flag=True, help="The documented JSON instead of a table."),
    click.option("--csv", "as_csv", is_flag=True, help="The rows as CSV instead of a table."),
)
_NOT_OF_CALLS = {
    "summarised": "--summarised",
    "names": "--name",
    "power": "--power",
    "whole_fusions": "--whole-fusions",
}


def show_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that choose what is shown, for every command that ends in a table."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("show")
@click.argument("recordings", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REC...")
@show_options
def command(recordings: tuple[Path, ...], salvage: bool, **options: Any) -> None:
    """Show where a recording's energy went; of several runs, the energy of their calls.

    \b
    joulemap show run.joulemap                      the tree of modules
    joulemap show run.joulemap --by op --top 10     the ten most expensive operations
    joulemap show run.joulemap --summarised         all layers as one
    joulemap show run.joulemap --by call            the calls of a library, as joulemap run --calls records
    """
    from joulemap.api import load

    opened = [load(path, salvage=salvage) for path in recordings]
    if len(opened) > 1 and options["by"] != "call":
        raise InputError(
            "Several recordings are shown by call only.", "Compare two of them with joulemap compare."
        )
    if options["by"] == "call":
        _by_call(opened, **options)
    else:
        show(opened[0], **options)


def _by_call(recordings: Sequence[Recording], **options: Any) -> None:
    """Calls are stretches of time: what asks for layers or power does not apply to them."""
    from joulemap.commands.show_calls import show_calls

    for name, spelling in _NOT_OF_CALLS.items():
        if options[name]:
            raise InputError("Calls have no layers and no power footprint.", f"Leave out {spelling}.")
    if options["rule"] != "exact":
        raise InputError(
            "What the meters read while a call was open is shared by no rule.",
            f"Leave out --rule {options['rule']}.",
        )
    if options["as_json"] and options["as_csv"]:
        raise InputError("--json and --csv are two answers to one question.", "Choose one of them.")
    wanted = ("depth", "top", "net", "baseline", "as_json", "as_csv")
    show_calls(recordings, **{name: options[name] for name in wanted})


def show(
    recording: Recording,
    *,
    by: By = "module",
    depth: int | None = None,
    top: int | None = None,
    everything: bool = False,
    summarised: bool = False,
    names: Sequence[str] = (),
    power: bool = False,
    net: bool = False,
    baseline: Sequence[str] = (),
    rule: Rule = "exact",
    whole_fusions: bool = False,
    as_json: bool = False,
    as_csv: bool = False,
    out: Console | None = None,
    brief: bool = False,
) -> None:
    """Account a recording and print it as asked; ``brief`` is the table alone."""
    from joulemap.accounting.watching import watched
    from joulemap.api import account
    from joulemap.views.question import Question
    from joulemap.views.show import answer, to_json
    from joulemap.views.table import render

    with progress("accounting") as advance, watched(advance):
        footprint = account(recording, rule, whole_fusions=whole_fusions)
    baseline_w = baselines(recording, footprint, baseline) if net or baseline else None
    named = _regions(recording) if by == "region" else _kinds(recording) if by == "kind" else ()
    question = Question(by, depth, top, summarised, tuple(names), power, everything, baseline_w, named)
    if as_json and as_csv:
        raise InputError("--json and --csv are two answers to one question.", "Choose one of them.")
    if as_json:
        print_json(to_json(footprint, question))
    elif as_csv:
        print_csv(to_json(footprint, question)["rows"])
    else:
        render(answer(footprint, question), None if brief else _heading(recording), out or console())


def _regions(recording: Recording) -> list[Region]:
    from joulemap.accounting.regions import regions, with_counts

    table = recording.table("regions")
    if table is None:
        return []
    start_ns, end_ns = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
    found = regions(table["name"].to_pylist(), start_ns, end_ns, recording.power(), recording.shares())
    return with_counts(found, table.to_pylist())


def _kinds(recording: Recording) -> list[Region]:
    from joulemap.accounting.regions import regions

    steps = recording.steps()
    if steps is None or not len(steps):
        return []
    when = steps.start_ns, steps.end_ns
    return regions(list(steps.label), *when, recording.power(), recording.shares(), in_a_row=True)


def _heading(recording: Recording) -> Heading:
    from joulemap.units import NS_PER_S, fmt_seconds
    from joulemap.views.table import Heading

    info, steps = recording.info, recording.steps()
    facts: list[str] = [] if info.status == "complete" else [info.status]
    if info.window_ns is not None:
        facts.append(fmt_seconds((info.window_ns[1] - info.window_ns[0]) / NS_PER_S))
    if steps is not None and len(steps):
        facts.append(
            f"{len(steps)} {'step' if len(steps) == 1 else 'steps'}, {int(steps.traced.sum())} traced"
        )
    return Heading(recording.path.name, facts)


def baselines(recording: Recording, footprint: Footprint, given: Sequence[str]) -> dict[str, float]:
    """The idle power of each domain: as given, else as the recording's quiet time shows."""
    watts = given_baselines(given)
    unknown = watts.keys() - {account.domain.name for account in footprint.accounts}
    if unknown:
        known = ", ".join(account.domain.name for account in footprint.accounts)
        raise InputError(f"This recording has no domain {unknown.pop()!r}.", f"It has {known or 'none'}.")
    for trace in recording.power():
        if trace.domain.name in {account.domain.name for account in footprint.accounts} - watts.keys():
            watts[trace.domain.name] = _idle_power(recording, trace)
    return watts


def given_baselines(given: Sequence[str]) -> dict[str, float]:
    """``GPU:0=122W`` and its like, as watts by domain."""
    from joulemap.units import parse

    watts = {}
    for spec in given:
        name, equals, power = spec.rpartition("=")
        if not equals:
            raise InputError(f"{spec!r} is not a baseline.", "Write it like GPU:0=122W.")
        watts[name] = parse(power, "W")
    return watts


def _idle_power(recording: Recording, trace: PowerTrace) -> float:
    """Read off the recording's quiet time, else as ``joulemap calibrate --idle`` kept it for its machine."""
    from joulemap.accounting.baseline import quiet_baseline
    from joulemap.baselines import Baselines

    found = quiet_baseline(trace, recording.events(), recording.steps(), recording.info.window_ns)
    if found is not None:
        return found.power_w
    stored = Baselines().find(str(recording.info.host.get("machine", "")), trace.domain)
    if stored is not None:
        return stored.baseline.power_w
    raise InputError(
        f"{trace.domain.name} has no quiet time in this recording to read a baseline off.",
        f"Give one: --baseline {trace.domain.name}=WATTS. On the machine itself, joulemap calibrate --idle "
        "finds it.",
    )
