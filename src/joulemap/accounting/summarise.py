"""Summarised names (STEF): self-similar blocks merged into one.

A transformer is twelve times the same layer. Siblings that differ only in an integer, and whose insides
look alike, become one name: ``layer_0 … layer_11`` is ``layer_*``. Inside merged blocks, what a framework
numbered by itself (``layer_normalization_7`` in one, ``layer_normalization_9`` in the next) falls together
too. Operations of one layer stay apart: ``MatMul`` and ``MatMul_1`` of an attention are not the same thing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from joulemap.errors import InputError
from joulemap.program import SEPARATOR, split

ALIKE = 0.7
"""Two blocks look alike when they share this part of all the names inside them. Not all of it: graph
optimisers fold a constant in the first layer and not in the others."""

_INTEGER = re.compile(r"\d+")
_NUMBERED = re.compile(r"(.*?)_?\d+$")


@dataclass(slots=True)
class _Node:
    """A name's part, with everything under it; ``inside`` are the paths below, without numbers."""

    children: dict[str, _Node] = field(default_factory=dict)
    inside: frozenset[str] = frozenset()


_Place = tuple[str, str, _Node]
"""A child of merged blocks: the path of the block it is in, its name there, and itself."""


def summarised_names(names: Sequence[str], rules: Mapping[str, str] | Sequence[str] = ()) -> list[str]:
    """The summarised name of each name. Rules such as ``layer_*=transformer`` come before what is found:
    the star stands for an integer, and the pattern for one part of a name."""
    root = _Node()
    for name in names:
        node = root
        for part in split(name):
            node = node.children.setdefault(part, _Node())
    _look_inside(root)
    renamed: dict[str, str] = {"": ""}
    patterns = _compile(rules)
    _check_used(patterns, {part for name in names for part in split(name)})
    _merge([("", root)], "", patterns, renamed)
    return [renamed[SEPARATOR.join(split(name))] for name in names]


def _compile(rules: Mapping[str, str] | Sequence[str]) -> list[tuple[re.Pattern[str], str]]:
    pairs = rules.items() if isinstance(rules, Mapping) else [_pair(rule) for rule in rules]
    return [(re.compile(re.escape(old).replace(r"\*", r"\d+")), new) for old, new in pairs]


def _check_used(patterns: list[tuple[re.Pattern[str], str]], parts: set[str]) -> None:
    for pattern, new in patterns:
        if parts and not any(pattern.fullmatch(part) for part in parts):
            raise InputError(
                f"No module matches the rule for {new!r}.",
                "A rule is one part of a name with * for its number, as layer_*=transformer.",
            )


def _pair(rule: str) -> tuple[str, str]:
    old, equals, new = rule.partition("=")
    if not (old and equals and new):
        raise InputError(f"{rule!r} is not a rule.", "Write rules like layer_*=transformer.")
    return old, new


def _stem(name: str) -> str:
    """``layer_normalization`` for ``layer_normalization_7``; the name itself where it has no number."""
    match = _NUMBERED.match(name)
    return match[1] or "*" if match else name


def _look_inside(node: _Node) -> None:
    paths: set[str] = set()
    for name, child in node.children.items():
        _look_inside(child)
        stem = _stem(name)
        paths.add(stem)
        paths.update(f"{stem}{SEPARATOR}{path}" for path in child.inside)
    node.inside = frozenset(paths)


def _merge(
    blocks: list[tuple[str, _Node]],
    new_path: str,
    rules: list[tuple[re.Pattern[str], str]],
    renamed: dict[str, str],
) -> None:
    """Name the children of blocks that became one, and go on with those that fall together."""
    together: dict[str, list[tuple[str, _Node]]] = {}
    counts = Counter(name for _, block in blocks for name in block.children)
    stems = Counter(stem for _, block in blocks for stem in {_stem(name) for name in block.children})
    for path, block in blocks:
        alike = _alike_siblings(block)
        for name, child in block.children.items():
            new = _by_rule(name, rules) or alike.get(name)
            if new is None and counts[name] < len(blocks) == stems[_stem(name)]:
                new = _starred(name)
            together.setdefault(new or name, []).append((_join(path, name), child))
    for new, members in together.items():
        for old_path, _ in members:
            renamed[old_path] = _join(new_path, new)
        _merge(members, _join(new_path, new), rules, renamed)


def _join(path: str, name: str) -> str:
    return f"{path}{SEPARATOR}{name}" if path else name


def _by_rule(name: str, rules: list[tuple[re.Pattern[str], str]]) -> str | None:
    return next((new for pattern, new in rules if pattern.fullmatch(name)), None)


def _starred(name: str) -> str:
    """``dense_*`` for ``dense_3`` and for ``dense``, which is how frameworks name the first one."""
    match = _NUMBERED.match(name)
    return name[: match.end(1)] + re.sub(r"\d+$", "*", name[match.end(1) :]) if match else f"{name}_*"


def _alike_siblings(block: _Node) -> dict[str, str]:
    """The starred name of every composite child that has a sibling which differs in one integer only."""
    groups: dict[str, list[str]] = {}
    for name, child in block.children.items():
        if child.children:
            for pattern in _patterns(name):
                groups.setdefault(pattern, []).append(name)
    found: dict[str, str] = {}
    for pattern, names in groups.items():
        for family in _families([name for name in names if name not in found], block):
            if len(family) > 1:
                found.update(dict.fromkeys(family, pattern))
    return found


def _patterns(name: str) -> Iterable[str]:
    """The name with each of its integers starred, last first, and as the unnumbered first of a series."""
    for integer in reversed(list(_INTEGER.finditer(name))):
        yield f"{name[: integer.start()]}*{name[integer.end() :]}"
    if not name[-1].isdigit():
        yield f"{name}_*"


def _families(names: list[str], block: _Node) -> list[list[str]]:
    """Names sorted into families whose insides look like that of the family's first."""
    families: list[list[str]] = []
    for name in names:
        inside = block.children[name].inside
        for family in families:
            if _similarity(inside, block.children[family[0]].inside) >= ALIKE:
                family.append(name)
                break
        else:
            families.append([name])
    return families


def _similarity(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a | b else 1.0
