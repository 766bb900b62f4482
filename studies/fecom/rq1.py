"""RQ1, calls against the whole program: ``python -m studies.fecom.rq1``.

From the published records: the authors' 31 rows again, the same by true intervals, and projects with every
call kept. With ``--live``, six TensorFlow programs of ``examples/calls`` under ``joulemap run --calls``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from joulemap.units import fmt, fmt_share
from studies.fecom import live, recorded
from studies.fecom.dataset import ROOT, Dataset, read
from studies.fecom.net import as_published, by_overlap
from studies.page import Series, markdown, plot

SHORT_S = 1.0


def rows_table(rows: Sequence[recorded.ApiRow]) -> str:
    """Each published row's net energy of the CPU, twice."""
    cells = []
    for row in sorted(rows, key=lambda row: row.seconds):
        theirs, ours = (float(row.net_j(rule)["CPU"].mean()) for rule in (as_published, by_overlap))
        api = row.api.removeprefix("tensorflow.")
        cells.append([row.project, api, f"{row.seconds:.2f} s", f"{theirs:.2f} J", f"{ours:.2f} J"])
    return markdown(["project", "API", "time", "CPU, published", "CPU, by overlap"], cells)


def short_table(rows: Sequence[recorded.ApiRow]) -> str:
    """The mean of the rows of up to a second, and of the longer ones."""
    cells = []
    for name, some in (
        (f"up to {SHORT_S:g} s", [row for row in rows if row.seconds <= SHORT_S]),
        ("longer", [row for row in rows if row.seconds > SHORT_S]),
    ):
        means = [
            np.mean([row.net_j(rule)[word].mean() for row in some])
            for word in recorded.WORDS
            for rule in (as_published, by_overlap)
        ]
        cells.append([name, str(len(some)), *(f"{mean:.2f} J" for mean in means)])
    header = [f"{word}, {rule}" for word in recorded.WORDS for rule in ("published", "by overlap")]
    return markdown(["calls", "rows", *header], cells)


def projects_table(found: Sequence[recorded.Project]) -> str:
    """What the calls explain of each project."""
    cells = [
        [
            one.name,
            fmt(one.whole_j, "J"),
            fmt_share(one.published_j / one.whole_j),
            fmt_share(one.every_call_j / one.whole_j),
            f"{one.calls:.1f}",
            f"{one.uncovered:.1f}",
        ]
        for one in found
    ]
    whole, theirs, ours = (
        sum(getattr(one, name) for one in found) for name in ("whole_j", "published_j", "every_call_j")
    )
    cells.append(["all", fmt(whole, "J"), fmt_share(theirs / whole), fmt_share(ours / whole), "", ""])
    header = ["project", "whole", "calls, published", "every call, by overlap", "calls a run", "no power"]
    return markdown(header, cells)


def live_table(found: Sequence[live.Explained]) -> str:
    """What the calls explain of each program that was run, and what the rest is."""
    names = list(dict.fromkeys(name for one in found for name in one.rest_j))
    cells = [
        [
            f"`{one.program}`",
            f"{one.calls:,} at {one.sites}",
            fmt(one.whole_j, "J"),
            fmt_share(one.share),
            *(fmt_share(one.rest_j.get(name, 0.0) / one.whole_j) for name in names),
            f"`{one.top}` {fmt_share(one.top_j / one.whole_j)}",
        ]
        for one in found
    ]
    return markdown(["program", "calls", "net energy", "in calls", *names, "most in"], cells)


def published(dataset: Dataset, plots: Path) -> None:
    """Print and draw what the published records say."""
    every = recorded.api_rows(dataset)
    rows = recorded.published_rows(every)
    worst = max(recorded.differences(rows).values())
    print(f"{len(rows)} published rows, re-derived; the largest difference is {worst:.0e}.\n")
    print(short_table(rows), "\n")
    print(rows_table(rows), "\n")
    print(projects_table(recorded.projects(dataset, every)))
    series = [
        Series(name, [row.seconds for row in rows], [row.net_j(rule)["CPU"].mean() for row in rows])
        for name, rule in (("published", as_published), ("by overlap", by_overlap))
    ]
    title = "Net CPU energy of the 31 published rows"
    plot(plots / "rq1-rows.svg", title, series, ("time of a call, s", "J"), (True, True))


def main() -> None:
    """Print the tables; ``--live`` runs the programs, or reads their recordings where they are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", action="store_true", help="run the programs, and only those")
    parser.add_argument(
        "--recordings", type=Path, default=Path("rq1"), help="where their recordings are kept"
    )
    parser.add_argument("--plots", type=Path, default=ROOT / "docs" / "fecom", help="where plots go")
    options = parser.parse_args()
    if options.live:
        paths = [live.record(program, options.recordings) for program in live.PROGRAMS]
        print(live_table([live.explained(path) for path in paths]))
    else:
        published(read(), options.plots)


if __name__ == "__main__":
    main()
