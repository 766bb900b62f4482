"""The footprint (TEF): energy by qualified name, phase, device and domain, with what is beside it.

For every domain ``measured = attributed + idle + other processes + outside the recording``. That is not a
hope: ``check()`` raises when it does not hold to a part in a billion, and every accounting ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.account import Account
from joulemap.accounting.sums import sums_by
from joulemap.accounting.uncertainty import EDGE_RMS, Blocks, has_spread, intervals
from joulemap.devices import Provenance
from joulemap.errors import ConservationError, InputError
from joulemap.labels import Labels
from joulemap.program import split
from joulemap.traces import Float64, Int64
from joulemap.units import NS_PER_S

if TYPE_CHECKING:
    from joulemap.accounting.tree import Tree

TOLERANCE = 1e-9
UNTRACED = "(untraced)"
"""The name under which energy stands that was metered while nothing was traced."""
LOADING = ("input pipeline/workers", "workers")
"""The name and the operation of what processes take that load the program's data."""

EVERY = "all"
"""What a column says of rows that were added up over different values of it."""


@dataclass(frozen=True, eq=False)
class Footprint:
    """Rows of energy, columnar. A row is one operation in one phase on one device, from one domain.

    ``share_s`` is the part of the domain's time that fell to the row (it divides a second between what
    is active in it), ``active_s`` the time its executions took, ``projected_j`` the part of its energy
    that comes from untraced steps, ``block_j`` its gross energy by block of steps, ``baseline_j`` what a net
    footprint has taken off, ``calibrated_j`` the part of its energy that was shared by calibrated costs,
    ``cost_rms_j`` how far off those may make it, and ``time_based_j`` what sharing by time alone gives it.
    """

    name: Labels
    op: Labels
    phase: Labels
    device: Labels
    domain: Labels
    energy_j: Float64
    projected_j: Float64
    baseline_j: Float64
    calibrated_j: Float64
    time_based_j: Float64
    share_s: Float64
    active_s: Float64
    calls: Float64
    first_ns: Int64
    last_ns: Int64
    block_j: Float64
    meter_rms_j: Float64
    cost_rms_j: Float64
    blocks: Blocks
    accounts: tuple[Account, ...]
    rule: str = "exact"
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def empty(cls, rule: str = "exact", warnings: Sequence[str] = ()) -> Footprint:
        """Nothing was measured: no rows, no accounts."""
        no_words, nothing, never = Labels.of((), 0), np.zeros(0), np.zeros(0, np.int64)
        columns: dict[str, Any] = dict.fromkeys(_LABELS, no_words)
        columns |= dict.fromkeys((*_SUMMED, "meter_rms_j"), nothing) | {"block_j": np.zeros((0, 0))}
        columns |= dict.fromkeys(("first_ns", "last_ns"), never)
        return cls(**columns, blocks=Blocks.of(None), accounts=(), rule=rule, warnings=tuple(warnings))

    @classmethod
    def joined(cls, footprints: Sequence[Footprint], warnings: Sequence[str] = ()) -> Footprint:
        """Footprints of different domains in one."""
        first = footprints[0]
        columns: dict[str, Any] = {
            column: Labels.joined([getattr(one, column) for one in footprints]) for column in _LABELS
        }
        for column in (*_SUMMED, "first_ns", "last_ns", "meter_rms_j"):
            columns[column] = np.concatenate([getattr(one, column) for one in footprints])
        accounts = tuple(account for one in footprints for account in one.accounts)
        return replace(first, **columns, accounts=accounts, warnings=tuple(warnings))

    def __len__(self) -> int:
        return len(self.energy_j)

    @property
    def measured_j(self) -> float:
        return sum(account.measured_j for account in self.accounts)

    @property
    def attributed_j(self) -> float:
        return float(self.energy_j.sum())

    @property
    def idle_j(self) -> float:
        return sum(account.idle_j for account in self.accounts)

    @property
    def other_processes_j(self) -> float:
        return sum(account.other_processes_j for account in self.accounts)

    @property
    def outside_j(self) -> float:
        return sum(account.outside_j for account in self.accounts)

    @property
    def low_j(self) -> Float64:
        return self._intervals[0]

    @property
    def high_j(self) -> Float64:
        return self._intervals[1]

    @cached_property
    def _intervals(self) -> tuple[Float64, Float64]:
        rms_j = np.hypot(self.meter_rms_j, self._conserved_rms_j())
        return intervals(self.energy_j, self.block_j, self.blocks, rms_j)

    def _conserved_rms_j(self) -> Float64:
        """How far off costs may make each row. Rows and idle of a domain add up to what was measured, so what
        a row has too much the others have too little: a row that is nearly all of it can be off by no more
        than these are."""
        known = {one.domain.name: (one.cost_rms_j, one.shared_j) for one in self.accounts}
        none = (np.inf, np.inf)  # of rows over several domains, each of which was looked at before
        each = np.array([known.get(word, none) for word in self.domain.words] or [none])
        rms_j, shared_j = each[self.domain.codes].T
        part = np.clip((self.energy_j + self.baseline_j) / np.maximum(shared_j, 1e-12), 0.0, 1.0)
        others_j = np.maximum(rms_j - self.cost_rms_j, 0.0)
        conserved_j = np.hypot((1 - part) * self.cost_rms_j, part * np.where(part > 0, others_j, 0.0))
        return np.minimum(self.cost_rms_j, np.where(np.isfinite(shared_j), conserved_j, np.inf))

    @cached_property
    def has_spread(self) -> NDArray[np.bool_]:
        """Whether a row was seen in more than one block of steps, so that its spread is known."""
        return has_spread(self.block_j, self.blocks)

    @cached_property
    def has_interval(self) -> NDArray[np.bool_]:
        """Whether ``low_j`` and ``high_j`` say how sure a row is. Not where what was seen in one traced step
        stands for untraced ones too: what the meter resolves says nothing about how alike steps are. Costs
        do: steps that do the same are as far off as these are."""
        return np.asarray(self.has_spread | (self.projected_j == 0) | self.is_calibrated)

    @property
    def is_calibrated(self) -> NDArray[np.bool_]:
        """Whether most of a row's energy was shared by calibrated costs."""
        gross_j = self.energy_j + self.baseline_j
        return np.asarray((self.calibrated_j > 0) & (self.calibrated_j >= gross_j / 2))

    @property
    def beside_j(self) -> Float64 | None:
        """What sharing by time alone gives each row, where another rule may give it something else."""
        return self.time_based_j if self.rule == "calibrated" else None

    def beside(self, time_based: Footprint) -> Footprint:
        """The same with what an accounting by time alone has for each row, and for idle."""
        found = dict(zip(time_based._keys(), time_based.energy_j.tolist(), strict=True))
        idle_j = {account.domain.name: account.idle_j for account in time_based.accounts}
        return replace(
            self,
            time_based_j=np.array([found.get(key, 0.0) for key in self._keys()]),
            accounts=tuple(replace(one, idle_time_based_j=idle_j[one.domain.name]) for one in self.accounts),
        )

    def _keys(self) -> list[tuple[str, ...]]:
        """What tells each row from the others."""
        return list(zip(*(getattr(self, column) for column in _LABELS), strict=True))

    @cached_property
    def provenance(self) -> list[Provenance]:
        """What is true of each row: estimated where its meter is; else calibrated where most of its energy
        was shared by costs that were; else projected where untraced steps are in it."""
        estimated = {a.domain.name for a in self.accounts if a.domain.provenance == "estimated"}
        weak = np.array([one in estimated or (one == EVERY and bool(estimated)) for one in self.domain.words])
        words: list[Provenance] = ["apportioned", "projected", "calibrated", "estimated"]
        level = np.where(self.projected_j > 0, 1, 0)
        level[self.is_calibrated] = 2
        level[weak[self.domain.codes] if len(self) else []] = 3
        return [words[one] for one in level.tolist()]

    def check(self) -> Footprint:
        """Raise ``ConservationError`` unless every domain adds up; return self, so that it can be chained."""
        for account in self.accounts:
            code = self.domain.code(account.domain.name)
            attributed = float(self.energy_j[self.domain.codes == code].sum())
            parts = (
                attributed,
                account.idle_j,
                account.other_processes_j,
                account.outside_j,
                account.baseline_j,
            )
            off = sum(parts) - account.measured_j
            gross = account.baseline_j == 0
            scale = account.measured_j if gross else sum(map(abs, parts))
            if not math.isfinite(off) or abs(off) > TOLERANCE * scale:
                raise ConservationError(
                    f"{account.domain.name}: measured {account.measured_j} J, but attributed + idle + other "
                    f"processes + outside + baseline = {' + '.join(map(str, parts))} J: {off} J too much.",
                    "This is a bug in joulemap. Please report it with the recording.",
                )
            if gross and (min(parts) < -TOLERANCE * scale or (self.energy_j < -TOLERANCE * scale).any()):
                raise ConservationError(
                    f"{account.domain.name}: a part of the energy is negative: {parts} J."
                )
        return self

    def rollup(
        self, name: Labels | None = None, keep: Sequence[str] = ("phase", "device", "domain")
    ) -> Footprint:
        """Add rows up: under new names (one per row), and over the columns that are not kept."""
        unknown = set(keep) - {"op", "phase", "device", "domain"}
        if unknown:
            raise InputError(f"Rows have no column {unknown.pop()!r}.", "Keep op, phase, device or domain.")
        name = self.name if name is None else name
        if "domain" in keep:
            return self._added(name, self._kept(keep), self.domain).with_meter_resolution()
        by_device = ("device", *keep)
        per_domain = self._added(name, self._kept(by_device), self.domain).with_meter_resolution()
        per_domain = replace(per_domain, cost_rms_j=per_domain._conserved_rms_j())
        per_device = per_domain._added(per_domain.name, per_domain._kept(by_device), None, at_once=True)
        return per_device._added(per_device.name, per_device._kept(keep), None)

    def at(self, depth: int) -> Footprint:
        """The footprint of modules at a depth: names cut to so many parts."""
        if depth < 1:
            raise InputError(f"A depth of {depth} has no names.", "Depth 1 is the outermost.")
        return self.rollup(self.name.mapped(["/".join(split(word)[:depth]) for word in self.name.words]))

    def under(self, path: str) -> Footprint:
        """The rows of a module and everything inside it."""
        inside = [word == path or word.startswith(path + "/") for word in self.name.words]
        return self.take(np.array(inside, bool)[self.name.codes])

    def where(self, **labels: str) -> Footprint:
        """The rows with these labels, such as ``phase="forward"``."""
        chosen = np.ones(len(self), bool)
        for column, word in labels.items():
            if column not in _LABELS:
                raise InputError(f"Rows have no column {column!r}.", f"Columns are {', '.join(_LABELS)}.")
            chosen &= getattr(self, column).codes == getattr(self, column).code(word)
        return self.take(chosen)

    def summarised(self, rules: Mapping[str, str] | Sequence[str] = ()) -> Footprint:
        """STEF: self-similar blocks merged (``layer_0 … layer_11`` into one ``layer_*``)."""
        from joulemap.accounting.summarise import summarised_names

        return self.rollup(self.name.mapped(summarised_names(self.name.words, rules)))

    def tree(self, depth: int | None = None) -> Tree:
        """The rows as nested modules; ``print`` it."""
        from joulemap.accounting.tree import build_tree

        return build_tree(self, depth)

    def net(self, baseline_w: Mapping[str, float]) -> Footprint:
        """Above the idle baseline: each row less the baseline power over the time that fell to it.

        What is left out stands in the accounts as ``baseline_j``, so that conservation still holds.
        """
        from joulemap.accounting.baseline import net_footprint

        return net_footprint(self, baseline_w)

    def to_records(self) -> list[dict[str, Any]]:
        """Rows as dictionaries, most energy first: the ``rows`` of ``show --json``."""
        columns = (self.name, self.op, self.phase, self.device, self.domain)
        words = [list(column) for column in columns]
        order = np.argsort(-self.energy_j, kind="stable").tolist()
        provenance, spread, interval = self.provenance, self.has_spread.tolist(), self.has_interval.tolist()
        return [
            {
                "name": words[0][row],
                "op": words[1][row],
                "phase": words[2][row],
                "device": words[3][row],
                "domain": words[4][row],
                "energy_j": float(self.energy_j[row]),
                "low_j": float(self.low_j[row]),
                "high_j": float(self.high_j[row]),
                "projected_j": float(self.projected_j[row]),
                "time_based_j": float(self.time_based_j[row]),
                "active_s": float(self.active_s[row]),
                "calls": round(float(self.calls[row])),
                "spread": spread[row],
                "interval": interval[row],
                "provenance": provenance[row],
            }
            for row in order
        ]

    def take(self, rows: NDArray[np.bool_]) -> Footprint:
        """Some of the rows; the accounts stay those of all."""
        columns = (*_LABELS, *_SUMMED, "first_ns", "last_ns", "meter_rms_j")
        taken = {column: getattr(self, column)[rows] for column in columns}
        return replace(self, **taken | {"name": taken["name"].used(), "op": taken["op"].used()})

    def _kept(self, keep: Sequence[str]) -> dict[str, Labels | None]:
        """The label columns to keep, and None for those to sum over."""
        return {
            column: getattr(self, column) if column in keep else None for column in ("op", "phase", "device")
        }

    def _added(
        self,
        name: Labels,
        whole: Mapping[str, Labels | None],
        domain: Labels | None,
        at_once: bool = False,
    ) -> Footprint:
        """Rows with equal labels added up; a label that is None is summed over. Rows that are one execution,
        metered in several domains ``at_once``, add their energies but not their times."""
        labels = {"name": name, **whole, "domain": domain}
        key = np.zeros(len(self), np.int64)
        for label in labels.values():
            if label is not None:
                key = key * len(label.words) + label.codes
        _, example, row = np.unique(key, return_index=True, return_inverse=True)
        count = len(example)
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(first, row, self.first_ns)
        np.maximum.at(last, row, self.last_ns)
        columns: dict[str, Any] = {
            column: _common(getattr(self, column), row, count) if label is None else label[example]
            for column, label in labels.items()
        }
        for column in _SUMMED[:-1]:
            together = _largest_by if at_once and column in _TIMES else sums_by
            columns[column] = together(row, getattr(self, column), count)
        columns["block_j"] = np.zeros((count, self.block_j.shape[1]))
        np.add.at(columns["block_j"], row, self.block_j)
        meter = np.sqrt(sums_by(row, self.meter_rms_j**2, count))
        return replace(self, **columns, first_ns=first, last_ns=last, meter_rms_j=meter)

    def with_meter_resolution(self) -> Footprint:
        """The meter's part of the uncertainty, from each row's energy and the span it is spread over.

        Rows that are sums over domains keep what they have.
        """
        period = {account.domain.name: account.period_s for account in self.accounts}
        periods = np.array([period.get(word, np.nan) for word in self.domain.words] or [np.nan])
        periods = periods[self.domain.codes]
        span_s = np.maximum(self.last_ns - self.first_ns, 1) / NS_PER_S
        gross_j = np.maximum(self.energy_j + self.baseline_j, 0.0)
        resolution = EDGE_RMS * periods * gross_j / span_s
        return replace(self, meter_rms_j=np.where(np.isnan(periods), self.meter_rms_j, resolution))


def _largest_by(row: Int64, values: Float64, count: int) -> Float64:
    largest = np.zeros(count)
    np.maximum.at(largest, row, values)
    return largest


def _common(label: Labels, row: Int64, count: int) -> Labels:
    """The word that all rows of a group have, or ``all`` where they differ."""
    lowest, highest = np.full(count, len(label.words)), np.full(count, -1)
    np.minimum.at(lowest, row, label.codes)
    np.maximum.at(highest, row, label.codes)
    words = label.words if EVERY in label.words else (*label.words, EVERY)
    codes = np.where(lowest == highest, lowest, words.index(EVERY)).astype(np.int32)
    return Labels(codes, words).used()


_LABELS = ("name", "op", "phase", "device", "domain")
_TIMES = ("share_s", "active_s", "calls")
_ENERGIES = ("energy_j", "projected_j", "baseline_j", "calibrated_j", "time_based_j", "cost_rms_j")
_SUMMED = (*_ENERGIES, *_TIMES, "block_j")
"""What adds up; what one cost is off by, it is in every layer that has the operation."""
