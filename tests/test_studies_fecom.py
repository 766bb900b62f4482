"""FECoM's published data: its table again to the last digit, and what changes with the true intervals."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from studies.fecom import gate, live, recorded, rq1
from studies.fecom.dataset import ARCHIVE, Dataset, read
from studies.fecom.net import as_published, by_overlap, has_energy, is_covered
from studies.page import Series, markdown, plot

published = pytest.mark.external
needs_data = pytest.mark.skipif(not ARCHIVE.exists(), reason=f"{ARCHIVE} is not here: FECoM's published data")
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return read()


@published
@needs_data
class TestPublishedData:
    def test_everything_is_read(self, dataset: Dataset) -> None:
        calls = dataset.of("method-level")
        assert len(calls) == 4650
        assert sum(map(has_energy, calls)) == 797
        assert len(dataset.of("data-size")) == 1000
        assert sum(one.group.startswith("failed/") for one in dataset.records) == 390

    def test_the_31_published_rows_come_out_the_same(self, dataset: Dataset) -> None:
        rows = recorded.published_rows(recorded.api_rows(dataset))
        assert len(rows) == 31
        assert max(recorded.differences(rows).values()) < 1e-9

    def test_by_its_true_interval_a_short_call_took_ten_times_as_much(self, dataset: Dataset) -> None:
        rows = recorded.published_rows(recorded.api_rows(dataset))
        short = [row for row in rows if row.seconds <= 1]
        theirs, ours = (
            np.mean([row.net_j(rule)["CPU"].mean() for row in short]) for rule in (as_published, by_overlap)
        )
        assert theirs == pytest.approx(0.91, abs=0.005)
        assert ours == pytest.approx(9.3, abs=0.2)

    def test_a_long_call_is_hardly_changed_by_it(self, dataset: Dataset) -> None:
        (fit,) = [
            row for row in recorded.api_rows(dataset) if row.project == "images/cnn" and row.seconds > 100
        ]
        theirs, ours = (fit.net_j(rule)["CPU"].mean() for rule in (as_published, by_overlap))
        assert ours == pytest.approx(theirs, rel=0.02)

    def test_some_calls_have_no_power_since_the_log_was_restarted_inside_them(self, dataset: Dataset) -> None:
        lost = [one for one in dataset.of("method-level") if not is_covered(one)]
        assert len(lost) == 92
        assert not any(map(has_energy, lost))

    def test_energy_and_size_correlate_as_published(self, dataset: Dataset) -> None:
        pooled = recorded.pooled_r(recorded.sizes(dataset))
        assert {word: round(r, 2) for word, r in pooled.items()} == {"CPU": 0.88, "RAM": 0.19, "GPU": 0.89}

    def test_training_is_linear_in_its_data(self, dataset: Dataset) -> None:
        fits = {one.project: one.fits()["GPU"] for one in recorded.sizes(dataset)}
        trained = ("images/cnn_fit", "keras/classification_fit", "quickstart/beginner_fit")
        assert {fits[name].shape for name in trained} <= {"linear", "proportional"}

    def test_the_gate_opens_for_the_quiet_and_stays_shut_for_the_noisy(self, dataset: Dataset) -> None:
        found = recorded.judged(dataset)
        matrix = gate.confusion(found)
        opened, shut = matrix["quiet", "open"], matrix["quiet", "shut"]
        assert opened / (opened + shut) > 0.99
        assert matrix["noisy", "open"] / 380 < 0.02
        assert sum(matrix.values()) == 4650 + 1000 + 380
        assert next(one for one in found if one.group == "failed/eager_execution").stable == 10

    def test_without_the_level_a_steadily_busy_machine_would_pass(self, dataset: Dataset) -> None:
        idle = recorded.idle_w(dataset)
        noisy = [one for one in dataset.records if one.group in gate.NOISY]
        anything = dict.fromkeys(idle, 1e6)
        assert sum(recorded.gate(one, anything).stable for one in noisy) > sum(
            recorded.gate(one, idle).stable for one in noisy
        )


def test_a_table_is_markdown():
    assert markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_a_plot_is_one_file_with_every_point_that_its_scale_can_show(tmp_path):
    series = [Series("one", [1, 10, 100], [0.1, 5, -3]), Series("a < b", [3], [2], joined=True)]
    plot(tmp_path / "p" / "plot.svg", "Energy", series, ("MB", "J"), (True, True))
    text = (tmp_path / "p" / "plot.svg").read_text()
    assert text.count("<circle") == 2 + 1 + 2
    assert "a &lt; b" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


class TestLivePrograms:
    """The six TensorFlow programs under ``joulemap run --calls``."""

    def test_they_are_all_there(self) -> None:
        there = {path.stem for path in live.FOLDER.glob("*.py")} - {"made_up"}
        assert there == set(live.PROGRAMS)

    @needs_tensorflow
    def test_calls_and_the_named_rest_are_a_programs_net_energy(self, tmp_path: Path) -> None:
        path = live.record("custom_loop", tmp_path, ("--samples", "300", "--epochs", "1", "--side", "16"))
        found = live.explained(path)
        assert found.sites == 26  # those of the helper among them, which gets its model as a parameter
        assert found.calls_j > 0.7 * (found.whole_j - found.rest_j["(start-up)"])
        assert found.program in rq1.live_table([found])

    @needs_tensorflow
    @pytest.mark.long
    @pytest.mark.parametrize("program", live.PROGRAMS)
    def test_calls_explain_nine_tenths_of_a_program(self, program: str, tmp_path: Path) -> None:
        assert live.explained(live.record(program, tmp_path)).share > 0.9
