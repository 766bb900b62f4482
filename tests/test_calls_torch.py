"""Calls of PyTorch in a real program: public names, and compiled graphs that stay as they were."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from .calls_programs import same, texts
from .environment import uncovered
from .test_run import program

PROGRAM = """
    import torch
    from torch import nn
    import torch.nn.functional as F

    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
        def forward(self, x):
            return F.relu(self.layer(x)).sum()

    def helper(x): return torch.sin(x).add(1)
    def compiled(x): return torch.relu(helper(x)) + torch.ones(1)

    net, x = Net(), torch.ones(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(x); loss.backward(); optimizer.step()

    @torch.no_grad()
    def evaluate(model): return float(model(x))

    print(evaluate(net))
    graphs = []
    def backend(graph, inputs):
        graphs.append([node.name for node in graph.graph.nodes])
        return graph.forward
    whole = torch.compile(compiled, backend=backend, fullgraph=True)
    print(whole(x).sum(), whole(x + 1).sum(), graphs)
    print(torch.jit.trace(compiled, x, check_trace=False)(x).sum(), torch.stack([x, x]).shape)
"""


def test_a_program_with_compiled_parts_is_the_same_and_its_calls_have_names(tmp_path):
    program(tmp_path, PROGRAM)
    calls = same(tmp_path, "program.py", calls="torch", env=uncovered())
    called = texts(calls)
    found = dict(zip(called, calls.api, strict=True))
    assert found["net"] == "torch.nn.Module.__call__"
    assert found["self.layer"] == "torch.nn.Linear.__call__"
    assert found["loss.backward"] == "torch.Tensor.backward"
    assert found["optimizer.step"] == "torch.optim.SGD.step"
    assert found["evaluate"] == "torch.no_grad"
    assert found["whole"] == "torch.compile"
    assert found["torch.stack"] == "torch.stack"
    assert "torch.sin" not in called  # only in code that is compiled or traced
    sizes = dict(zip(called, calls.argument_bytes.tolist(), strict=True))
    assert sizes["torch.stack"] == 2 * 48
    objects = dict(zip(called, calls.object_bytes.tolist(), strict=True))
    assert objects["loss.backward"] == 4
