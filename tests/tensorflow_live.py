"""Doubles and small models for the tests of the live TensorFlow adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joulemap.frameworks.tensorflow.adapter import TensorFlowAdapter


class Heard:
    """A ``StepListener`` that keeps what it hears; ``steps`` are the outermost, as the recorder has it."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.compiled_steps: list[int] = []
        self.depth = 0

    def begin(self, label: str) -> None:
        if self.depth == 0:
            self.steps.append(label)
        self.depth += 1

    def end(self, done: bool = False) -> None:
        assert self.depth > 0
        self.depth -= 1

    def noted(self, label: str) -> bool:
        return False

    def is_open(self) -> bool:
        return self.depth > 0

    def forget_others(self) -> None:
        """There is one thread."""

    def open_label(self) -> str:
        return self.steps[-1] if self.depth else ""

    def rename(self, label: str) -> None:
        if self.depth == 1:
            self.steps[-1] = label

    def cancel(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.steps.pop()

    def compiled(self) -> None:
        if self.depth and len(self.steps) not in self.compiled_steps:
            self.compiled_steps.append(len(self.steps))

    def has_compiled(self) -> None:
        """Where a step is open, that is all."""


@contextmanager
def attached(folder: Path, *modules: str) -> Iterator[tuple[TensorFlowAdapter, Heard]]:
    adapter, heard = TensorFlowAdapter(folder), Heard()
    for module in modules:
        adapter.attach(module, heard)
    try:
        yield adapter, heard
    finally:
        adapter.detach()
    assert adapter.problems == []
    assert heard.depth == 0


def graphs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "graphs").glob("*.json"))]


def true_path(graph: dict[str, Any], node: str) -> str:
    """Where a node belongs: its longest captured scope, translated."""
    parts = node.split("/")[:-1]
    while parts and "/".join(parts) not in graph["scopes"]:
        parts.pop()
    return graph["scopes"].get("/".join(parts), "")


def marks(folder: Path) -> set[tuple[str, str]]:
    """Of every node that says where it belongs (``at.bert.dense``): what it says, and what the scopes say."""
    return {
        (name.split("/")[-1].removeprefix("at.").split("-")[0].replace(".", "/"), true_path(graph, name))
        for graph in graphs(folder)
        for name, _, _ in graph["nodes"]
        if name.split("/")[-1].startswith("at.")
    }


def event_names(session: Path) -> set[str]:
    """The names of a session's events on the host."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    [file] = session.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    [host] = [plane for plane in space.planes if plane.name == "/host:CPU"]
    return {host.event_metadata[event.metadata_id].name for line in host.lines for event in line.events}
