"""Two real processes of one job, launched by torchrun and joined by gloo, each recorded and put together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import joulemap
from joulemap.calibration.recorded import signatures
from joulemap.recording.info import LAUNCHER

from .environment import uncovered
from .gloo import TRIES, unaborted

pytest.importorskip("torch", reason="needs PyTorch")

TRAIN = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
weights = [one.tolist() for one in model.parameters()]
Path(f"weights-{dist.get_rank()}.txt").write_text(repr(weights))
dist.destroy_process_group()
"""
JOULEMAP = [sys.executable, "-m", "joulemap"]
RECORD = [*JOULEMAP, "run", "--trace-all", "-o", "job.joulemap", "train.py", "4"]
STEPS = 12
DIFFERENT = f"{' '.join(JOULEMAP)} run --steps $((5 + 4 * RANK)) -o job.joulemap train.py {STEPS}; exit $?"
"""Rank 0 traces step 5, rank 1 step 9; a shell stands between them and their launcher."""
LAUNCH = [
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--no-python",
]


@pytest.fixture(name="job", scope="module")
def make_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recordings of both ranks, and of the job."""
    return recorded(tmp_path_factory, RECORD)


@pytest.fixture(name="different", scope="module")
def make_different(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of ranks that did not trace the same step."""
    return recorded(tmp_path_factory, ["sh", "-c", DIFFERENT])


def recorded(folders_of: pytest.TempPathFactory, command: list[str]) -> Path:
    folders = [folders_of.mktemp("job") for _ in range(TRIES)]
    done = unaborted(lambda turn: launch(folders[turn], command), lambda done: done.stderr)
    assert done.returncode == 0, done.stderr
    assert "joulemap merge job-rank*.joulemap -o job.joulemap" in done.stderr
    folder = next(folder for folder in reversed(folders) if any(folder.iterdir()))
    merge = [*JOULEMAP, "merge", "job-rank0.joulemap", "job-rank1.joulemap", "-o", "job.joulemap"]
    subprocess.run(merge, cwd=folder, check=True, timeout=120, capture_output=True)
    return folder


def launch(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN)
    return subprocess.run(
        [sys.executable, *LAUNCH, *command],
        cwd=folder,
        env={**uncovered(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_ranks_learn_what_they_learn_without_us(job: Path, tmp_path: Path) -> None:
    def plain(turn: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / str(turn)).mkdir()
        return launch(tmp_path / str(turn), [sys.executable, "train.py", "4"])

    done = unaborted(plain, lambda done: done.stderr)
    assert done.returncode == 0, done.stderr
    folder = max(tmp_path.iterdir())
    learned = {rank: (job / f"weights-{rank}.txt").read_text() for rank in range(2)}
    assert learned == {rank: (folder / f"weights-{rank}.txt").read_text() for rank in range(2)}
    assert learned[0] == learned[1]


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


def test_ranks_that_traced_different_steps_both_stand_for_all_of_them(different: Path) -> None:
    ranks = [joulemap.load(different / f"job-rank{rank}.joulemap") for rank in range(2)]
    steps = [rank.steps() for rank in ranks]
    assert [np.flatnonzero(one.traced).tolist() for one in steps if one is not None] == [[5], [9]]
    job = joulemap.load(different / "job.joulemap")
    footprint = joulemap.account(job).check()
    calls = {(row["name"], row["phase"]): row["calls"] for row in footprint.to_records()}
    for place in (("0/addmm", "forward"), ("2/AddmmBackward0", "backward")):
        assert calls[place] == pytest.approx(2 * STEPS)
    assert any("did not trace the same steps" in text for text in job.info.warnings)


def test_the_job_knows_what_its_operations_were_called_with(different: Path) -> None:
    def called(name: str) -> dict[tuple[str, ...], int]:
        rows = [dict(row) for row in signatures(joulemap.load(different / name))]
        return {tuple(row.values()): calls for row in rows for calls in [row.pop("calls")]}

    ranks = [called(f"job-rank{rank}.joulemap") for rank in range(2)]
    job = called("job.joulemap")
    assert job == {place: sum(one.get(place, 0) for one in ranks) for place in ranks[0]}
    assert [calls for place, calls in job.items() if place[0] == "0/addmm"] == [2]


@pytest.mark.parametrize("name", ["job", "different"])
def test_ranks_of_a_job_know_each_other(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    first, second = (joulemap.load(folder / f"job-rank{rank}.joulemap").info.job for rank in range(2))
    assert first == second
    assert {"TORCHELASTIC_RUN_ID", "MASTER_PORT", LAUNCHER} == first.keys()


def test_ranks_of_two_jobs_are_not_put_together(job: Path, different: Path) -> None:
    parts = [str(job / "job-rank0.joulemap"), str(different / "job-rank1.joulemap")]
    command = [*JOULEMAP, "merge", *parts, "-o", str(job / "never.joulemap")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "are of different jobs" in done.stderr
