"""Eight kernels of an H200 whose true costs are known, through the product's own code and in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest
from studies.accuracy.eight import DATA, ROOT, Eight, by_seconds, closure, summary, table

from joulemap.validating.report import CALIBRATED, TIME

pytestmark = pytest.mark.external


@pytest.fixture(scope="module")
def eight() -> Eight:
    if not DATA.exists():
        pytest.skip("the recordings of the H200 are not beside the repository")
    return Eight.read()


def test_time_is_off_by_three_quarters_and_calibrated_costs_by_two_percent(eight: Eight) -> None:
    report = eight.report()
    by_time, calibrated = report.errors("operation", TIME), report.errors("operation", CALIBRATED)
    assert by_time is not None
    assert calibrated is not None
    assert by_time.rows == calibrated.rows == 8
    assert (by_time.mean, by_time.weighted) == pytest.approx((0.741, 0.255), abs=0.01)
    assert calibrated.mean < 0.03
    assert calibrated.weighted < 0.03
    assert calibrated.held >= 7 / 8
    assert by_time.held == 0.0
    assert report.sum_j("operation") == pytest.approx(by_time.sum_j)
    assert eight.report(scaled=False).sum_j("operation") / report.step_j == pytest.approx(0.976, abs=0.005)
    assert 0.9 < closure(eight).sum() < 1.1


def test_the_docs_have_the_figures_of_the_study(eight: Eight) -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text()
    report = eight.report()
    assert table(report) in page
    assert by_seconds(eight) in page
    for line in summary(report).splitlines()[2:]:
        _, _, mean, weighted, *_ = line.split("|")
        assert f"{mean.strip()} | {weighted.strip()}" in page
    picture = (ROOT / "docs" / "accuracy" / "eight-kernels.svg").read_text()
    assert "calibrated: off by 1.8 % on the mean" in picture
    assert Path(ROOT / "studies" / "accuracy" / "programs.py").exists()
