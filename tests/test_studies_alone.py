"""Studies that replay operations by themselves: what they replay can be, and what they say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

from studies.accuracy import alone, rotation, values

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
