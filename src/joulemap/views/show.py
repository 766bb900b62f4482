"""What ``joulemap show`` says, as plain data: the same rows for the terminal, JSON and CSV.

Computing comes first and rendering last, so that tests compare values and every output agrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.account import Account
from joulemap.accounting.footprint import Footprint
from joulemap.accounting.tree import OWN, Node
from joulemap.accounting.uncertainty import Blocks
from joulemap.labels import Labels
from joulemap.program import SEPARATOR
from joulemap.traces import PHASES
from joulemap.views.question import SPANS, Answer, By, Line, Question, drawn_j
from joulemap.views.spans import region_lines, region_rows, step_lines, step_rows

FORMAT = 1
"""The version of ``show --json``."""

DEPTH = 3
"""How deep to go into modules, unless asked otherwise."""

SMALL = 0.002
"""Modules below this share are shown together, unless everything is asked for."""


def answer(footprint: Footprint, question: Question) -> Answer:
    """Turn a footprint into the lines that were asked for."""
    footprint = prepared(footprint, question)
    make = _LINES[question.by]
    idle = () if question.by in SPANS else tuple(_idle_lines(footprint))
    phases = tuple(
        phase for phase in footprint.phase.words if (footprint.where(phase=phase).energy_j > 0).any()
    )
    return Answer(question, footprint, tuple(make(footprint, question)), idle, phases)


def prepared(footprint: Footprint, question: Question) -> Footprint:
    """Net and summarised, as asked."""
    if question.baseline_w is not None:
        footprint = footprint.net(question.baseline_w)
    return footprint.summarised(question.rules) if question.summarised or question.rules else footprint


def to_json(footprint: Footprint, question: Question) -> dict[str, Any]:
    """The contract of ``show --json``, format 1."""
    footprint = prepared(footprint, question)
    rows = _rows(footprint, question)
    return {
        "format": FORMAT,
        "rule": footprint.rule,
        "by": question.by,
        "net": question.baseline_w is not None,
        "measured_j": footprint.measured_j,
        "attributed_j": footprint.attributed_j,
        "idle_j": footprint.idle_j,
        "other_processes_j": footprint.other_processes_j,
        "outside_j": footprint.outside_j,
        "baseline_j": sum(account.baseline_j for account in footprint.accounts),
        "domains": [_domain(footprint, account) for account in footprint.accounts],
        "warnings": list(footprint.warnings),
        "notes": list(footprint.notes),
        "rows": rows[: question.top] if question.top else rows,
    }


def _domain(footprint: Footprint, account: Account) -> dict[str, Any]:
    domain = account.domain
    return {
        "name": domain.name,
        "device": domain.device,
        "provenance": domain.provenance,
        "sensor": domain.sensor,
        "update_period_s": account.period_s,
        "measured_j": account.measured_j,
        "attributed_j": footprint.where(domain=domain.name).attributed_j,
        "idle_j": account.idle_j,
        "idle_outside_steps_j": account.idle_outside_steps_j,
        "other_processes_j": account.other_processes_j,
        "outside_j": account.outside_j,
        "baseline_j": account.baseline_j,
    }


def _rows(footprint: Footprint, question: Question) -> list[dict[str, Any]]:
    if question.by == "step":
        return step_rows(footprint)
    if question.by in ("region", "kind"):
        return region_rows(question)
    if question.by not in ("module", "tensor"):
        footprint = _grouped(footprint, question.by)
    elif question.depth is not None:
        footprint = footprint.at(question.depth)
    records = footprint.to_records()
    if question.power:
        records.sort(
            key=lambda record: -record["energy_j"] / record["active_s"] if record["active_s"] else 0.0
        )
    return records


def _grouped(footprint: Footprint, by: By, together: Set[str] = frozenset()) -> Footprint:
    """Rows by name, operation type, phase or device; or some of these as one row."""
    column = _column(footprint, by)
    if not together:
        return footprint.rollup(column, keep=() if by == "tensor" else (by,))
    chosen = np.array([word in together for word in column.words])[column.codes]
    return footprint.take(chosen).rollup(Labels.of("rest", int(chosen.sum())), keep=())


def _column(footprint: Footprint, by: By) -> Labels:
    label: Labels = footprint.name if by == "tensor" else getattr(footprint, by)
    return label


def _module_lines(footprint: Footprint, question: Question) -> list[Line]:
    outline = _Outline(footprint, question, question.depth or DEPTH, drawn_j(footprint))
    return list(outline.level(footprint.tree().children, 0))


def _idle_lines(footprint: Footprint) -> Iterator[Line]:
    """Each device's idle energy, and where steps are known, how much of it was waiting inside them."""
    for account in footprint.accounts:
        for line in _idle_of(account, footprint.blocks, drawn_j(footprint)) if account.idle_j else ():
            whole = footprint.beside_j is not None and line.depth == 0
            by_time_j = account.idle_time_based_j if whole else None
            yield replace(line, provenance=account.domain.provenance, time_based_j=by_time_j)


def _idle_of(account: Account, blocks: Blocks, total: float) -> Iterator[Line]:
    low, high = account.idle_interval_j(blocks)
    yield _idle_line(f"{account.domain.name} idle", 0, account.idle_j, low, high, total, account.idle_s)
    if not len(account.step_j):
        return
    half, outside = (high - low) / 2, account.idle_outside_steps_j
    on_gpu = account.domain.device.startswith("GPU")
    waits = "waiting for the host" if on_gpu else "waiting inside steps"
    parts = {waits: account.idle_j - outside, "outside any step": outside}
    parts = {label: energy_j for label, energy_j in parts.items() if energy_j > SMALL * total}
    if on_gpu or len(parts) > 1:  # what a GPU waits for is worth a line of its own
        for label, energy_j in parts.items():
            yield _idle_line(label, 1, energy_j, max(energy_j - half, 0), energy_j + half, total)


def _idle_line(
    label: str,
    depth: int,
    energy_j: float,
    low_j: float,
    high_j: float,
    total_j: float,
    idle_s: float | None = None,
) -> Line:
    share = energy_j / total_j if total_j else 0.0
    return Line(label, "", depth, energy_j, low_j, high_j, share, idle_s, None)


@dataclass(frozen=True, slots=True)
class _Outline:
    """The tree of modules as lines: as deep and as many as were asked for, the rest in one line."""

    footprint: Footprint
    question: Question
    depth: int
    total_j: float

    def level(self, nodes: Sequence[Node], level: int) -> Iterator[Line]:
        """Siblings and what is inside them."""
        ordered = _ordered(nodes, self.question)
        least = 0.0 if self.question.everything else SMALL * abs(self.total_j)
        shown = [node for node in ordered if abs(node.energy_j) >= least][: self.question.top]
        rest = [node for node in ordered if not any(node is other for other in shown)]
        if len(rest) == 1:
            shown, rest = shown + rest, []
        for node in shown:
            yield from self._branch(node, level)
        if rest and (shown or level == 0):
            yield self._rest(rest, level)

    def _branch(self, node: Node, level: int) -> Iterator[Line]:
        name, node = _without_single_children(node)
        yield _line(node, name, level, self.total_j)
        if level + 1 < self.depth:
            yield from self.level(node.children, level + 1)

    def _rest(self, nodes: Sequence[Node], level: int) -> Line:
        """What is left out, added up, so that the shares still do."""
        rows = self.footprint.take(_rows_of(self.footprint, nodes))
        (node,) = rows.rollup(Labels.of("rest", len(rows)), keep=()).tree().children
        phases = {phase: sum(node.phases.get(phase, 0.0) for node in nodes) for phase in PHASES}
        line = _line(node, f"{len(nodes)} more", level, self.total_j)
        return replace(line, path="", phases=phases, more=len(nodes))


def _rows_of(footprint: Footprint, nodes: Sequence[Node]) -> NDArray[np.bool_]:
    """The rows that make up some nodes; a module's own rows are those with just its name."""
    names = {node.path.removesuffix(f"{SEPARATOR}{OWN}") for node in nodes}
    inside = tuple(node.path + SEPARATOR for node in nodes if node.name != OWN)
    chosen = [word in names or word.startswith(inside) for word in footprint.name.words]
    return np.array(chosen or [False])[footprint.name.codes]


def _without_single_children(node: Node) -> tuple[str, Node]:
    """A module with one child is shown with it, as ``encoder/layer``: the step between says nothing."""
    name = node.name
    while len(node.children) == 1 and node.children[0].children:
        node = node.children[0]
        name = f"{name}{SEPARATOR}{node.name}"
    return name, node


def _ordered(nodes: Sequence[Node], question: Question) -> list[Node]:
    """By energy, with a series (``layer_0, layer_1 …``) in its own order; or by power; or just the top."""
    if question.power:
        return sorted(nodes, key=_mean_power, reverse=True)
    series = Counter(_number(node.name)[0] for node in nodes) if question.top is None else Counter[str]()
    total: dict[str, float] = {}
    for node in nodes:
        total[_number(node.name)[0]] = total.get(_number(node.name)[0], 0.0) + node.energy_j

    def key(node: Node) -> tuple[float, int]:
        stem, number = _number(node.name)
        return (-total[stem], number) if number >= 0 and series[stem] > 1 else (-node.energy_j, 0)

    return sorted(nodes, key=key)


def _number(name: str) -> tuple[str, int]:
    """A name's stem and its number, or -1."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :]) if len(stem) < len(name) else -1


def _mean_power(node: Node) -> float:
    return node.energy_j / node.active_s if node.active_s else 0.0


def _line(node: Node, label: str, depth: int, total_j: float) -> Line:
    return Line(
        label=label,
        path=node.path,
        depth=depth,
        energy_j=node.energy_j,
        low_j=node.low_j,
        high_j=node.high_j,
        share=node.energy_j / total_j if total_j else 0.0,
        active_s=node.active_s,
        calls=node.calls,
        phases=node.phases,
        provenance=node.provenance,
        spread=node.spread,
        interval=node.interval,
        time_based_j=node.time_based_j,
    )


def _group_lines(footprint: Footprint, question: Question) -> list[Line]:
    rows = _grouped(footprint, question.by)
    total = drawn_j(footprint)
    phases = _phases(footprint, question.by)
    lines = [
        Line(
            label=label,
            path=label,
            depth=0,
            energy_j=float(rows.energy_j[row]),
            low_j=float(rows.low_j[row]),
            high_j=float(rows.high_j[row]),
            share=float(rows.energy_j[row]) / total if total else 0.0,
            active_s=float(rows.active_s[row]),
            calls=round(float(rows.calls[row])),
            phases=phases[label],
            provenance=rows.provenance[row],
            spread=bool(rows.has_spread[row]),
            interval=bool(rows.has_interval[row]),
            time_based_j=None if rows.beside_j is None else float(rows.beside_j[row]),
        )
        for row, label in enumerate(rows.name)
    ]
    lines.sort(key=lambda line: -(line.power_w or 0.0) if question.power else -line.energy_j)
    lines.sort(key=lambda line: _is_bucket(line.label) and question.by == "tensor")
    shown = lines[: question.top]
    if len(shown) < len(lines):
        rest = _grouped(footprint, question.by, {line.label for line in lines[len(shown) :]})
        (node,) = rest.tree().children
        shown.append(
            replace(_line(node, f"{len(lines) - len(shown)} more", 0, total), more=len(lines) - len(shown))
        )
    return shown


def _is_bucket(name: str) -> bool:
    """``(start-up)`` and its like are time, not tensors: they stand last."""
    return name.startswith("(") and SEPARATOR not in name


def _phases(footprint: Footprint, by: By) -> dict[str, dict[str, float]]:
    rows = footprint.rollup(_column(footprint, by), keep=("phase",))
    found: dict[str, dict[str, float]] = {}
    for label, phase, energy in zip(rows.name, rows.phase, rows.energy_j.tolist(), strict=True):
        found.setdefault(label, {})[phase] = energy
    return found


_LINES: dict[By, Callable[[Footprint, Question], list[Line]]] = {
    "module": _module_lines,
    "tensor": _group_lines,
    "op": _group_lines,
    "phase": _group_lines,
    "device": _group_lines,
    "step": step_lines,
    "kind": region_lines,
    "region": region_lines,
}
