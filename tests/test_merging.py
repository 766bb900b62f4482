"""The ranks of a job, recorded each by itself and joined."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import joulemap
from joulemap.calibration.operation import Operation
from joulemap.calibration.recorded import signatures, values
from joulemap.errors import InputError
from joulemap.merging import merge
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps

from .test_calls_table import calls
from .two_ranks import ENVIRONMENT, launched

S = 1_000_000_000
PORT = {"MASTER_PORT": "29500"}


def rank_of(
    folder: Path,
    rank: int,
    machine: str = "one",
    *,
    metered: bool = False,
    world_size: int = 2,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Recording:
    """Rank ``n`` runs ``layer`` on ``GPU:n`` from second 0 to 2, and has a step."""
    path = folder / f"{machine}-{rank}-{metered}.joulemap"
    info = RecordingInfo(rank=rank, world_size=world_size, host={"machine": machine}, window_ns=(0, 2 * S))
    with RecordingWriter.create(path, info) as writer:
        for name, rows in (tables or {}).items():
            writer.put_table(name, pa.Table.from_pylist([dict(row) for row in rows]))
        device = f"GPU:{rank % 2}"
        writer.put_events(
            EventTrace.from_columns(name=["layer"], device=device, start_ns=[0], end_ns=[2 * S], lane="7")
        )
        writer.put_steps(Steps.from_columns(start_ns=[0], end_ns=[2 * S]))
        if metered:
            for gpu in range(2):
                domain = joulemap.Domain(f"GPU:{gpu}", f"GPU:{gpu}", update_period_s=0.1)
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
    assert "Rank 1 is missing: what it drew" in note
    assert note in joulemap.account(tmp_path / "job.joulemap").warnings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": None}, "no rank"),
        ({"rank": 0}, "twice"),
        ({"world_size": 3}, "different sizes"),
        ({"job": {"MASTER_PORT": "29501"}}, "different jobs: MASTER_PORT was 29500 and 29501"),
        ({"window_ns": (5 * S, 9 * S), "created_ns": 4 * S}, "one had ended 2.00 s before the other began"),
    ],
)
def test_what_is_not_one_job_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    first, second = rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1)
    first.info = dataclasses.replace(first.info, job=PORT)
    second.info = dataclasses.replace(second.info, **change)
    with pytest.raises(InputError, match=words):
        merge([first, second], tmp_path / "job.joulemap")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"job": {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "one"}},
        {"window_ns": (5 * S, 9 * S), "created_ns": S},  # it was there, and waited for its meters
        {"window_ns": (5 * S, 9 * S), "created_ns": 4 * S, "job": {"launcher": "7 since 0.00"}},
        {"window_ns": None},
    ],
)
def test_one_job_is_joined_whatever_else_its_ranks_say(tmp_path: Path, change: dict[str, Any]) -> None:
    first, second = rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1)
    first.info = dataclasses.replace(first.info, job={**PORT, "launcher": "7 since 0.00"})
    second.info = dataclasses.replace(second.info, **change)
    assert merge([first, second], tmp_path / "job.joulemap").ranks == [0, 1]


def test_time_of_a_rank_that_was_not_metered_is_said(tmp_path: Path) -> None:
    first, second = rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1)
    second.info = dataclasses.replace(second.info, window_ns=(-S // 2, 6 * S))
    [note] = merge([first, second], tmp_path / "job.joulemap").notes
    assert note == (
        "Of the 6.50 s that rank 1 ran, the first 500 ms and the last 4.00 s were not metered: a machine's "
        "meters are read as long as its first rank runs."
    )
    assert note in joulemap.account(tmp_path / "job.joulemap").warnings


def test_a_machine_that_was_not_metered_is_said(tmp_path: Path) -> None:
    parts = [rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1, "two")]
    notes = merge(parts, tmp_path / "job.joulemap").notes
    assert notes == ["Nothing was metered of rank 1, which ran for 2.00 s."]


def signature(name: str, calls: int, **more: str) -> dict[str, Any]:
    words = {"op": "addmm", "phase": "forward", "shapes": "[[2,2]]", "strides": "", "types": '["float"]'}
    return {"name": name, **words, "scalars": "", "cold": "", **more, "calls": calls}


def test_what_operations_were_called_with_is_added_up(tmp_path: Path) -> None:
    both = [signature("layer", 3), signature("layer", 1, shapes="[[4,4]]")]
    first = rank_of(tmp_path, 0, metered=True, tables={"signatures": both})
    second = rank_of(tmp_path, 1, tables={"signatures": [signature("layer", 5), signature("head", 2)]})
    merge([first, second], tmp_path / "job.joulemap")
    found = signatures(joulemap.load(tmp_path / "job.joulemap"))
    calls = {(row["name"], row["shapes"]): row["calls"] for row in found}
    assert calls == {("layer", "[[2,2]]"): 8, ("layer", "[[4,4]]"): 1, ("head", "[[2,2]]"): 2}
    assert found[0] == signature("layer", 8)


def test_what_tensors_held_is_kept_once(tmp_path: Path) -> None:
    call = {"op": "addmm", "shapes": "[[2,2]]", "strides": "", "types": ""}
    first = rank_of(tmp_path, 0, metered=True, tables={"values": [{**call, "pieces": [b"one"]}]})
    held = [{**call, "pieces": [b"two"]}, {**call, "op": "mm", "pieces": [b"three"]}]
    merge([first, rank_of(tmp_path, 1, tables={"values": held})], tmp_path / "job.joulemap")
    table = joulemap.load(tmp_path / "job.joulemap").table("values")
    assert table is not None
    assert table["pieces"].to_pylist() == [[b"one"], [b"three"]]


def test_what_generated_kernels_were_given_is_told_apart_by_their_code(tmp_path: Path) -> None:
    """A name may stand for one in the forward pass and another; older recordings say nothing of code."""
    kernel = {"op": "inductor::triton_poi_0", "shapes": "[]", "strides": "[]", "types": "[]"}
    product = {"op": "mm", "shapes": "[[2,2]]", "strides": "", "types": "", "pieces": [b"mm"]}
    both = [{**kernel, "code": f'["/{one}.py"]', "pieces": [one.encode()]} for one in ("there", "back")]
    first = rank_of(tmp_path, 0, metered=True, tables={"values": both})
    merge([first, rank_of(tmp_path, 1, tables={"values": [product]})], tmp_path / "job.joulemap")
    job = joulemap.load(tmp_path / "job.joulemap")
    asked = [Operation(*list(kernel.values()), scalars=one["code"]) for one in both]
    asked.append(Operation("mm", "[[2,2]]", "", "", ""))
    assert values(job, asked) == dict(
        zip([one.key for one in asked], [[b"there"], [b"back"], [b"mm"]], strict=True)
    )


def test_a_region_is_counted_once_for_all_ranks_that_are_in_it(tmp_path: Path) -> None:
    epoch = {"start_ns": 0, "end_ns": S, "name": "epoch"}
    first = rank_of(tmp_path, 0, metered=True, tables={"regions": [epoch]})
    own = [{**epoch, "start_ns": S // 4}, {"start_ns": S, "end_ns": 2 * S, "name": "save"}]
    merge([first, rank_of(tmp_path, 1, tables={"regions": own})], tmp_path / "job.joulemap")
    table = joulemap.load(tmp_path / "job.joulemap").table("regions")
    assert table is not None
    assert table.to_pylist() == [epoch, own[1]]


DECODE = {"start_ns": 0, "end_ns": S, "name": "decode", "count": 6.0, "unit": "token"}
UNCOUNTED = {**DECODE, "count": None, "unit": None}
OLDER = {name: value for name, value in DECODE.items() if name not in ("count", "unit")}
SAVE = {"start_ns": S, "end_ns": 2 * S, "name": "save", "count": None, "unit": None}


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [
        ([[DECODE, {**DECODE, "count": 2.0}], [{**DECODE, "count": 4.0}]], [9.0, 3.0]),
        ([[UNCOUNTED, UNCOUNTED], [DECODE]], [6.0, 0.0]),
        ([[OLDER], [DECODE]], [6.0]),
        ([[{**DECODE, "count": 0.0}], [DECODE]], [6.0]),
        ([[DECODE], [{**DECODE, "unit": "sample"}]], [6.0]),
        ([[DECODE], [OLDER]], [6.0]),
    ],
)
def test_what_ranks_have_counted_in_a_region_is_added_up(
    tmp_path: Path, ranks: list[list[dict[str, Any]]], counts: list[float]
) -> None:
    """In the unit of the first that has counted; its energy is that of all of them."""
    first, second = (
        rank_of(tmp_path, rank, metered=not rank, tables={"regions": [*rows, SAVE]})
        for rank, rows in enumerate(ranks)
    )
    merge([first, second], tmp_path / "job.joulemap")
    table = joulemap.load(tmp_path / "job.joulemap").table("regions")
    assert table is not None
    assert table["count"].to_pylist() == [*counts, None]
    assert table["unit"].to_pylist() == ["token"] * len(counts) + [None]


def test_sessions_and_facts_say_whose_they_are(tmp_path: Path) -> None:
    fact = {"t_ns": S, "name": "GPU:0 sm_clock_mhz", "value": 1980.0}
    facts = [fact, {**fact, "name": "fan/1 speed_rpm"}, {**fact, "name": "load"}]
    tables: dict[str, list[dict[str, Any]]] = {"sessions": [{"number": 0, "opened_ns": S}], "facts": facts}
    parts = [
        rank_of(tmp_path, rank, machine, metered=True, tables=tables)
        for rank, machine in enumerate(("one", "two"))
    ]
    merge(parts, tmp_path / "job.joulemap")
    job = joulemap.load(tmp_path / "job.joulemap")
    sessions = job.table("sessions")
    assert sessions is not None
    assert sessions["rank"].to_pylist() == [0, 1]
    for name in ("GPU:0 sm_clock_mhz", "GPU:1000 sm_clock_mhz", "one fan/1 speed_rpm", "two load"):
        assert job.facts(name)[1].tolist() == [1980.0]


def test_that_calls_of_apis_are_not_joined_is_said(tmp_path: Path) -> None:
    first, second = rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1)
    with RecordingWriter.create(first.path, first.info, overwrite=True) as writer:
        writer.put_power(PowerTrace(joulemap.Domain("GPU:0", "GPU:0"), [0, 2 * S], [100.0]))
        writer.put_calls(calls())
    *_, note = merge([Recording.open(first.path), second], tmp_path / "job.joulemap").notes
    assert "Calls of APIs are not put together" in note
    assert str(first.path) in note


def test_energy_that_was_metered_twice_or_never_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two ranks of one machine"):
        merge(
            [rank_of(tmp_path, 0, metered=True), rank_of(tmp_path, 1, metered=True)],
            tmp_path / "job.joulemap",
        )
    with pytest.raises(InputError, match="has power"):
        merge([rank_of(tmp_path, 0), rank_of(tmp_path, 1)], tmp_path / "two.joulemap")


def test_two_real_ranks_are_recorded_and_joined_without_counting_twice(tmp_path: Path) -> None:
    said = launched(tmp_path, "-o", "job.joulemap")
    assert "joulemap merge job-rank*.joulemap -o job.joulemap" in said
    command = [sys.executable, "-m", "joulemap", "merge", "job-rank0.joulemap", "job-rank1.joulemap"]
    subprocess.run([*command, "-o", "job.joulemap"], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=120)
    parts = [joulemap.load(tmp_path / f"job-rank{rank}.joulemap") for rank in range(2)]
    assert [bool(part.power()) for part in parts] == [True, False]
    whose = ["its meters stand for all ranks", "its machine is metered in the recording of another rank"]
    for part, words in zip(parts, whose, strict=True):
        [note] = [text for text in joulemap.account(part).warnings if words in text]
        assert "joulemap merge job-rank*.joulemap -o job.joulemap" in note
    assert said.count("joulemap merge") == 1
    job = joulemap.account(tmp_path / "job.joulemap")
    assert not any("joulemap merge" in text for text in job.warnings)
    assert job.measured_j == sum(trace.total_j for trace in parts[0].power())
    assert job.attributed_j > 0
