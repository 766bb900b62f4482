"""Names for modules: where each is below the outermost module that is called.

While a session is open every call of a module is a range ``M:<number>:<path>`` in the trace. The number is
the outermost module's (0 for what has no parameters, like a loss), its class is kept beside the trace, and
words are made of both when all outermost modules are known.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from joulemap.frameworks.torch.aside import unseen
from joulemap.program import apart

MODULE = "M:"
LOSS, PARAMETRIZATION = "loss", "(parametrization)"
NOBODY = 0
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "AveragedModel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
"""Modules that stand for another one, and what they call it: they are no part of its path."""


class ModuleNames:
    """Outermost modules, as they are called, and from them the label of every module below."""

    def __init__(self) -> None:
        self.labels: dict[int, str] = {}
        """By the module's identity; right while a session is open."""
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._numbers: dict[int, int] = {}
        self._classes: list[str] = [""]
        self._holders: list[weakref.ref[Any] | None] = [None]
        unseen(self._forget)  # garbage may be collected in the middle of compiled code

    def see(self, module: Any) -> None:
        """A module was called that no other module called."""
        key = id(module)
        if key not in self._seen:
            self._seen[key] = weakref.ref(module, partial(self._forget, key))

    def classes(self) -> list[str]:
        """The class of every outermost module, by its number."""
        return list(self._classes)

    def learn(self) -> None:
        """Name everything below the outermost modules that there are: a session begins."""
        self.labels.clear()
        for held in list(self._seen.values()):
            module = held()
            if module is not None and id(module) not in self.labels:
                self._learn(module)

    def name(self, module: Any, above: str) -> str:
        """The label of a module that had none: a new outermost one, one that was put into another since, or
        one that is made for one call. ``above`` is the label of the call around this one."""
        if not above and computes_weight(module):
            return _label(NOBODY, PARAMETRIZATION)
        if _is_loss(module):
            return _label(NOBODY, f"{LOSS}.{_class(module)}")
        if not above:
            self._learn(module)
            return self.labels[id(module)]
        self.learn()
        return self.labels.get(id(module)) or _below(above, _class(module))

    def _learn(self, root: Any) -> None:
        """An outermost module that has others inside it which were taken for outermost takes these over."""
        below = dict(_walk(root))
        for key in [key for key in self._seen if key in below and key != id(root)]:
            del self._seen[key]
            self.labels = {one: label for one, label in self.labels.items() if one not in below}
        number = self._number(root)
        path = _class(root) if number == NOBODY else ""
        for key, part in below.items():
            self.labels.setdefault(key, _label(number, f"{path}.{part}".strip(".")))
        if _is_loss(root):
            self.labels[id(root)] = _label(NOBODY, f"{LOSS}.{_class(root)}")

    def _number(self, root: Any) -> int:
        """One that is gone leaves its number to the next of its class; what ``DataParallel`` copies from a
        module is that module."""
        name = _class(_unwrapped(root))
        if "_is_replica" in vars(root) and name in self._classes:
            return self._classes.index(name)
        if next(root.parameters(), None) is None:
            return NOBODY
        for number, held in enumerate(self._holders):
            holder = held() if held is not None else None
            if holder is root:
                return number
        for number, held in enumerate(self._holders):
            if held is not None and held() is None and self._classes[number] == name:
                self._holders[number] = weakref.ref(root)
                return number
        self._classes.append(name)
        self._holders.append(weakref.ref(root))
        return len(self._classes) - 1

    def _forget(self, key: int, _: Any) -> None:
        self._seen.pop(key, None)
        self.labels.pop(key, None)


def _walk(root: Any) -> Iterator[tuple[int, str]]:
    """Every module at and below one, by identity, with its path; a shared one at its first place."""
    met: set[int] = set()
    stack = [(root, "")]
    while stack:
        module, path = stack.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        yield id(module), path
        inner = _held_as(module)
        children = [
            (child, path if name == inner else f"{path}.{name}" if path else _first(name, child))
            for name, child in module._modules.items()
            if child is not None
        ]
        stack.extend(reversed(children))


def _first(name: str, child: Any) -> str:
    """What an attribute of the outermost module is called, which is no place outside of it."""
    return name if _is_loss(child) else apart(name)


def _unwrapped(module: Any) -> Any:
    held = _held_as(module)
    inner = None if held is None else module._modules.get(held)
    return module if inner is None else _unwrapped(inner)


def _held_as(module: Any) -> str | None:
    """What a wrapper, or a class made from one, calls what it stands for."""
    return next((_WRAPPERS[one.__name__] for one in type(module).__mro__ if one.__name__ in _WRAPPERS), None)


def computes_weight(module: Any) -> bool:
    """Whether it is no model, but what a parametrized weight is computed by whenever somebody reads that."""
    return any(
        one.__name__ == "ParametrizationList" and one.__module__.startswith("torch.")
        for one in type(module).__mro__
    )


def _is_loss(module: Any) -> bool:
    from torch.nn.modules.loss import _Loss

    return isinstance(module, _Loss)


def _class(module: Any) -> str:
    return type(module).__name__


def _label(number: int, path: str) -> str:
    return f"{MODULE}{number}:{path}"


def _below(label: str, part: str) -> str:
    return label + part if label.endswith(":") else f"{label}.{part}"
