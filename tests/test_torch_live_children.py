"""Processes that a PyTorch program starts itself: what a recording says of them."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import subprocess
import sys
import traceback
from concurrent.futures.process import _process_worker
from functools import partial
from multiprocessing.pool import worker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import joulemap
from joulemap.frameworks.torch.adapter import TorchAdapter
from joulemap.frameworks.torch.children import NOT_TRACED
from joulemap.frameworks.torch.profiler import _NO_SLICES
from joulemap.recorder.finish import TOO_SOON, WORKERS
from tests.environment import uncovered
from tests.tensorflow_live import Heard
from tests.torch_live import attached

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch.multiprocessing.pool import clean_worker as pool_worker  # noqa: E402
from torch.utils.data._utils import worker as data_worker  # noqa: E402

RANKS = """
import sys
import torch, torch.multiprocessing as mp
def work(rank):
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    if sys.argv[1] == "torch":
        mp.spawn(work, nprocs=2)
        torch.nn.Linear(8, 1).eval()(torch.ones(4, 8))  # a step of the program's own
    else:
        ranks = [mp.get_context(sys.argv[1]).Process(target=work, args=(rank,)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
"""
WORKING = """
import torch
data = [torch.ones(8)] * 8
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
    model(batch).sum().backward()
    optimizer.step()
"""
FED = """
import sys, time
import torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, number):
        until = time.process_time() + 0.002
        while time.process_time() < until:
            pass
        return torch.ones(8)
class Waiting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(8, 1)
    def forward(self, batch):
        time.sleep(0.02)
        return self.inside(batch)
if __name__ == "__main__":
    model = Waiting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(
        Slow(), batch_size=8, num_workers=1, multiprocessing_context=sys.argv[1]
    )
    for number, batch in enumerate(loader):
        model(batch).sum().backward()
        optimizer.step()
        if number == 300:
            break
"""


def rank() -> None:
    """What a process runs."""


class Rank(multiprocessing.Process):
    """One that says itself what it runs."""

    def run(self) -> None:
        rank()


def said(folder: Path, make: Any, *, steps: bool = False, marked: bool = False) -> tuple[list[str], bool]:
    """What an adapter says of a program that makes a process, and whether workers have fed it."""
    adapter, heard = TorchAdapter(folder), Heard()
    adapter.attach("torch", heard)
    make()
    if marked:
        heard.begin("the program's own")
    if steps:
        torch.nn.Linear(2, 2).eval()(torch.ones(1, 2))
    adapter.detach()
    return adapter.problems, adapter.fed_by_workers


def test_ranks_that_torch_starts_are_not_traced_whatever_else_the_program_does(tmp_path: Path) -> None:
    from torch.multiprocessing.spawn import _wrap

    for steps in (False, True):
        make = partial(multiprocessing.Process, target=_wrap)
        assert said(tmp_path, make, steps=steps) == ([NOT_TRACED], False)


@pytest.mark.parametrize(
    "make",
    [partial(multiprocessing.Process, target=rank), partial(Rank), partial(Rank, target=partial(rank))],
)
def test_processes_of_the_program_are_worth_a_word_where_it_has_no_steps(tmp_path: Path, make: Any) -> None:
    assert said(tmp_path, make) == ([NOT_TRACED], False)
    assert said(tmp_path, make, steps=True) == ([], False)
    assert said(tmp_path, make, steps=True, marked=True) == ([], False)


@pytest.mark.parametrize("target", [None, _process_worker, worker])
def test_helpers_are_not(tmp_path: Path, target: Any) -> None:
    assert said(tmp_path, partial(multiprocessing.Process, target=target)) == ([], False)


@pytest.mark.parametrize(
    ("target", "steps", "beside"),
    [
        (_process_worker, False, True),
        (worker, True, True),
        (pool_worker, False, True),
        (None, True, False),
        (rank, True, True),
        (rank, False, False),  # of which something else is said
    ],
)
def test_processes_that_compute_beside_the_program_are_known(
    tmp_path: Path, target: Any, steps: bool, beside: bool
) -> None:
    adapter, heard = TorchAdapter(tmp_path), Heard()
    adapter.attach("torch", heard)
    multiprocessing.Process(target=target)
    if steps:
        torch.nn.Linear(2, 2).eval()(torch.ones(1, 2))
    adapter.detach()
    assert adapter.computes_beside == beside


def test_workers_of_a_data_loader_are_known_and_no_ranks(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(
        [torch.ones(2)] * 2, num_workers=1, multiprocessing_context=multiprocessing.get_context("fork")
    )
    assert said(tmp_path, lambda: list(loader)) == ([], True)


def test_processes_are_what_they_were(tmp_path: Path) -> None:
    def seen() -> list[Any]:
        with pytest.raises(TypeError) as failed:
            multiprocessing.Process(targets=rank)
        frames = [frame.name for frame in traceback.extract_tb(failed.value.__traceback__)]
        signatures = [str(inspect.signature(one)) for one in (BaseProcess, BaseProcess.__init__)]
        return [frames, str(failed.value), *signatures, pickle.dumps(torch.multiprocessing.start_processes)]

    before, original = seen(), BaseProcess.__init__
    with attached(tmp_path):
        assert BaseProcess.__init__ is not original
        assert seen() == before
    assert BaseProcess.__init__ is original


def recorded(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """What a recording of a program warns of."""
    (folder / "train.py").write_text(program)
    ours = ["-m", "joulemap", "run", "-o", "r.joulemap", *options]
    done = subprocess.run(
        [sys.executable, *ours, "train.py", *arguments],
        cwd=folder,
        env={**uncovered(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    warnings = joulemap.load(folder / "r.joulemap").info.warnings
    assert all(warning in done.stderr for warning in warnings)
    return warnings


@pytest.mark.parametrize(
    ("start", "options"), [("torch", ()), ("torch", ("--trace-all",)), ("fork", ()), ("spawn", ())]
)
def test_a_program_that_starts_its_ranks_itself_is_told_how_to_trace_them(
    tmp_path: Path, start: str, options: tuple[str, ...]
) -> None:
    said = recorded(tmp_path, RANKS, start, options=options)
    assert [one for one in said if _NO_SLICES not in one] == [NOT_TRACED]  # which older versions cannot have


def test_a_program_with_workers_is_told_where_their_energy_is(tmp_path: Path) -> None:
    """Nothing, where the monitor has looked in the moment that they lived."""
    assert recorded(tmp_path, WORKING) in ([TOO_SOON], [TOO_SOON, WORKERS])


@pytest.mark.skipif(
    "pt_data_worker" not in inspect.getsource(data_worker),
    reason=f"torch {torch.__version__} gives workers no name",
)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_energy_of_workers_is_the_input_pipelines_and_no_layers(tmp_path: Path, start: str) -> None:
    """The program's own thread does nearly nothing, in a module, while the worker computes."""
    said = recorded(tmp_path, FED, start)
    assert not [one for one in said if not one.startswith("Tracing took")]  # on a busy machine
    footprint = joulemap.account(tmp_path / "r.joulemap").where(domain="CPU")
    drawn_j = {row["name"]: row["energy_j"] for row in footprint.rollup(keep=()).to_records()}
    workers_j = drawn_j["input pipeline/workers"]
    assert workers_j > 2 * sum(energy_j for name, energy_j in drawn_j.items() if name.startswith("(model)"))
    assert workers_j > (sum(drawn_j.values()) - drawn_j["(start-up)"]) / 2
