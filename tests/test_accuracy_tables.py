"""The reports from an H200 that docs/accuracy.md shows, and what it says of them."""

import json
from pathlib import Path

import pytest
from studies.accuracy.live import forget
from studies.accuracy.tables import main, overview, read, summary, table

from joulemap.calibration.recorded import CALIBRATION
from joulemap.recording import Recording
from joulemap.validating.report import CALIBRATED, TIME

from .calibrated_recordings import write_calibrated
from .recordings import REPOSITORY

DOCS = REPOSITORY / "docs"
REPORTS = sorted((DOCS / "accuracy").glob("*.json"))
PROGRAMS = [
    "llama-decode",
    "llama-prefill",
    "bert-train-32",
    "bert-train-256",
    "bert-infer-256",
    "bert-infer-32",
    "resnet-train",
]
OTHERS = ["bert-train-32-110s", "bert-train-32-compiled"]
"""What the table of all programs leaves out."""


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


@pytest.mark.parametrize("name", [*PROGRAMS, *OTHERS])
def test_the_page_has_the_tables_of_the_reports(name: str) -> None:
    report = read(json.loads((DOCS / "accuracy" / f"{name}.json").read_text()))
    page = (DOCS / "accuracy.md").read_text()
    assert table(report) in page
    assert summary(report) in page
    assert overview(report) in page or name in OTHERS


def test_operations_and_modules_are_within_the_aim() -> None:
    """5 % on the mean, 3 % by energy, a closure of 90 to 110 %, nine of ten intervals."""
    contained = {"operation": (0.0, 0), "module": (0.0, 0)}
    for name in PROGRAMS:
        report = read(json.loads((DOCS / "accuracy" / f"{name}.json").read_text()))
        for kind, (inside, rows) in contained.items():
            errors = report.errors(kind, CALIBRATED)
            assert errors is not None
            assert errors.mean <= 0.05
            assert errors.weighted <= 0.03
            contained[kind] = inside + errors.rows * errors.contained, rows + errors.rows
        [closure] = [float(one.split()[7]) for one in report.notes if one.startswith("Closure: ")]
        assert 90 <= closure <= 110
    assert {kind: (round(inside), rows) for kind, (inside, rows) in contained.items()} == {
        "operation": (85, 87),
        "module": (19, 19),
    }


def test_calibrated_costs_are_what_the_page_says_of_them() -> None:
    found = {
        path.stem: read(json.loads(path.read_text())).errors("operation", CALIBRATED) for path in REPORTS
    }
    said = {
        name: one and (one.rows, round(100 * one.mean, 1), round(100 * one.weighted, 1))
        for name, one in found.items()
    }
    assert said == {
        "llama-decode": (6, 1.5, 2.2),
        "llama-prefill": (14, 2.0, 2.2),
        "bert-infer-32": (8, 2.0, 1.7),
        "bert-infer-256": (8, 1.4, 1.3),
        "bert-infer-256-10s": (8, 4.9, 3.8),
        "bert-train-256": (17, 2.0, 1.9),
        "bert-train-256-10s": (17, 20.1, 13.0),
        "bert-train-32": (11, 2.6, 2.2),
        "bert-train-32-10s": (11, 12.6, 10.6),
        "bert-train-32-110s": (5, 1.9, 1.7),
        "bert-train-32-compiled": (14, 6.0, 3.8),
        "resnet-train": (23, 2.0, 2.0),
    }


def test_pictures_are_drawn_where_that_is_asked_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the page were drawn with their reports, and have the program's name."""
    report = tmp_path / "bert.json"
    report.write_bytes((DOCS / "accuracy" / "bert-train-32.json").read_bytes())
    for options in ([], ["--pictures"]):
        monkeypatch.setattr("sys.argv", ["tables", str(report), *options])
        main()
        assert "operations, calibrated" in capsys.readouterr().out
        assert report.with_suffix(".svg").exists() == bool(options)


def test_every_budget_of_calibration_begins_from_nothing(tmp_path: Path) -> None:
    """A recording keeps the costs that it has, also where nothing else does."""
    path = write_calibrated(tmp_path / "r.joulemap")
    assert CALIBRATION in Recording.open(path).info.extra
    forget(path)
    assert CALIBRATION not in Recording.open(path).info.extra
