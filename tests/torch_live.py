"""Doubles and small models for the tests of the live PyTorch adapter."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch.adapter import TorchAdapter
from joulemap.frameworks.torch.raw import read_raw
from tests.tensorflow_live import Heard

INDUCTOR = "torch._inductor.compile_fx"


class Noting(Heard):
    """Is told of steps like the last one in a word."""

    def __init__(self) -> None:
        super().__init__()
        self.noted_at: list[int] = []

    def noted(self, label: str) -> bool:
        if self.is_open():
            return False
        self.noted_at.append(len(self.steps))
        self.begin(label)
        return True


@contextmanager
def attached(folder: Path) -> Iterator[tuple[TorchAdapter, Heard]]:
    adapter, heard = TorchAdapter(folder), Heard()
    for module in adapter.watches:
        if module != INDUCTOR:  # seconds to import; who wants it has it imported
            importlib.import_module(module)
        if module in sys.modules:
            adapter.attach(module, heard)
    try:
        yield adapter, heard
    finally:
        adapter.detach()
    assert adapter.problems == [], adapter.problems


@contextmanager
def session(adapter: TorchAdapter, folder: Path, number: int = 0) -> Iterator[None]:
    (folder / str(number)).mkdir(parents=True)
    adapter.start(folder / str(number))
    try:
        yield
    finally:
        adapter.stop()


def traced(folder: Path, action: Any, times: int = 1) -> dict[str, set[tuple[str, str]]]:
    """What a session of an action holds: layer -> (operation, phase)."""
    with attached(folder) as (adapter, _), session(adapter, folder):
        for _ in range(times):
            action()
    return layers(folder)


def layers(folder: Path) -> dict[str, set[tuple[str, str]]]:
    events = read_raw(folder).events
    found = defaultdict(set)
    for name, phase, kind in set(zip(events.name, events.phase, events.kind, strict=True)):
        if kind == "op":
            layer, _, operation = name.rpartition("/")
            found[layer].add((operation, phase))
    return dict(found)
