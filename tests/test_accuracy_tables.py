"""The reports from an H200 that docs/accuracy.md shows, and what it says of them."""

import json
from pathlib import Path

import pytest
from studies.accuracy.tables import read, summary, table

from joulemap.validating.report import CALIBRATED, TIME

from .recordings import REPOSITORY

DOCS = REPOSITORY / "docs"
REPORTS = sorted((DOCS / "accuracy").glob("*.json"))


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_a_report_is_read_as_it_was_written(path: Path) -> None:
    content = json.loads(path.read_text())
    again = read(content).to_json()
    assert again["not_validated"] == content["not_validated"]
    for ours, theirs in zip(again["rows"], content["rows"], strict=True):
        for rule in (TIME, CALIBRATED):
            assert ours[rule]["holds"] == theirs[rule]["holds"]
        assert ours["truth"]["energy_j"] == pytest.approx(theirs["truth"]["energy_j"])
        assert ours["truth"]["high_j"] == pytest.approx(theirs["truth"]["high_j"])


@pytest.mark.parametrize("name", ["bert-train-256", "bert-train-32", "llama-prefill", "bert-infer-256"])
def test_the_page_has_the_tables_of_the_reports(name: str) -> None:
    report = read(json.loads((DOCS / "accuracy" / f"{name}.json").read_text()))
    page = (DOCS / "accuracy.md").read_text()
    assert table(report) in page
    assert summary(report) in page


def test_calibrated_costs_are_what_the_page_says_of_them() -> None:
    found = {
        path.stem: read(json.loads(path.read_text())).errors("operation", CALIBRATED) for path in REPORTS
    }
    bert, short = found["bert-train-256"], found["bert-train-256-10s"]
    assert bert is not None
    assert short is not None
    assert (bert.rows, round(bert.mean, 3), round(bert.weighted, 3), bert.held) == (16, 0.043, 0.039, 1.0)
    assert (round(short.mean, 3), round(short.weighted, 3)) == (0.185, 0.146)
    llama, shorter = found["llama-prefill"], found["llama-prefill-10s"]
    assert llama is not None
    assert shorter is not None
    assert (llama.rows, round(llama.mean, 3), round(llama.weighted, 3)) == (14, 0.097, 0.087)
    assert (round(shorter.mean, 3), round(shorter.weighted, 3)) == (0.115, 0.070)
    assert found["resnet-train"] is None
