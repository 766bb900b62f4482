"""Which part of a job a process is, who launched it, and what its recording is called."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from joulemap.recorder.ranks import Launcher, Rank, launcher_notes
from joulemap.recording.info import OF_ONE_RANK

from .two_ranks import launched

PORT = {"MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Rank(3, 4, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, Rank(5, 8, 0)),
        ({"RANK": "x", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, None),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none", **PORT},
            Rank(3, 4, 1, PORT),
        ),
    ],
)
def test_the_launcher_says_which_part_this_is(environment: dict[str, str], expected: Rank | None) -> None:
    assert Rank.of(environment) == expected


@pytest.mark.parametrize(
    ("arguments", "noted"),
    [
        (["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], True),
        (["/usr/local/bin/torchrun", "train.py"], True),
        (["train.py", "torchrun"], False),
        (["-m", "mypackage.train"], False),
    ],
)
def test_a_launcher_is_told_from_what_it_launches(arguments: list[str], noted: bool) -> None:
    notes = launcher_notes(arguments)
    assert bool(notes) == noted
    assert all("torchrun --no-python" in note for note in notes)


def test_a_rank_alone_says_whose_energy_it_has_and_what_puts_the_ranks_together() -> None:
    first, second = (
        Rank(2 + local, 4, local).note(Path(f"out/job-rank{2 + local}.joulemap")) for local in range(2)
    )
    assert first == (
        "This is rank 2 of 4 alone: its meters stand for all ranks of its machine. Put them together: "
        "joulemap merge out/job-rank*.joulemap -o out/job.joulemap"
    )
    assert second == (
        "This is rank 3 of 4 alone: its machine is metered in the recording of another rank. Put them "
        "together: joulemap merge out/job-rank*.joulemap -o out/job.joulemap"
    )
    assert first.startswith(OF_ONE_RANK)
    assert second.startswith(OF_ONE_RANK)


def process(proc: Path, pid: int, parent: int, ticks: int, environment: str) -> None:
    """A process as Linux shows it."""
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "environ").write_text(environment.replace(" ", "\0"))
    words = ["S", str(parent), *["0"] * 17, str(ticks), *["0"] * 30]
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(words)}")


def test_all_ranks_know_when_they_were_launched(tmp_path: Path) -> None:
    second = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    process(tmp_path, 5, 1, 90 * second, "PATH=/bin HOME=/root")
    process(tmp_path, 6, 5, 91 * second, "RANK=0 LOCAL_RANK=0")
    process(tmp_path, 7, 5, 95 * second, "RANK=1 LOCAL_RANK=1")
    process(tmp_path, 8, 7, 96 * second, "RANK=1 LOCAL_RANK=1")  # a script around it
    assert {Launcher.of(tmp_path, pid) for pid in (5, 6, 8)} == {Launcher(5, 1_700_000_090.0)}
    (tmp_path / "stat").write_text("cpu  1 2 3\n")  # a system that does not say when it began
    assert Launcher.of(tmp_path, 5) == Launcher(5, pytest.approx(time.time(), abs=60))
    assert Launcher.of(tmp_path / "no", 5).began_s == pytest.approx(time.time(), abs=60)


def test_ranks_that_begin_in_different_seconds_are_named_alike(tmp_path: Path) -> None:
    said = launched(tmp_path, work="import time\ntime.sleep(3)\n")
    pattern = re.search(r"joulemap merge (\S+) -o (\S+)", said)
    assert pattern is not None
    ranks = sorted(path.name for path in tmp_path.glob(pattern[1]))
    assert [name.partition("-rank")[2] for name in ranks] == ["0.joulemap", "1.joulemap"]
    assert {name.partition("-rank")[0] for name in ranks} == {Path(pattern[2]).stem}
