"""One name for the same thing: exact names first, then rules between the spellings of frameworks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from joulemap.errors import InputError
from joulemap.program import SEPARATOR, split

Rule = tuple[re.Pattern[str], str]

BUILT_IN: tuple[tuple[str, str], ...] = (
    (r"layer_\._(\d+)", r"layer_\1"),
    (r"(?<=layer)/(\d+)(?=/|$)", r"_\1"),
    (r"(?<![^/])layer_?norm(?:alization)?(?=/|$)", "LayerNorm"),
    (r"^[^/]+/(?=(?:bert|cls)(?:/|$))", ""),
    (r"^(?:optimizer/)?adam_?w(?=/|$)", "optimizer/AdamW"),
)
"""BERT as PyTorch, Keras, TensorFlow's sessions and Transformers spell it: ``layer/0`` is ``layer_0`` and
``layer_._0``, a model around ``bert`` is left out, ``adam_w`` is ``optimizer/AdamW``. Case does not count."""


def rename_rules(given: Sequence[str]) -> list[Rule]:
    """The rules that a user gave, as ``PATTERN=REPLACEMENT``, and after them the built-in ones."""
    pairs = [_pair(rule) for rule in given]
    return [_compiled(old, new) for old, new in (*pairs, *BUILT_IN)]


def _pair(rule: str) -> tuple[str, str]:
    old, equals, new = rule.rpartition("=")
    if not (old and equals):
        raise InputError(
            f"{rule!r} is not a rule.", r"Write rules like 'encoder/layer_(\d+)=encoder/layer/\1'."
        )
    return old, new


def _compiled(old: str, new: str) -> Rule:
    try:
        pattern = re.compile(old, re.IGNORECASE)
        pattern.sub(new, "")
    except (re.error, IndexError) as error:
        raise InputError(f"{old!r} is not a pattern: {error}.", "It is a regular expression.") from error
    return pattern, new


def matched(names: Sequence[str], base: Iterable[str], rules: Sequence[Rule]) -> list[str]:
    """Each name as the base spells it, as far as it has such a module: the rest of the name stays.

    A module matches by its exact path, or where there is none by what the rules make of both.
    """
    known = {prefix: None for name in base for prefix in _prefixes(name)}
    spelled: dict[str, str] = {}
    for path in known:
        spelled.setdefault(_canonical(path, rules), path)
    return [_respelled(name, known, spelled, rules) for name in names]


def _respelled(name: str, known: dict[str, None], spelled: dict[str, str], rules: Sequence[Rule]) -> str:
    for prefix in reversed(list(_prefixes(name))):
        found = prefix if prefix in known else spelled.get(_canonical(prefix, rules))
        if found is not None:
            return found + SEPARATOR.join(split(name))[len(prefix) :]
    return name


def _prefixes(name: str) -> Iterable[str]:
    parts = split(name)
    return (SEPARATOR.join(parts[:end]) for end in range(1, len(parts) + 1))


def _canonical(path: str, rules: Sequence[Rule]) -> str:
    for pattern, new in rules:
        path = pattern.sub(new, path)
    return path.lower()
