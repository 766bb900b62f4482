"""What is said of truths: errors of what is known, in words, numbers and a picture."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from rich.console import Console

from joulemap.calibration.book import Book, Calibration, Shelf
from joulemap.calibration.closure import Closure
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.calibration.recorded import Calibrated
from joulemap.calibration.weights import Weights
from joulemap.devices import Domain
from joulemap.validating import validate
from joulemap.validating.easing import Easing
from joulemap.validating.picture import page, picture
from joulemap.validating.report import CALIBRATED, TIME, NotValidated, Report, Row
from joulemap.validating.rules import Charge
from joulemap.validating.table import print_report
from joulemap.validating.truth import Truth

from .calibrated_recordings import called


def test_costs_that_were_known_before_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what validate can do about it: it has no --again, and its own recording may be gone."""
    mm, add = (Operation.of(called(op, [8])) for op in ("mm", "add"))
    cost = Cost(1.0, 1.0, 0.01, 2)

    def calibrate(_: object, __: float, book: Book, ___: object = None) -> Calibration:
        book.reused = [mm]
        return Calibration("CPU", 1.0, {mm: cost, add: cost}, others=0.5)

    monkeypatch.setattr("joulemap.validating.validate.load", lambda _: None)
    monkeypatch.setattr("joulemap.validating.validate.calibrate", calibrate)
    others, reused = validate._replayed(Path("r.joulemap"), 5.0, None)
    assert "50.0 % of the processors' time" in others
    assert reused.startswith("1 of 2 costs were known from earlier calibrations")
    for said in (others, reused):
        assert "joulemap calibrate --clear" in said
        assert "--again" not in said


def test_costs_that_cannot_be_kept_or_read_are_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calibrate(_: object, __: float, book: Book, ___: object = None) -> Calibration:
        return book.add(Shelf("here", "CPU", "", "torch"), Calibration("CPU", 1.0, {}))

    monkeypatch.setattr("joulemap.validating.validate.load", lambda _: None)
    monkeypatch.setattr("joulemap.validating.validate.calibrate", calibrate)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert validate._replayed(Path("r.joulemap"), 5.0, None) == []
    (tmp_path / "joulemap" / "calibrations.json").write_text("{")
    [damaged] = validate._replayed(Path("r.joulemap"), 5.0, None)
    assert "is damaged. joulemap calibrate --clear deletes it" in damaged
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    [unkept] = validate._replayed(Path("r.joulemap"), 5.0, None)
    assert unkept.startswith("The costs are not kept for the next time.")
    assert "Set XDG_CACHE_HOME" in unkept


def test_warnings_name_the_options_that_there_are() -> None:
    weights = Weights(np.zeros(0), np.zeros(0), 0.8, 1.0, 1.0)
    found = Calibrated(weights, Calibration("GPU:0", 1.0, {}), Closure(0.2, 0.3, 0.49))
    assert "a longer --calibration replays more" in found.warnings("--calibration", "Anew.")[0]
    off = replace(found, closure=Closure(1.0, 0.1, 0.1))
    assert off.warnings("--calibration", "Anew.")[0].endswith("while it was calibrated? Anew.")


GPU = Domain("GPU:0", "GPU:0", sensor="synthetic")


def row(
    name: str, truth_j: float, by_time: float, calibrated: float | None, blocks: int = 5, **more: Any
) -> Row:
    charges = {TIME: Charge(by_time, by_time * 0.95, by_time * 1.05)}
    if calibrated is not None:
        charges[CALIBRATED] = Charge(calibrated, calibrated * 0.95, calibrated * 1.05)
    return Row(more.get("kind", "operation"), name, Truth(truth_j / 2, 0.01 * truth_j, 2.0, blocks), charges)


def a_report(provenance: Any = "measured") -> Report:
    rows = [row("mm", 5.0, 4.0, 5.1), row("gelu", 2.0, 3.0, 1.9), row("tiny", 1.0, 2.0, None)]
    rows += [row("unsure", 1.0, 9.0, 9.0, blocks=1), row("net/a", 4.0, 4.4, 4.0, kind="module")]
    missing = [NotValidated("operation", "mul_ [8]", 0.12, "it writes into what it is given")]
    domain = Domain("GPU:0", "GPU:0", provenance=provenance)
    return Report(domain, rows, missing, 10.0, 0.05, 400, 20, "the budget is spent", notes=["A note."])


def test_errors_are_of_what_is_known() -> None:
    report = a_report()
    by_time, calibrated = report.errors("operation", TIME), report.errors("operation", CALIBRATED)
    of_modules = report.errors("module", TIME)
    assert by_time is not None
    assert calibrated is not None
    assert of_modules is not None
    assert (by_time.rows, calibrated.rows) == (3, 2)
    assert by_time.mean == pytest.approx((0.2 + 0.5 + 1.0) / 3)
    assert by_time.weighted == pytest.approx((1.0 + 1.0 + 1.0) / 8)
    assert (by_time.held, calibrated.held) == (0.0, 1.0)
    assert calibrated.contained == pytest.approx(0.5)
    assert (report.sum_j("operation"), by_time.sum_j) == (8.0, 9.0)
    assert of_modules.mean == pytest.approx(0.1)
    assert Report(GPU, [], [], 0.0, 0.0, 0, 0, "").errors("operation", TIME) is None


def test_what_has_no_cost_is_in_brackets() -> None:
    one, other = row("mm", 5.0, 4.0, 5.1), row("gelu", 2.0, 3.0, 1.9)
    other = replace(other, charges={**other.charges, CALIBRATED: Charge(1.9, 1.0, 2.8, costed=False)})
    out = Console(file=io.StringIO(), width=120)
    print_report(Report(GPU, [one, other], [], 10.0, 0.05, 400, 20, "the budget is spent"), out)
    said = out.file.getvalue()
    assert "(1.90 ± 0.90 J)" in said
    assert "(5.10" not in said
    assert "In brackets: 1 without a cost, which weigh what their like do." in said
    assert other.to_json()[CALIBRATED]["costed"] is False


def test_the_report_is_said_in_words_numbers_and_a_picture() -> None:
    report = a_report("estimated")
    out = io.StringIO()
    print_report(report, Console(file=out, width=160))
    text = out.getvalue()
    assert "5.00 ± 0.10 J" in text
    assert "-20.0 % !" in text
    assert "operations by time: off by 56.7 % on the mean of 3, 37.5 % by energy; 0.0 % of the" in text
    assert "add up to 80.0 % of a step, by time to 90.0 %" in text
    assert "against an estimate" in text
    assert "12.0 %  mul_ [8]: it writes into what it is given" in text
    content = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert content["errors"]["operation"]["time"]["rows"] == 3
    assert content["rows"][3]["known"] is False
    assert content["rows"][3]["time"]["error"] is None
    assert content["easing"] is None
    eased = replace(report, easing=Easing(0.9, 0.01, 1980.0, 1750.0, 0.002)).to_json()["easing"]
    assert eased == {"scale": 0.9, "half": 0.01, "eased_mhz": 1980.0, "plain_mhz": 1750.0, "spread": 0.002}
    drawn = Xml.fromstring(picture(report))
    titles = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert any(one.startswith("mm, calibrated: 5.10 J") for one in titles)
    assert not any(one.startswith("unsure") for one in titles)
    assert "<svg" in page(report)


def test_a_module_that_holds_everything_leaves_operations_their_width() -> None:
    widths = {}
    for whole_j in (4.0, 400.0):
        report = a_report()
        whole = row("net", whole_j, whole_j, whole_j, kind="module")
        drawn = Xml.fromstring(picture(replace(report, rows=[*report.rows, whole])))
        groups = {
            group.findtext("{*}title", "").split(":")[0]: float(group.find("{*}rect").attrib["width"])
            for group in drawn.iter("{http://www.w3.org/2000/svg}g")
        }
        widths[whole_j] = groups["mm, by time"]
        texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert texts.index("operations") < texts.index("mm")
        assert texts.index("modules, with all that is in them, at a scale of their own") < texts.index("net")
        assert groups["net, by time"] > (0.9 if whole_j > 4 else 0.5) * max(groups.values())
    assert widths[400.0] == widths[4.0]
    only = replace(report, rows=[one for one in report.rows if one.kind == "operation"])
    assert "modules" not in picture(only)
    assert "Nothing is known well enough: a larger --budget" in picture(replace(report, rows=[]))
    early = replace(report, rows=[], reached="the program ended first")
    assert "Nothing is known well enough: the program ended first." in picture(early)


def test_where_modules_alone_are_known_the_legend_says_what_their_bars_are() -> None:
    report = a_report()
    modules = replace(report, rows=[one for one in report.rows if one.kind == "module"])
    texts = [
        one.text or "" for one in Xml.fromstring(picture(modules)).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "by time: off by 10.0 % on the mean" in texts
    assert "calibrated: off by 0.0 % on the mean" in texts
    tiny = replace(modules, step_j=1000.0)  # nothing of it counts, and all of it is drawn
    texts = [one.text or "" for one in Xml.fromstring(picture(tiny)).iter("{http://www.w3.org/2000/svg}text")]
    assert {"by time", "calibrated"} <= set(texts)


def test_where_no_plain_step_was_seen_nothing_is_said_of_what_it_draws() -> None:
    report = Report(GPU, [], [], 0.0, 0.0, 0, 1, "the program ended first")
    out = io.StringIO()
    print_report(report, Console(file=out, width=160))
    assert "No plain step was seen" in out.getvalue()
    assert "1 block among 0 plain steps; the program ended first." in out.getvalue()
    assert "0 J" not in out.getvalue()
    assert (report.to_json()["step_j"], report.to_json()["step_s"]) == (None, None)
    one = replace(report, steps=1, blocks=2, step_j=1.0, step_s=0.1)
    print_report(one, Console(file=out, width=160))
    assert "2 blocks among 1 plain step;" in out.getvalue()
