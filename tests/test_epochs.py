"""Energy in the logs of training, with a meter whose truth is known."""

from __future__ import annotations

import time

import pytest

from joulemap.devices import Domain
from joulemap.energy import EnergyReader
from joulemap.epochs import EpochEnergy
from joulemap.meters.schedule import Every


class Steady:
    """A GPU that draws 100 W from now on, by its counter."""

    name = "steady"

    def __init__(self) -> None:
        self.domain = Domain("GPU:0", "GPU:0", update_period_s=0.001)
        self.quantity, self.wraps_at_j, self.schedule = "energy_j", None, Every(0.001)
        self.closed = False

    def probe(self):
        from joulemap.meters.meter import Probe

        return Probe(True, "works")

    def open(self):
        return [self]

    def facts(self):
        return {}

    def read(self) -> float:
        return 100.0 * time.monotonic()

    def close(self) -> None:
        self.closed = True


def test_a_reader_adds_up_what_the_meters_show() -> None:
    with EnergyReader([Steady()]) as reader:
        first = reader.read()
        time.sleep(0.05)
        second = reader.read()
    joules, seconds = second.energy_j - first.energy_j, second.seconds - first.seconds
    assert joules / seconds == pytest.approx(100.0, rel=0.1)
    assert second.provenance == "measured"
    assert second.by_domain_j == {"GPU:0": second.energy_j}


def test_an_epoch_knows_its_energy_and_that_of_a_batch() -> None:
    meter = Steady()
    epoch = EpochEnergy([meter], every_s=0.0)
    for _ in range(2):
        epoch.begin()
        for _ in range(5):
            time.sleep(0.01)
            batch = epoch.batch()
            assert batch is not None
            assert batch.power_w == pytest.approx(100.0, rel=0.2)
        whole = epoch.end()
        assert whole is not None
        assert whole.energy_j == pytest.approx(5 * whole.batch_j)
        assert whole.energy_j >= batch.energy_j
    epoch.close()
    assert meter.closed


def test_between_readings_the_meters_are_left_alone() -> None:
    epoch = EpochEnergy([Steady()], every_s=3600.0)
    epoch.begin()
    assert epoch.batch() is None
    assert epoch.end() is not None


def test_without_a_meter_training_goes_on() -> None:
    epoch = EpochEnergy([])
    epoch.begin()
    assert epoch.batch() is None
    assert epoch.end() is None
    epoch.close()


@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
def test_fit_shows_energy_beside_the_loss(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    keras = pytest.importorskip(framework)
    import importlib

    import numpy as np

    callback = importlib.import_module(f"joulemap.{framework}").EnergyCallback([Steady()])
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    inputs = np.ones((32, 3), "float32")
    history = model.fit(
        inputs, inputs[:, :1], batch_size=8, epochs=2, verbose=2, callbacks=[callback]
    ).history
    assert len(history["energy_j"]) == 2
    assert min(history["energy_j"]) > 0
    assert history["energy_j"][0] == pytest.approx(4 * history["energy_per_batch_j"][0])
    assert "energy_j:" in capsys.readouterr().out
