"""Steps in which ``torch.compile`` compiles while they are traced: no part of layers, and no example."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import joulemap

from .command_line import joulemap as run_joulemap

pytest.importorskip("torch", reason="needs PyTorch")

PROGRAM = """
import torch

class Block(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()

model = torch.nn.Sequential(Block(8, 8), torch.nn.Linear(8, 2))
model[0].compile(backend="eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for length in (4, 4, 4, 6, 6, 6):  # the first and the fourth compile
    model(torch.randn(length, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("which", [("--trace-all",), ("--steps", "0-5")], ids=" ".join)
def test_a_traced_step_that_compiles_is_compilation(tmp_path: Path, which: tuple[str, ...]) -> None:
    path, program = tmp_path / "r.joulemap", tmp_path / "train.py"
    program.write_text(PROGRAM)
    run_joulemap("run", "-q", *which, "-o", path, program)
    recording = joulemap.load(path)
    steps, events = recording.steps(), recording.events()
    assert steps is not None
    assert list(steps.label) == ["train"] * 4
    assert all(steps.traced)
    spans = events.take(np.array([name == "(compilation)" for name in events.name], bool))
    assert len(spans) == 2
    compiling = np.zeros(len(events), bool)
    for start_ns, end_ns in zip(spans.start_ns, spans.end_ns, strict=True):
        compiling |= (events.start_ns >= start_ns) & (events.start_ns < end_ns)
    assert set(events.take(compiling).name) == {"(compilation)"}
    assert not any("dynamo_timed" in name for name in events.name)
    footprint = joulemap.account(recording)
    footprint.check()
    energy_j = {row["name"]: row["energy_j"] for row in footprint.to_records()}
    assert energy_j["(compilation)"] > energy_j["1/addmm"]
    signatures = recording.table("signatures")  # of what comes after, since the first session compiled
    assert signatures is not None
    called = zip(signatures["name"].to_pylist(), signatures["calls"].to_pylist(), strict=True)
    assert dict(called)["1/addmm"] == 2
    assert recording.program().edges


A_FUNCTION = """
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

@torch.compile(backend="eager", dynamic=False)
def loss(x):
    return model(x).sum()

for length in (4, 4, 4, 4, 6, 6):  # no step is known when the first one is compiled
    loss(torch.randn(length, 8)).backward()
    optimizer.step()
"""


def test_what_is_compiled_before_any_step_is_compilation(tmp_path: Path) -> None:
    path, program = tmp_path / "r.joulemap", tmp_path / "train.py"
    program.write_text(A_FUNCTION)
    run_joulemap("run", "-q", "--overhead", "0", "-o", path, program)
    recording = joulemap.load(path)
    steps, events = recording.steps(), recording.events()
    assert steps is not None
    before, inside = (spans(events, "(compilation)") < steps.start_ns[0]).tolist()
    assert (before, inside) == (True, False)
    assert len(spans(events, "(start-up)")) == 2  # before that, and after it


def spans(events: joulemap.EventTrace, name: str) -> np.ndarray:
    """When each of this name began."""
    return np.sort(events.start_ns[np.array([one == name for one in events.name], bool)])
