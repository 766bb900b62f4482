"""The ranks of a job, recorded each by itself and joined."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import joulemap
from joulemap.errors import InputError
from joulemap.merging import merge
from joulemap.recorder.ranks import Rank, launcher_notes
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps

S = 1_000_000_000


def rank_of(
    folder: Path, rank: int, machine: str = "one", *, metered: bool = False, world_size: int = 2
) -> Recording:
    """Rank ``n`` runs ``layer`` on ``GPU:n`` from second 0 to 2, and has a step."""
    path = folder / f"{machine}-{rank}-{metered}.joulemap"
    info = RecordingInfo(rank=rank, world_size=world_size, host={"machine": machine}, window_ns=(0, 2 * S))
    with RecordingWriter.create(path, info) as writer:
        device = f"GPU:{rank % 2}"
        writer.put_events(
            EventTrace.from_columns(name=["layer"], device=device, start_ns=[0], end_ns=[2 * S], lane="7")
        )
        writer.put_steps(Steps.from_columns(start_ns=[0], end_ns=[2 * S]))
        if metered:
            for gpu in range(2):
                domain = joulemap.Domain(f"GPU:{gpu}", f"GPU:{gpu}")
                writer.put_power(PowerTrace(domain, [0, 2 * S], [100.0 * (gpu + 1)]))
    return Recording.open(path)


def test_ranks_of_one_machine_share_what_the_first_has_metered(tmp_path: Path) -> None:
    parts = [rank_of(tmp_path, 1), rank_of(tmp_path, 0, metered=True)]
    merged = merge(parts, tmp_path / "job.joulemap")
    assert (merged.ranks, merged.machines, merged.notes) == ([0, 1], 1, [])
    footprint = joulemap.account(tmp_path / "job.joulemap")
    assert footprint.measured_j == 300.0
    assert dict(zip(footprint.device, footprint.energy_j.tolist(), strict=True)) == {
        "GPU:0": 100.0,
        "GPU:1": 200.0,
    }
    [node] = footprint.tree().children
    assert node.calls == 2


def test_machines_are_told_apart(tmp_path: Path) -> None:
    parts = [
        rank_of(tmp_path, rank, machine, metered=rank % 2 == 0, world_size=4)
        for rank, machine in enumerate(["one", "one", "two", "two"])
    ]
    merge(parts, tmp_path / "job.joulemap")
    footprint = joulemap.account(tmp_path / "job.joulemap")
    assert footprint.measured_j == 600.0
    assert footprint.idle_j == 0.0
    assert {account.domain.name for account in footprint.accounts} == {
        "one GPU:0",
        "one GPU:1",
        "two GPU:0",
        "two GPU:1",
    }
    assert set(footprint.device) == {"GPU:0", "GPU:1", "GPU:1000", "GPU:1001"}


def test_a_rank_that_is_missing_is_said(tmp_path: Path) -> None:
    [note] = merge([rank_of(tmp_path, 0, metered=True)], tmp_path / "job.joulemap").notes
    assert "Ranks 1 are missing" in note
    assert note in joulemap.account(tmp_path / "job.joulemap").warnings


@pytest.mark.parametrize(
    ("change", "words"),
    [({"rank": None}, "no rank"), ({"rank": 0}, "twice"), ({"world_size": 3}, "different sizes")],
)
def test_what_is_not_one_job_is_refused(tmp_path: Path, change: dict[str, int], words: str) -> None:
    first, second = rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1)
    second.info = dataclasses.replace(second.info, **change)
    with pytest.raises(InputError, match=words):
        merge([first, second], tmp_path / "job.joulemap")


def test_energy_that_was_metered_twice_or_never_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two ranks of one machine"):
        merge(
            [rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1, metered=True)],
            tmp_path / "job.joulemap",
        )
    with pytest.raises(InputError, match="has power"):
        merge([rank_of(tmp_path, 0), rank_of(tmp_path, 1)], tmp_path / "two.joulemap")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, Rank(3, 4, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, Rank(5, 8, 0)),
        ({"RANK": "x", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, None),
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


LAUNCHER = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, "-m", "joulemap", "run", "-o", "job.joulemap", "work.py"],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
    )
    for rank in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_two_real_ranks_are_recorded_and_joined_without_counting_twice(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(LAUNCHER)
    (tmp_path / "work.py").write_text("import joulemap\nwith joulemap.step():\n    sum(range(30_000_000))\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(joulemap.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "launch.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert "joulemap merge job-rank*.joulemap -o job.joulemap" in done.stderr
    command = [sys.executable, "-m", "joulemap", "merge", "job-rank0.joulemap", "job-rank1.joulemap"]
    subprocess.run([*command, "-o", "job.joulemap"], cwd=tmp_path, env=environment, check=True, timeout=120)
    parts = [joulemap.load(tmp_path / f"job-rank{rank}.joulemap") for rank in range(2)]
    assert [bool(part.power()) for part in parts] == [True, False]
    job = joulemap.account(tmp_path / "job.joulemap")
    assert job.measured_j == sum(trace.total_j for trace in parts[0].power())
    assert job.attributed_j > 0
