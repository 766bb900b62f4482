"""Energy in the logs of training, with a meter whose truth is known."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def test_a_pause_is_not_the_epochs() -> None:
    epoch = EpochEnergy([Steady()], every_s=0.0)
    epoch.begin()
    time.sleep(0.02)
    epoch.pause()
    paused_s = time.monotonic()
    time.sleep(0.2)
    resumed_s = time.monotonic()
    epoch.resume()
    epoch.batch()
    whole = epoch.end()
    assert whole is not None
    assert whole.power_w == pytest.approx(100.0, rel=0.2)
    assert 0.02 <= whole.seconds < 0.02 + resumed_s - paused_s


def test_an_epoch_that_ends_in_a_pause_has_what_came_before() -> None:
    epoch = EpochEnergy([Steady()], every_s=0.0)
    epoch.begin()
    time.sleep(0.02)
    epoch.batch()
    epoch.pause()
    time.sleep(0.05)
    epoch.pause()
    before = epoch.end()
    assert before is not None
    assert before.batches == 1
    assert epoch.end() is None


def test_epochs_that_follow_each_other_leave_nothing_out() -> None:
    meter = Steady()
    epoch = EpochEnergy([meter], every_s=0.0)
    epoch.begin()
    began_j = meter.read()
    parts = []
    for _ in range(3):
        time.sleep(0.02)
        epoch.batch()
        parts.append(epoch.end())
    assert [part.batches for part in parts if part] == [1, 1, 1]
    whole_j = sum(part.energy_j for part in parts if part)
    assert whole_j == pytest.approx(meter.read() - began_j, rel=0.2)


def test_without_a_meter_training_goes_on() -> None:
    epoch = EpochEnergy([])
    epoch.begin()
    epoch.pause()
    epoch.resume()
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


def trained(tmp_path: Path, *callbacks: Any, **options: Any) -> Any:
    """A trainer that has trained a tiny BERT for six steps."""
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    data = [{"input_ids": [row % 10] * 6, "labels": row % 2} for row in range(24)]
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=4,
        max_steps=6,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    model = transformers.BertForSequenceClassification(config)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data, callbacks=[*callbacks]
    )
    trainer.result = trainer.train()
    return trainer


def test_trainer_logs_energy_by_step_and_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    meter = Steady()
    trainer = trained(tmp_path, EnergyCallback([meter]), include_num_input_tokens_seen=True)
    *logs, whole = trainer.state.log_history
    assert [log["step"] for log in logs] == [2, 4, 6]
    for log in logs:
        assert log["energy_j"] == pytest.approx(2 * log["energy_per_step_j"])
        assert log["energy_j"] == pytest.approx(2 * 4 * 6 * log["energy_per_token_j"])
        assert log["power_w"] == pytest.approx(100.0, rel=0.2)
    assert whole["energy_j"] >= sum(log["energy_j"] for log in logs) > 0
    assert whole["energy_j"] == pytest.approx(6 * whole["energy_per_step_j"])
    assert whole["energy_j"] == pytest.approx(6 * 4 * 6 * whole["energy_per_token_j"])
    assert trainer.result.metrics["energy_j"] == whole["energy_j"]
    assert capsys.readouterr().out.count("'energy_per_token_j'") == 4
    assert meter.closed


def test_trainer_that_counts_no_tokens_logs_none(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    trainer = trained(tmp_path, EnergyCallback([Steady()]))
    assert all("energy_per_step_j" in log for log in trainer.state.log_history)
    assert not any("energy_per_token_j" in log for log in trainer.state.log_history)


def test_evaluations_of_a_trainer_are_left_out(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    class Slow(transformers.TrainerCallback):
        """Makes every evaluation last longer than all training."""

        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            time.sleep(0.5)

    trainer = trained(
        tmp_path, EnergyCallback([Steady()]), Slow(), eval_strategy="steps", eval_steps=1, eval_on_start=True
    )
    whole = trainer.state.log_history[-1]
    evaluated_s = sum(log.get("eval_runtime", 0.0) for log in trainer.state.log_history)
    assert evaluated_s > 7 * 0.5
    assert whole["energy_j"] / 100.0 == pytest.approx(
        whole["train_runtime"] - evaluated_s, abs=0.9 * evaluated_s
    )
    assert not any("energy_j" in log for log in trainer.state.log_history if "eval_loss" in log)


def test_trainer_without_a_meter_trains(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    trainer = trained(tmp_path, EnergyCallback([]))
    assert trainer.state.global_step == 6
    assert not any("energy_j" in log for log in trainer.state.log_history)


LIGHTNING = """
import json, logging, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from {package} import LightningModule, Trainer
from {package}.loggers import CSVLogger
from joulemap.lightning import EnergyCallback
from tests.test_epochs import Steady

logging.getLogger("{package}").setLevel(logging.ERROR)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, number):
        time.sleep(0.01)
        return self.layer(batch).square().mean()

    def validation_step(self, batch, number):
        time.sleep(0.1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

meters = [Steady()] if sys.argv[1] == "steady" else []
batches = torch.utils.data.DataLoader(torch.ones(32, 3), 8)
trainer = Trainer(
    max_epochs=2, accelerator="cpu", logger=CSVLogger(".", "logs", 0), callbacks=[EnergyCallback(meters)],
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=1,
)
trainer.fit(Model(), batches, batches)
metrics = {{name: float(value) for name, value in trainer.callback_metrics.items()}}
print(json.dumps([metrics, EnergyCallback.__mro__[1].__module__, [meter.closed for meter in meters]]))
"""


def fitted(package: str, meters: str, folder: Path) -> tuple[dict[str, float], str, list[bool]]:
    """What Lightning, of this package, in a process that has only this one, knows after two epochs."""
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", LIGHTNING.format(package=package), meters],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    metrics, base, closed = json.loads(done.stdout.splitlines()[-1])
    return metrics, base, closed


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_logs_energy_of_each_epoch(package: str, tmp_path: Path) -> None:
    metrics, base, closed = fitted(package, "steady", tmp_path)
    assert base.startswith(package)
    assert metrics["energy_j"] == pytest.approx(4 * metrics["energy_per_batch_j"])
    assert metrics["power_w"] == pytest.approx(100.0, rel=0.2)
    assert closed == [True]
    header, *rows = (tmp_path / "logs" / "version_0" / "metrics.csv").read_text().splitlines()
    energies = [float(row.split(",")[header.split(",").index("energy_j")]) for row in rows]
    assert len(energies) == 2
    assert min(energies) >= 4 * 0.01 * 100


def test_lightning_without_a_meter_trains(tmp_path: Path) -> None:
    metrics, _, _ = fitted("lightning.pytorch", "none", tmp_path)
    assert "energy_j" not in metrics
