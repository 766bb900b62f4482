"""Two real processes of one job, launched by torchrun and joined by gloo, each recorded and put together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import joulemap

from .environment import uncovered
from .gloo import TRIES, unaborted

pytest.importorskip("torch", reason="needs PyTorch")

TRAIN = """
import torch
import torch.distributed as dist

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
RECORD = ["-m", "joulemap", "run", "--trace-all", "-o", "job.joulemap", "train.py"]
LAUNCH = [
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--no-python",
    sys.executable,
]


@pytest.fixture(name="job", scope="module")
def make_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recordings of both ranks, and of the job."""
    folders = [tmp_path_factory.mktemp("job") for _ in range(TRIES)]
    done = unaborted(lambda turn: launch(folders[turn]), lambda done: done.stderr)
    assert done.returncode == 0, done.stderr
    assert "joulemap merge job-rank*.joulemap -o job.joulemap" in done.stderr
    folder = next(folder for folder in reversed(folders) if any(folder.iterdir()))
    merge = [sys.executable, "-m", "joulemap", "merge", "job-rank0.joulemap", "job-rank1.joulemap"]
    subprocess.run([*merge, "-o", "job.joulemap"], cwd=folder, check=True, timeout=120, capture_output=True)
    return folder


def launch(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN)
    return subprocess.run(
        [sys.executable, *LAUNCH, *RECORD],
        cwd=folder,
        env={**uncovered(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_machine_is_metered_once(job: Path) -> None:
    ranks = [joulemap.load(job / f"job-rank{rank}.joulemap") for rank in range(2)]
    assert [rank.info.rank for rank in ranks] == [0, 1]
    assert [bool(rank.power()) for rank in ranks] == [True, False]
    footprint = joulemap.account(job / "job.joulemap")
    footprint.check()
    assert footprint.measured_j == pytest.approx(sum(trace.total_j for trace in ranks[0].power()))


def test_both_ranks_are_in_the_tree(job: Path) -> None:
    footprint = joulemap.account(job / "job.joulemap")
    calls = {(row["name"], row["phase"]): row["calls"] for row in footprint.to_records()}
    single = [joulemap.load(job / f"job-rank{rank}.joulemap").events() for rank in range(2)]
    for name, phase in (("0/addmm", "forward"), ("2/AddmmBackward0", "backward")):
        of_rank = [
            list(zip(events.name, events.phase, strict=True)).count((name, phase)) for events in single
        ]
        assert of_rank == [4, 4]
        assert calls[name, phase] == 8
    lanes = joulemap.load(job / "job.joulemap").events().lane
    assert lanes is not None
    assert {word.partition(" thread")[0] for word in lanes.words if " thread" in word} == {"rank 0", "rank 1"}


def test_what_they_say_to_each_other_is_communication(job: Path) -> None:
    rows = joulemap.account(job / "job.joulemap").to_records()
    own = {row["name"] for row in rows if row["name"].startswith("communication/")}
    assert any("allreduce" in name for name in own), own
    assert sum(row["energy_j"] for row in rows if row["name"] in own) > 0
    elsewhere = {row["name"] for row in rows if "allreduce" in row["name"] or "gloo" in row["name"]} - own
    assert elsewhere == set()
