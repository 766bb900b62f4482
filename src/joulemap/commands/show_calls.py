"""``joulemap show --by call``: one recording's calls, or the sites of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joulemap.commands.output import console, print_csv, print_json
from joulemap.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from joulemap.recording import Recording
    from joulemap.views.calls import Run


def show_calls(
    recordings: Sequence[Recording],
    *,
    depth: int | None = None,
    top: int | None = None,
    net: bool = False,
    baseline: Sequence[str] = (),
    as_json: bool = False,
    as_csv: bool = False,
    out: Console | None = None,
) -> None:
    """Account the calls and print them as asked. ``net`` insists on a baseline; without it one is used where
    it is known."""
    from joulemap.views.calls import CallsAsked, facts, render, to_json
    from joulemap.views.table import Heading

    runs, asked = [_run(one, net, baseline) for one in recordings], CallsAsked(depth, top)
    if as_json:
        print_json(to_json(runs, asked))
    elif as_csv:
        print_csv(to_json(runs, asked)["rows"])
    else:
        several = [] if len(runs) == 1 else [f"{len(runs)} runs"]
        render(runs, asked, Heading(runs[0].name, [*several, *facts(runs[0])]), out or console())


def _run(recording: Recording, net: bool, given: Sequence[str]) -> Run:
    from joulemap.call_energy import account_calls_of
    from joulemap.views.calls import Run

    calls, found = account_calls_of(recording, baselines_of(recording, net, given))
    return Run(recording.path.name, calls, found, (*recording.info.warnings, *recording.notes))


def baselines_of(recording: Recording, net: bool, given: Sequence[str]) -> dict[str, float]:
    """As given, else as ``joulemap calibrate --idle`` kept them for the recording's machine. A recording of
    a program has no quiet time to read them off."""
    from joulemap.baselines import Baselines
    from joulemap.commands.show import given_baselines

    watts = given_baselines(given)
    names = [trace.domain.name for trace in recording.power()]
    unknown = watts.keys() - set(names)
    if unknown:
        raise InputError(
            f"This recording has no domain {unknown.pop()!r}.", f"It has {', '.join(names) or 'none'}."
        )
    store, machine = Baselines(), str(recording.info.host.get("machine", ""))
    for trace in recording.power():
        if trace.domain.name not in watts:
            stored = store.find(machine, trace.domain)
            if stored is not None:
                watts[trace.domain.name] = stored.baseline.power_w
            elif net:
                raise InputError(
                    f"There is no idle baseline of {trace.domain.name}.",
                    f"Give one: --baseline {trace.domain.name}=WATTS. On the machine itself, joulemap "
                    "calibrate --idle finds it.",
                )
    return watts
