"""Energy in the logs of training, with a meter whose truth is known."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import joulemap
from joulemap.devices import Device, Domain
from joulemap.energy import EnergyReader
from joulemap.epochs import EpochEnergy, own_accelerators
from joulemap.errors import MeterError
from joulemap.meters.schedule import Every
from joulemap.monitor.timeline import Timeline
from joulemap.units import NS_PER_S

from .environment import uncovered
from .gloo import TRIES, unaborted

PATHS = os.pathsep.join(str(Path(file).parents[1]) for file in (__file__, joulemap.__file__))
"""Where programs find these tests, and the joulemap that is tested."""


class Steady:
    """A GPU that draws 100 W from now on, by its counter; what it showed last is known."""

    name = "steady"

    def __init__(self, device: str = "GPU:0") -> None:
        self.domain = Domain(device, device, update_period_s=0.001)
        self.quantity, self.wraps_at_j, self.schedule = "energy_j", None, Every(0.001)
        self.closed, self.shown_j = False, 0.0

    def probe(self):
        from joulemap.meters.meter import Probe

        return Probe(True, "works")

    def open(self):
        return [self]

    def facts(self):
        return {}

    def read(self) -> float:
        self.shown_j = 100.0 * time.monotonic()
        return self.shown_j

    def close(self) -> None:
        self.closed = True


class Ticking(Steady):
    """One whose time goes on by 10 ms whenever it is read, and never else."""

    now_ns = 0

    def read(self) -> float:
        self.now_ns += 10_000_000
        return 100.0 * self.now_ns / NS_PER_S


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    """A meter that sets the clock by which it is read, so that nothing comes between the two."""
    meter, start = Ticking(), Timeline.start
    monkeypatch.setattr(Timeline, "start", lambda: start(lambda: meter.now_ns, lambda: meter.now_ns))
    return meter


def test_a_reader_adds_up_what_the_meters_show(ticking: Ticking) -> None:
    with EnergyReader([ticking]) as reader:
        first = reader.read()
        second = reader.read()
    joules, seconds = second.energy_j - first.energy_j, second.seconds - first.seconds
    assert seconds > 0
    assert joules / seconds == pytest.approx(100.0)
    assert second.provenance == "measured"
    assert second.by_domain_j == {"GPU:0": second.energy_j}


def test_a_reader_counts_the_gpus_of_its_process() -> None:
    def counted(accelerators: list[Device] | None) -> set[str]:
        meters = [Steady("CPU:0"), Steady("GPU:0"), Steady("GPU:1")]
        with EnergyReader(meters, accelerators) as reader:
            return set(reader.read().by_domain_j)

    assert counted(None) == {"CPU:0", "GPU:0", "GPU:1"}
    assert counted([Device("GPU", 1)]) == {"CPU:0", "GPU:1"}
    assert counted([]) == {"CPU:0"}
    meter = Steady("GPU:0")
    with pytest.raises(MeterError):
        EnergyReader([meter], [])
    assert meter.closed


@pytest.mark.parametrize(
    ("device", "world_size", "own"),
    [
        ("cuda:1", 2, [Device("GPU", 1)]),
        ("cpu", 2, []),
        ("cuda:0", 1, None),
        ("cpu", 1, None),
    ],
)
def test_a_process_of_several_counts_the_device_it_trains_on(
    device: str, world_size: int, own: list[Device] | None
) -> None:
    assert own_accelerators(device, world_size) == own


def test_an_epoch_knows_its_energy_and_that_of_a_batch(ticking: Ticking) -> None:
    epoch = EpochEnergy([ticking], every_s=0.0)
    for _ in range(2):
        epoch.begin()
        for _ in range(5):
            batch = epoch.batch()
            assert batch is not None
            assert batch.power_w == pytest.approx(100.0)
        whole = epoch.end()
        assert whole is not None
        assert whole.energy_j == pytest.approx(5 * whole.batch_j)
        assert whole.energy_j >= batch.energy_j
    epoch.close()
    assert ticking.closed


def test_between_readings_the_meters_are_left_alone() -> None:
    epoch = EpochEnergy([Steady()], every_s=3600.0)
    epoch.begin()
    assert epoch.batch() is None
    assert epoch.end() is not None


def test_a_pause_is_not_the_epochs() -> None:
    meter = Steady()
    epoch = EpochEnergy([meter], every_s=0.0)
    before_s = time.monotonic()
    epoch.begin()
    begun_j = meter.shown_j
    time.sleep(0.02)
    epoch.pause()
    paused_s, paused_j = time.monotonic(), meter.shown_j
    time.sleep(0.2)
    resumed_s = time.monotonic()
    epoch.resume()
    resumed_j = meter.shown_j
    epoch.batch()
    whole = epoch.end()
    assert whole is not None
    assert whole.energy_j == pytest.approx(meter.shown_j - resumed_j + paused_j - begun_j)
    assert 0.02 <= whole.seconds <= time.monotonic() - resumed_s + paused_s - before_s


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
    begun_j = meter.shown_j
    parts = []
    for _ in range(3):
        time.sleep(0.02)
        epoch.batch()
        parts.append(epoch.end())
    assert [part.batches for part in parts if part] == [1, 1, 1]
    whole_j = sum(part.energy_j for part in parts if part)
    assert whole_j == pytest.approx(meter.shown_j - begun_j)


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


def test_trainer_logs_energy_by_step_and_token(
    tmp_path: Path, ticking: Ticking, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    trainer = trained(tmp_path, EnergyCallback([ticking]), include_num_input_tokens_seen=True)
    *logs, whole = trainer.state.log_history
    assert [log["step"] for log in logs] == [2, 4, 6]
    for log in logs:
        assert log["energy_j"] == pytest.approx(2 * log["energy_per_step_j"])
        assert log["energy_j"] == pytest.approx(2 * 4 * 6 * log["energy_per_token_j"])
        assert log["power_w"] == pytest.approx(100.0)
    assert whole["energy_j"] >= sum(log["energy_j"] for log in logs) > 0
    assert whole["energy_j"] == pytest.approx(6 * whole["energy_per_step_j"])
    assert whole["energy_j"] == pytest.approx(6 * 4 * 6 * whole["energy_per_token_j"])
    assert trainer.result.metrics["energy_j"] == whole["energy_j"]
    assert capsys.readouterr().out.count("'energy_per_token_j'") == 4
    assert ticking.closed


def test_trainer_that_counts_no_tokens_logs_none(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    trainer = trained(tmp_path, EnergyCallback([Steady()]))
    assert all("energy_per_step_j" in log for log in trainer.state.log_history)
    assert not any("energy_per_token_j" in log for log in trainer.state.log_history)


def test_evaluations_of_a_trainer_are_left_out(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    meter = Steady()
    meter.read = lambda: meter.shown_j  # type: ignore[method-assign]

    class Draws(transformers.TrainerCallback):
        """A joule for a step of training, and a thousand for one of evaluation."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.shown_j += 1

        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.shown_j += 1000

    trainer = trained(
        tmp_path, EnergyCallback([meter]), Draws(), eval_strategy="steps", eval_steps=1, eval_on_start=True
    )
    assert meter.shown_j > 7 * 1000
    assert trainer.state.log_history[-1]["energy_j"] == pytest.approx(6)
    assert not any("energy_j" in log for log in trainer.state.log_history if "eval_loss" in log)


@pytest.mark.parametrize(("world_size", "joules"), [(1, 110.0), (2, 10.0)])
def test_a_rank_of_a_trainer_logs_its_own_gpu_and_tokens(world_size: int, joules: float) -> None:
    pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    meters = [Steady("GPU:0"), Steady("GPU:1")]
    for meter in meters:
        meter.read = lambda meter=meter: meter.shown_j  # type: ignore[method-assign,misc]
    callback = EnergyCallback(meters)
    args, control = SimpleNamespace(device="cuda:1", world_size=world_size), SimpleNamespace()
    control.should_evaluate = control.should_save = False
    state = SimpleNamespace(num_input_tokens_seen=1000, log_history=[{}])
    callback.on_train_begin(args, state, control)
    callback.on_step_begin(args, state, control)
    meters[0].shown_j, meters[1].shown_j = 100.0, 10.0
    state.num_input_tokens_seen += 40  # of all ranks
    callback.on_step_end(args, state, control)
    callback.on_log(args, state, control, logs={"loss": 1.0})
    callback.on_train_end(args, state, control)
    [log] = state.log_history
    assert log["energy_j"] == pytest.approx(joules)
    assert log["energy_per_token_j"] == pytest.approx(joules / (40 / world_size))


TRAINER_RANK = """
import json, os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from joulemap.transformers import EnergyCallback
from tests.test_epochs import Steady, trained
trainer = trained(
    Path(sys.argv[1]), EnergyCallback([Steady("CPU:0"), Steady("GPU:0")]),
    include_num_input_tokens_seen=True, ddp_backend="gloo",
)
log = {**trainer.state.log_history[-1], "world_size": trainer.args.world_size}
Path(sys.argv[1], f"rank{os.environ['RANK']}.json").write_text(json.dumps(log))
"""


def test_ranks_of_a_real_job_divide_their_own_energy_by_their_own_tokens(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
    pytest.importorskip("transformers")
    folders = [tmp_path / str(turn) for turn in range(TRIES)]

    def launch(turn: int) -> subprocess.CompletedProcess[str]:
        folders[turn].mkdir()
        (folders[turn] / "rank.py").write_text(TRAINER_RANK)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return subprocess.run(
            [sys.executable, *launcher, folders[turn] / "rank.py", folders[turn]],
            env={**uncovered(), "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    done = unaborted(launch, lambda done: done.stderr)
    assert done.returncode == 0, done.stderr
    folder = next(folder for folder in reversed(folders) if folder.exists())
    for rank in range(2):
        log = json.loads((folder / f"rank{rank}.json").read_text())
        assert log["world_size"] == 2
        assert log["energy_j"] == pytest.approx(6 * 4 * 6 * log["energy_per_token_j"])
        assert 0 < log["power_w"] <= 101  # of a CPU that both share, and no GPU


def test_trainer_without_a_meter_trains(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from joulemap.transformers import EnergyCallback

    trainer = trained(tmp_path, EnergyCallback([]))
    assert trainer.state.global_step == 6
    assert not any("energy_j" in log for log in trainer.state.log_history)


LIGHTNING = """
import json, logging, sys, time, warnings
from types import SimpleNamespace
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

def fitted(*meters):
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=CSVLogger(".", "logs"), callbacks=[EnergyCallback(meters)],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        log_every_n_steps=1,
    )
    batches = torch.utils.data.DataLoader(torch.ones(32, 3), 8)
    began_s = time.monotonic()
    trainer.fit(Model(), batches, batches)
    took_s = time.monotonic() - began_s
    return {{name: float(value) for name, value in trainer.callback_metrics.items()}}, took_s, trainer

meter = Steady()
(metrics, took_s, _), (without, _, trainer) = fitted(meter), fitted()
base = EnergyCallback.__mro__[1].__module__

# A process of two, each with a GPU of its own.
callback, logged = EnergyCallback([Steady("GPU:0"), Steady("GPU:1")]), dict()
rank = SimpleNamespace(world_size=2, strategy=SimpleNamespace(root_device=torch.device("cuda", 1)))
callback.on_train_epoch_start(rank, None)
time.sleep(0.1)
callback.on_train_epoch_end(rank, SimpleNamespace(log_dict=logged.update))
callback.teardown(rank, None, "fit")
print(json.dumps([metrics, took_s, base, meter.closed, without, trainer.current_epoch, logged]))
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_logs_energy_of_each_epoch_and_trains_without_a_meter(package: str, tmp_path: Path) -> None:
    """Each package in a process that has no other: two epochs with a meter, and two without."""
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", LIGHTNING.format(package=package)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    metrics, took_s, base, closed, without, epochs, rank = json.loads(done.stdout.splitlines()[-1])
    assert base.startswith(package)
    assert metrics["energy_j"] == pytest.approx(4 * metrics["energy_per_batch_j"])
    assert metrics["energy_j"] / took_s < metrics["power_w"] < metrics["energy_j"] / (4 * 0.01)
    assert closed
    header, *rows = (tmp_path / "logs" / "version_0" / "metrics.csv").read_text().splitlines()
    energies = [float(row.split(",")[header.split(",").index("energy_j")]) for row in rows]
    assert len(energies) == 2
    assert min(energies) >= 4 * 0.01 * 100
    assert "energy_j" not in without
    assert epochs == 2
    assert rank["power_w"] == pytest.approx(100, rel=0.4)  # of one GPU, whatever the machine is busy with
