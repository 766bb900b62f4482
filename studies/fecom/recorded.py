"""What the published records say: the authors' rows again, the same by overlap, sizes, and the gate."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from joulemap.accounting.fit import Fit, fit, pearson
from joulemap.devices import Domain
from joulemap.stability import GateSettings, Verdict, judge
from joulemap.traces import Float64
from studies.fecom.dataset import DOMAINS, PUBLISHED, Dataset, Record
from studies.fecom.net import Net, as_published, by_overlap, has_energy, is_covered

WORDS = ("CPU", "RAM", "GPU")
RUNS = 10
UNPUBLISHED = "images/classification"
"""Ten runs of it are in the data, but not in the published table."""


@dataclass(frozen=True)
class ApiRow:
    """One API of one project, over ten runs: the last call of it in each."""

    project: str
    api: str
    records: Sequence[Record]

    @property
    def seconds(self) -> float:
        return float(np.mean([record.seconds for record in self.records]))

    @property
    def megabytes(self) -> float:
        """Size of the arguments as the authors count it: what could not be pickled has none."""
        sizes = [record.sizes for record in self.records]
        whole = [(size.get("args_size") or 0) + (size.get("kwargs_size") or 0) for size in sizes]
        return float(np.mean(whole)) / 2**20

    def net_j(self, rule: Callable[[Record], Net]) -> dict[str, Float64]:
        """Each run's net energy, by domain."""
        nets = [rule(record) for record in self.records]
        return {word: np.array([net.of(word) for net in nets]) for word in WORDS}


def api_rows(dataset: Dataset) -> list[ApiRow]:
    """The rows of the published table: the last call of an API in a run wins, what the authors skip is
    skipped, and an API counts that has energy in all ten runs."""
    runs: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in dataset.of("method-level"):
        if record.raw_name not in dataset.skipped.get(record.project, ()):
            runs[record.project, record.api][record.experiment] = record
    rows = [ApiRow(*key, list(found.values())) for key, found in sorted(runs.items())]
    return [row for row in rows if len(row.records) == RUNS and all(map(has_energy, row.records))]


def published_rows(rows: Iterable[ApiRow]) -> list[ApiRow]:
    """Those that the authors printed."""
    return [row for row in rows if row.project != UNPUBLISHED]


def differences(rows: Iterable[ApiRow], published: Path = PUBLISHED) -> dict[tuple[str, str], float]:
    """By how much each row differs from the published one at most, in J, s or MB, relative above one."""
    with published.open(newline="") as file:
        known = {(row["Project Name"], row["function"]): row for row in csv.DictReader(file)}
    found = {}
    for row in rows:
        theirs = known.pop((row.project, row.api))
        pairs = [(row.seconds, theirs["run time"]), (row.megabytes, theirs["Args Size (mean)"])]
        for word, values in row.net_j(as_published).items():
            for name, figure in (("mean", np.mean), ("median", np.median), ("max", np.max), ("min", np.min)):
                pairs.append((float(figure(values)), theirs[f"{word} ({name})"]))
        found[row.project, row.api] = max(abs(a - float(b)) / max(abs(a), 1.0) for a, b in pairs)
    return found | dict.fromkeys(known, float("inf"))


@dataclass(frozen=True, slots=True)
class Project:
    """A project: what its calls took and what the whole took, J net, means over runs."""

    name: str
    published_j: float
    every_call_j: float
    whole_j: float
    calls: float
    uncovered: float
    """Calls of a run whose power log was restarted by a call inside them: of those nothing is known."""


def projects(dataset: Dataset, rows: Sequence[ApiRow]) -> list[Project]:
    """The calls against the whole, as published and with every call kept, by its true interval."""
    whole: dict[str, list[float]] = defaultdict(list)
    for record in dataset.of("project-level"):
        whole[record.project].append(_total(by_overlap(record)))
    calls: dict[str, list[Record]] = defaultdict(list)
    for record in dataset.of("method-level"):
        calls[record.project].append(record)
    return [
        Project(
            name=name,
            published_j=sum(_mean_total(row) for row in rows if row.project == name),
            every_call_j=sum(_total(by_overlap(one)) for one in calls[name] if is_covered(one)) / RUNS,
            whole_j=float(np.mean(totals)),
            calls=len(calls[name]) / RUNS,
            uncovered=sum(not is_covered(one) for one in calls[name]) / RUNS,
        )
        for name, totals in sorted(whole.items())
    ]


def _mean_total(row: ApiRow) -> float:
    return sum(float(values.mean()) for values in row.net_j(as_published).values())


def _total(net: Net) -> float:
    return net.cpu_j + net.ram_j + net.gpu_j


@dataclass(frozen=True, eq=False)
class Sizes:
    """One API at ten sizes: the mean net energy over ten runs at each, by domain."""

    project: str
    megabytes: Float64
    net_j: Mapping[str, Float64]

    def fits(self) -> dict[str, Fit]:
        return {word: fit(self.megabytes, values) for word, values in self.net_j.items()}


def sizes(dataset: Dataset, rule: Callable[[Record], Net] = as_published) -> list[Sizes]:
    """The ``data-size`` set, where the sizes are known."""
    found: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in dataset.of("data-size"):
        if record.input_bytes is not None:
            found[record.project][record.number].append(record)
    return [_at_sizes(project, list(runs.values()), rule) for project, runs in sorted(found.items())]


def _at_sizes(project: str, runs: Sequence[Sequence[Record]], rule: Callable[[Record], Net]) -> Sizes:
    nets = [[rule(record) for record in alike] for alike in runs]
    return Sizes(
        project,
        np.array([np.mean([record.input_bytes or 0 for record in alike]) for alike in runs]) / 2**20,
        {word: np.array([np.mean([net.of(word) for net in some]) for some in nets]) for word in WORDS},
    )


def pooled_r(found: Sequence[Sizes]) -> dict[str, float]:
    """Pearson's correlation of size and energy over all APIs together."""
    size = np.concatenate([one.megabytes for one in found])
    return {word: pearson(size, np.concatenate([one.net_j[word] for one in found])) for word in WORDS}


def idle_w(dataset: Dataset, samples: int = 20) -> dict[str, float]:
    """The machine's idle level, off the ``project-level`` set, which is not judged: medians of the last
    samples before a start."""
    levels: dict[str, list[float]] = {domain.name: [] for domain in DOMAINS}
    for record in dataset.of("project-level"):
        for domain, values in record.samples_w().items():
            levels[domain.name].append(float(values[-samples:].mean()))
    return {name: float(np.median(values)) for name, values in levels.items()}


def gate(record: Record, idle: Mapping[str, float], settings: GateSettings | None = None) -> Verdict:
    """What joulemap's gate says just before a recorded call."""
    samples: dict[Domain, Float64] = record.samples_w()
    return judge(samples, idle, record.temperatures_c(), settings)


@dataclass(frozen=True, slots=True)
class Judged:
    """How many records of a group the gate calls stable, calls unstable, and has too few samples of."""

    group: str
    stable: int
    unstable: int
    too_few: int


def judged(dataset: Dataset) -> list[Judged]:
    """The gate replayed on every record, group by group."""
    ask = partial(gate, idle=idle_w(dataset))
    groups = dict.fromkeys(record.group for record in dataset.records)
    return [_judged(group, [ask(record) for record in dataset.of(group)]) for group in sorted(groups)]


def _judged(group: str, verdicts: Sequence[Verdict]) -> Judged:
    too_few = sum(any("samples" in reason for reason in verdict.reasons) for verdict in verdicts)
    stable = sum(verdict.stable for verdict in verdicts)
    return Judged(group, stable, len(verdicts) - stable - too_few, too_few)
