"""Which sizes of one rank's steps are those of another.

A kind that was given far more or less than the first of its model has that in its label (``inference (512
numbers)``); the first has none (``inference``). Ranks are given prompts of other lengths, and one may have
begun with a prompt where another began with a token. So sizes are the same whose numbers are near; and of
those without, how long steps take tells. What has no partner is of the size that takes about as long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf, log

import numpy as np

from joulemap.program import FAR, numbers_of, unsized
from joulemap.traces import Steps
from joulemap.units import NS_PER_S

_TELLS = log(2)
"""How much closer, as a ratio's logarithm, sizes must be in time to be paired for that."""
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class _Size:
    """Steps of one label: how many numbers they are given, where that is known, and how long they take."""

    label: str
    numbers: int | None
    takes_s: float


_Pairs = dict[_Size, _Size]
"""Sizes of the first rank, each with that of another rank that is the same."""


def same_sizes(ranks: Mapping[int, Steps]) -> tuple[dict[int, Steps], list[str]]:
    """The steps of each rank with labels of the first rank's, and what to say of those that are not sure."""
    sizes = {rank: _sizes(steps) for rank, steps in ranks.items()}
    words: dict[int, dict[str, str]] = {rank: {} for rank in ranks}
    notes: list[str] = []
    first = next(iter(ranks))
    for model in sizes[first]:
        having = {rank: its[model] for rank, its in sizes.items() if model in its}
        names, said = _names(model, having)
        notes += said
        for rank, its in names.items():
            words[rank] |= its
    return {rank: _renamed(steps, words[rank]) for rank, steps in ranks.items()}, notes


def _names(model: str, having: Mapping[int, Sequence[_Size]]) -> tuple[dict[int, dict[str, str]], list[str]]:
    """What each rank's labels of a model are to be, and what to say about it."""
    own = next(iter(having.values()))
    pairs = {rank: _pairs(own, its) for rank, its in having.items()}
    kept = [one for one in own if all(one in its for its in pairs.values())]
    if len(kept) < 2 and any(len(its) > 1 for its in having.values()):
        return {rank: {one.label: model for one in its} for rank, its in having.items()}, [_one_kind(model)]
    names, said = dict[int, dict[str, str]](), list[str]()
    for rank, its in having.items():
        of = {pairs[rank][one]: one for one in kept}
        like = {one: of[min(of, key=partial(_apart, one))] for one in its}
        names[rank] = {one.label: other.label for one, other in like.items()}
        said += [_taken(rank, one, other) for one, other in like.items() if not _sure(one, other)]
    return names, said


def _sizes(steps: Steps) -> dict[str, list[_Size]]:
    """By model."""
    found: dict[str, list[_Size]] = {}
    lasted_s = (steps.end_ns - steps.start_ns) / NS_PER_S
    for code in np.unique(steps.label.codes).tolist():
        label = steps.label.words[code]
        takes_s = float(np.median(lasted_s[steps.label.codes == code]))  # the first ones compile
        found.setdefault(unsized(label), []).append(_Size(label, numbers_of(label), takes_s))
    return found


def _pairs(own: Sequence[_Size], others: Sequence[_Size]) -> _Pairs:
    """Those whose numbers are near, the nearest first; of what is left those that time tells."""
    if len(own) == len(others) == 1:
        return {own[0]: others[0]}
    pairs: _Pairs = {}
    for one, other in sorted(product(own, others), key=lambda pair: _ratio(*pair)):
        if _ratio(one, other) <= log(FAR) and one not in pairs and other not in pairs.values():
            pairs[one] = other
    left = [one for one in own if one not in pairs]
    return pairs | _by_time(left, [one for one in others if one not in pairs.values()])


def _by_time(own: Sequence[_Size], others: Sequence[_Size]) -> _Pairs:
    """Of those that are left: the two without numbers with each other, or each with one that has a number,
    where their time tells that they began with different sizes. None where it does not tell."""
    straight, crossed = _straight(own, others), _crossed(own, others)
    straight_by, crossed_by = _differ(straight), _differ(crossed)
    if crossed_by + _TELLS < straight_by:
        return crossed
    return straight if len(crossed) < 2 or straight_by + _TELLS < crossed_by else {}


def _straight(own: Sequence[_Size], others: Sequence[_Size]) -> _Pairs:
    both = [next((one for one in sizes if one.numbers is None), None) for sizes in (own, others)]
    one, other = both
    return {} if one is None or other is None or _apart(one, other) > log(FAR) else {one: other}


def _crossed(own: Sequence[_Size], others: Sequence[_Size]) -> _Pairs:
    unnamed = [(one, other) for one, other in product(own, others) if one.numbers is None]
    named = [(one, other) for one, other in product(own, others) if other.numbers is None]
    pairs: _Pairs = {}
    for some in (unnamed, named):
        near = [pair for pair in some if pair[0].numbers != pair[1].numbers and _apart(*pair) <= log(FAR)]
        pairs |= dict(sorted(near, key=lambda pair: _apart(*pair))[:1])
    return pairs


def _differ(pairs: _Pairs) -> float:
    """By how much two that are paired differ in time at most; endless where there are none."""
    return max((_apart(one, other) for one, other in pairs.items()), default=inf)


def _ratio(one: _Size, other: _Size) -> float:
    """Of what they are given, as the size of its logarithm."""
    if one.numbers is None or other.numbers is None:
        return inf
    return abs(log(max(one.numbers, 1) / max(other.numbers, 1)))


def _apart(one: _Size, other: _Size) -> float:
    """The same of the time that they take."""
    return abs(log(max(one.takes_s, _LEAST_S) / max(other.takes_s, _LEAST_S)))


def _sure(one: _Size, other: _Size) -> bool:
    return one.label == other.label or _ratio(one, other) <= log(FAR)


def _renamed(steps: Steps, words: Mapping[str, str]) -> Steps:
    return dataclasses.replace(
        steps, label=steps.label.mapped([words.get(word, word) for word in steps.label.words])
    )


def _taken(rank: int, one: _Size, other: _Size) -> str:
    return f"Steps of {one.label} of rank {rank} are taken for {other.label}, since they take about as long."


def _one_kind(model: str) -> str:
    return (
        f"The ranks were given other sizes, of which it is not sure which are the same: all steps of {model} "
        "are of one kind, and their energy goes by those of any size that were traced."
    )
