"""Calls as FECoM publishes them: read back by the reader of its own data, with its own rules."""

import json
from pathlib import PurePosixPath

import pytest
from studies.fecom.dataset import _of_file
from studies.fecom.net import as_published, by_overlap, has_energy

from joulemap.exports.fecom import records, write
from joulemap.recording import Recording

from .test_show_calls import FIT, SAVE, T0, S, recorded


@pytest.fixture
def rec(tmp_path):
    return Recording.open(recorded(tmp_path / "run.joulemap", isolated=True))


def test_outermost_calls_are_records_of_the_published_form(rec, tmp_path):
    write(rec, tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert [name for entry in content for name in entry] == [f"{FIT}()", "tensorflow.add()", f"{SAVE}()"]
    fit = content[0][f"{FIT}()"]
    assert fit.keys() == {"energy_data", "times", "cpu_temperatures", "settings", "input_sizes"}
    assert fit["times"]["start_time_execution"] == T0 + S
    assert fit["input_sizes"] == {"args_size": 4000, "kwargs_size": None, "object_size": None}
    assert json.loads(fit["energy_data"]["gpu"])["columns"][1] == "power_draw (W)"


def test_the_reader_of_the_published_data_reads_them(rec, tmp_path):
    path = PurePosixPath("data/energy-dataset/method-level/images/cnn/experiment-1.json")
    fit, add, _ = _of_file(path, list(records(rec)))
    assert fit.api == FIT
    assert fit.seconds == pytest.approx(5)
    assert has_energy(fit)
    for rule in (as_published, by_overlap):  # the power is constant, so nothing is above the baseline
        net = rule(fit)
        assert (net.cpu_j, net.gpu_j) == pytest.approx((0, 0), abs=1e-6)
    samples = fit.samples_w()
    assert {domain.name: float(values.mean()) for domain, values in samples.items()} == pytest.approx(
        {"CPU": 20, "DRAM": 0, "GPU:0": 100}
    )
    assert add.input_bytes == 16
