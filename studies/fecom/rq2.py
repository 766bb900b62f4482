"""RQ2, energy against input size, from the published records: ``python -m studies.fecom.rq2``.

On a program of one's own it is ``joulemap scale``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from joulemap.units import fmt
from studies.fecom.dataset import ROOT, read
from studies.fecom.net import as_published, by_overlap
from studies.fecom.recorded import WORDS, Sizes, pooled_r, sizes
from studies.page import Series, markdown, plot


def table(found: list[Sizes]) -> str:
    """Each API's shape and slope in each domain."""
    rows = []
    for one in found:
        fits = one.fits()
        rows.append([one.project, *(f"{fits[word].shape}, r {fits[word].r:+.2f}" for word in WORDS)])
        slopes = (fits[word].slope_j for word in WORDS)
        ranges = (f"{fmt(s.low, 'J')} … {fmt(s.high, 'J')} a MB" for s in slopes)
        rows.append(["", *ranges])
    return markdown(["API", *WORDS], rows)


def main() -> None:
    """Print the tables, and draw energy against size where ``--plots`` says."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--plots", type=Path, default=ROOT / "docs" / "fecom", help="where plots go")
    options = parser.parse_args()
    dataset = read()
    theirs, ours = sizes(dataset, as_published), sizes(dataset, by_overlap)
    pooled = [
        [name, *(f"{pooled_r(found)[word]:.2f}" for word in WORDS)]
        for name, found in (("as published", theirs), ("by overlap", ours))
    ]
    print(markdown(["Pearson's r of all APIs together", *WORDS], pooled), "\n")
    print(table(ours))
    for word in WORDS[::2]:
        series = [Series(one.project, one.megabytes.tolist(), one.net_j[word].tolist()) for one in ours]
        title = f"Net {word} energy against size of the arguments"
        labels = ("MB", "J")
        plot(options.plots / f"rq2-{word.lower()}.svg", title, series, labels, (True, True))


if __name__ == "__main__":
    main()
