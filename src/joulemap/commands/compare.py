"""``joulemap compare``: what changed between variants of a program, with a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulemap.commands.output import console, print_json, progress
from joulemap.commands.show import RULES, whole_fusions_option
from joulemap.errors import InputError
from joulemap.units import parse_share

if TYPE_CHECKING:
    from joulemap.accounting import Rule
    from joulemap.comparing.comparison import Question, Report
    from joulemap.comparing.variant import By, Run, Variant

BYS = ("module", "tensor", "op", "phase", "device")
EXCEEDED = 1
_NEXT = "\n"
"""What parts the recordings of one --against from each other."""

Group = tuple[str, list[Path]]


class _Against(click.Command):
    """``--against`` takes all recordings up to the next option, as the shell spells them out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, rest = list[str](), list(args)
        while rest:
            given.append(rest.pop(0))
            if given[-1] == "--against":
                group = list[str]()
                while rest and not rest[0].startswith("-"):
                    group.append(rest.pop(0))
                given += [_NEXT.join(group)] if group else []
        return super().parse_args(ctx, given)


@click.command("compare", cls=_Against)
@click.argument("recordings", nargs=-1, required=True, metavar="REC...")
@click.option(
    "--against",
    multiple=True,
    metavar="REC...",
    help="Another variant: all that follow are its repeats, and those before are the base's.",
)
@click.option(
    "--by", type=click.Choice(BYS), default="module", show_default=True, help="What a row stands for."
)
@click.option(
    "--depth", type=click.IntRange(1), default=3, show_default=True, help="How deep to go into modules."
)
@click.option("--all", "everything", is_flag=True, help="Compare what is below 0.2 % too.")
@click.option(
    "--summarised", is_flag=True, help="Merge self-similar blocks: layer_0 … layer_11 into layer_*."
)
@click.option(
    "--per", type=click.Choice(("run", "step")), default="run", show_default=True, help="Energy of what."
)
@click.option(
    "--rule", type=click.Choice(RULES), default="exact", show_default=True, help="The sharing rule."
)
@whole_fusions_option
@click.option("--rename", multiple=True, metavar="PATTERN=NEW", help=r"Match names: 'layer_(\d+)=layer/\1'.")
@click.option(
    "--margin",
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="A change below this is none worth naming.",
)
@click.option(
    "--fail-above", metavar="SHARE", help="Exit with 1 when the interval of the change lies above this: 5%."
)
@click.option(
    "--module", "modules", multiple=True, metavar="PATH", help="What --fail-above is about: bert/encoder."
)
@click.option(
    "--heatmap", type=click.Path(path_type=Path), metavar="FILE", help="PCC and MED matrices as SVG."
)
@click.option("--markdown", "as_markdown", is_flag=True, help="GitHub-flavoured Markdown instead of tables.")
@click.option("--json", "as_json", is_flag=True, help="The documented JSON instead of tables.")
def command(
    recordings: Sequence[str],
    against: Sequence[str],
    fail_above: str | None,
    modules: Sequence[str],
    rule: Rule,
    whole_fusions: bool,
    heatmap: Path | None,
    as_markdown: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare variants of a program: the first is the base.

    Without --against each REC is a variant: a recording, or a folder with the recordings of its repeats.

    \b
    joulemap compare before.joulemap after.joulemap
    joulemap compare before-*.joulemap --against after-*.joulemap --fail-above 5%
    joulemap compare small/ medium/ large/ --summarised --heatmap similarity.svg
    """
    from joulemap.comparing.comparison import compare

    if modules and fail_above is None:
        raise InputError("--module is what a limit is about.", "Give the limit: --fail-above 5%.")
    limit = None if fail_above is None else parse_share(fail_above)
    groups = _groups(recordings, against)
    if whole_fusions:
        _require_fusions(groups)
    with progress("accounting") as advance:
        variants = _variants(
            groups, partial(_accounted, options["per"] == "step", rule, whole_fusions), advance
        )
    with progress("comparing") as advance:
        report = compare(variants, _question(**options), limit, modules, advance)
    _say(report, as_markdown, as_json)
    if heatmap is not None:
        from joulemap.comparing.heatmap import heat_map

        heatmap.write_text(heat_map(report.similarity))
    if report.exceeded:
        raise click.exceptions.Exit(EXCEEDED)


def _question(
    by: By, depth: int, everything: bool, summarised: bool, per: str, margin: str, rename: Sequence[str]
) -> Question:
    from joulemap.comparing.comparison import Question

    return Question(by, depth, everything, summarised, per == "step", parse_share(margin), tuple(rename))


def _say(report: Report, as_markdown: bool, as_json: bool) -> None:
    if as_json and as_markdown:
        raise InputError("--json and --markdown are two answers to one question.", "Choose one of them.")
    if as_json:
        from joulemap.comparing.comparison import to_json

        print_json(to_json(report))
    elif as_markdown:
        from joulemap.comparing.markdown import markdown

        sys.stdout.write(markdown(report))
    else:
        from joulemap.comparing.table import render

        render(report, console())


def _groups(recordings: Sequence[str], against: Sequence[str]) -> list[Group]:
    """The label of each variant, and its recordings; the first is the base."""
    groups = [list(recordings), *(one.split(_NEXT) for one in against)] if against else _each(recordings)
    if len(groups) < 2:
        raise InputError(
            "There is nothing to compare with.", "Give two recordings, or a group --against another."
        )
    paths = [[path for given in group for path in _recordings_in(Path(given))] for group in groups]
    labels = _labels([Path(group[0]) for group in groups], [len(group) for group in paths])
    return list(zip(labels, paths, strict=True))


def _require_fusions(groups: Sequence[Group]) -> None:
    from joulemap.api import load, require_fusions

    require_fusions([load(path) for _, paths in groups for path in paths])


def _variants(
    groups: Sequence[Group],
    accounted: Callable[[Path, int, int], Run],
    advance: Callable[[float], None] | None,
) -> list[Variant]:
    """The groups, accounted."""
    from joulemap.accounting.watching import watched
    from joulemap.comparing.variant import Variant

    number, total = count(), sum(len(paths) for _, paths in groups)
    with watched(advance):
        return [
            Variant(label, tuple(accounted(path, next(number), total) for path in paths))
            for label, paths in groups
        ]


def _each(recordings: Sequence[str]) -> list[list[str]]:
    return [[one] for one in recordings]


def _recordings_in(path: Path) -> list[Path]:
    """A recording itself, or all recordings in a folder of them."""
    if (path / "recording.json").exists() or not path.is_dir():
        return [path]
    found = sorted(path.glob("*.joulemap"))
    if not found:
        raise InputError(
            f"{path} is no recording and holds none.", "Recordings are folders named *.joulemap."
        )
    return found


def _labels(paths: Sequence[Path], counts: Sequence[int]) -> list[str]:
    """The name of the folder or of the first recording, without its number where there are repeats; the whole
    path where that does not tell variants apart."""
    names = []
    for path, repeats in zip(paths, counts, strict=True):
        name = path.resolve().name.removesuffix(".joulemap")
        names.append(name.rstrip("0123456789").rstrip("-_.") or name if repeats > 1 else name)
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _accounted(per_step: bool, rule: Rule, whole_fusions: bool, path: Path, number: int, total: int) -> Run:
    from joulemap.accounting.watching import part
    from joulemap.api import account, load
    from joulemap.calibration.recorded import costs_by_name
    from joulemap.comparing.variant import Run

    recording = load(path, whole_fusions=whole_fusions)
    steps = recording.steps()
    if per_step and not steps:
        raise InputError(f"{path} has no steps.", "Leave out --per step.")
    with part(number, total):
        footprint = account(recording, rule)
    return Run(path.name, footprint, 0 if steps is None else len(steps), costs_by_name(recording))
