"""Doubles and small programs for the tests of the live JAX adapter."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joulemap.frameworks.adapter import StepListener
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.jax.adapter import JaxAdapter
from joulemap.frameworks.jax.raw import read_raw
from tests.tensorflow_live import Heard


@contextmanager
def attached(folder: Path) -> Iterator[tuple[JaxAdapter, Heard]]:
    heard = Heard()
    with adapted(folder, heard) as adapter:
        yield adapter, heard


@contextmanager
def adapted(folder: Path, steps: StepListener) -> Iterator[JaxAdapter]:
    adapter = JaxAdapter(folder)
    for module in adapter.watches:
        importlib.import_module(module)
        adapter.attach(module, steps)
    try:
        yield adapter
    finally:
        adapter.detach()
    assert adapter.problems == [], adapter.problems


@contextmanager
def session(adapter: JaxAdapter, folder: Path, number: int = 0) -> Iterator[None]:
    (folder / str(number)).mkdir(parents=True)
    adapter.start(folder / str(number))
    try:
        yield
    finally:
        adapter.stop()


def traced(folder: Path, action: Callable[[], Any]) -> ImportedTrace:
    """What a session of an action holds, which is done once before."""
    import jax

    with attached(folder) as (adapter, _):
        jax.block_until_ready(action())
        with session(adapter, folder):
            jax.block_until_ready(action())
    return read_raw(folder)


def layers(trace: ImportedTrace) -> dict[str, set[tuple[str, str]]]:
    """layer -> (operation, phase)"""
    events = trace.events
    found = defaultdict(set)
    for name, phase, kind in set(zip(events.name, events.phase, events.kind, strict=True)):
        if kind == "op":
            layer, _, operation = name.rpartition("/")
            found[layer].add((operation, phase))
    return dict(found)
