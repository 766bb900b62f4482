"""Studies that replay operations by themselves: what they replay can be, and what they say of it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

from studies.accuracy import alone, drift, rotation, values

from joulemap.calibration.cost import Cost


def test_every_operation_is_replayed_with_both_kinds_of_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "SECONDS", 0.001)
    monkeypatch.setattr(values, "ROWS", 64)
    lines = list(values.replay("cpu"))
    keys = [f"{how} {one.key}" for how in (values.NORMAL, values.NARROW) for one in values.calls()]
    assert [line["key"] for line in lines] == keys
    assert all(line["executions"] >= 1 for line in lines)
    found = {key: Cost(2.0 if key.startswith(values.NORMAL) else 1.5, 1.0, 0.01, 1) for key in keys}
    assert values.rows(found)[0] == ["pow", "2.00 J", "1.50 J", "× 0.75"]
    assert values.rows({}) == []
    alone.write(lines, tmp_path / "lines.jsonl")
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == len(lines)


def test_every_operation_is_replayed_with_operands_that_take_turns_and_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alone, "SECONDS", 0.001)
    monkeypatch.setattr(rotation, "SIZES", (64,))
    monkeypatch.setattr(rotation, "SUMMED", (4,))
    keys = [line["key"] for line in rotation.replay("cpu")]
    assert [key.partition(" ")[0] for key in keys] == [rotation.TURNS, rotation.SAME] * 3 + [rotation.SAME]
    found = dict.fromkeys(keys, Cost(2.0, 1.0, 0.01, 1))
    assert [row[2:] for row in rotation.rows(found)] == [["× 1.00", "× 1.00"]] * 3
    assert rotation.rows_of_sums(found) == [["4 MiB", "250 ms", "500 mJ"]]


def test_a_product_is_replayed_with_what_the_program_gives_it_early_and_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alone, "SECONDS", 0.001)
    monkeypatch.setattr(drift, "PROGRAM", {**drift.PROGRAM, "batch": 2, "length": 16, "tiny": True})
    monkeypatch.setattr(drift, "STEPS", {"early": 1, "late": 3})
    monkeypatch.setattr(drift, "LAYERS", (1,))
    monkeypatch.setattr(drift, "PIECE", 256)
    lines = list(drift.replay("cpu"))
    places = ["query of layer 1", "value of layer 1", "output of layer 1", "pieces"]
    names = ["normal", *(f"{when}, {what}" for when in ("early", "late") for what in places)]
    assert [line["key"] for line in lines] == names * drift.PASSES
    assert drift.rows({"normal": Cost(2.0, 1.0, 0.01, 1, 1980.0)}) == [
        ["normal", "2.00 J", "1.00 s", "2 W", "1980"]
    ]


def test_what_products_of_one_shape_read_is_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and values read the same, outputs something else, and pieces are of all of them."""
    monkeypatch.setattr(drift, "STEPS", {"early": 1, "late": 2})
    monkeypatch.setattr(drift, "LAYERS", (0,))
    monkeypatch.setattr(drift, "PIECE", 256)
    args = argparse.Namespace(**{**drift.PROGRAM, "batch": 2, "length": 16, "tiny": True}, device="cpu")
    found = dict(drift.operands(args))
    query, value, output = (found[f"early, {place} of layer 0"] for place in drift.PLACES)
    assert [len(one) for one in query] == [64 * 2, 2 * 16 * 64 * 2, 64 * 64 * 2]
    assert query[1] == value[1] != output[1]
    assert query[2] != found["late, query of layer 0"][2]
    assert found["early, pieces"][2][:256] == query[2][:256]
    assert found["early, pieces"][1][256:512] == value[1][7 * 256 :][:256]
