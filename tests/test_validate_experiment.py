"""An experiment inside of a program: orders are taken between steps, and what was done is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch import clock  # noqa: E402
from joulemap.frameworks.torch.clock import Waits, clock_mhz  # noqa: E402
from joulemap.frameworks.watch import Nobody  # noqa: E402
from joulemap.recorder.experiment import ORDERS, PLAIN, REPEATING, TARGETS, WAITING, Experiment  # noqa: E402
from joulemap.recorder.journal import read_journal  # noqa: E402


class Heard(Nobody):
    """Whom an experiment passes steps on to."""

    def __init__(self) -> None:
        self.open = False
        self.labels: list[str] = []

    def begin(self, label: str) -> None:
        self.open = True
        self.labels.append(label)

    def end(self) -> None:
        self.open = False

    def noted(self, label: str) -> bool:
        return False

    def is_open(self) -> bool:
        return self.open

    def rename(self, label: str) -> None:
        self.labels[-1] = label


def test_an_experiment_takes_orders_between_steps_and_says_what_was_done(tmp_path: Path) -> None:
    heard, now = Heard(), iter(range(0, 10_000, 10))
    experiment = Experiment(tmp_path, heard, lambda: next(now))
    square = [[[2, 2], "float"], [[2, 2], "float"]]

    def step(label: str = "train") -> None:
        experiment.begin(label)
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        if label == "test":
            assert not experiment._repeats[0].extra
        experiment.end()

    step()
    said = {"device": "cpu", "label": "train", "stop": False, "modules": [], "pause_s": 0.0}
    named = enumerate(("mm", "mul_"))
    operations = [{"target": number, "op": op, "operands": [square]} for number, op in named]
    (tmp_path / TARGETS).write_text(json.dumps({**said, "operations": operations}))
    for _ in range(3):
        step()
    with (tmp_path / ORDERS).open("a") as file:
        for _ in range(2):
            file.write(json.dumps({"target": 0, "times": 5, "steps": 2, "rest": 2}) + "\n")
    for label in ("train", "train", "test", "train", "train", "train", "train", "train"):
        step(label)
    step("test")
    experiment.stop()
    lines = list(read_journal(tmp_path))
    stretches = [said for what, said in lines if what == "stretch"]
    found = [(one["target"], one["steps"], one["seen"], one["extra"]) for one in stretches]
    assert found == [
        (PLAIN, 3, {"0": 3}, 0),
        (0, 1, {"0": 1}, 4),
        (0, 1, {"0": 1}, 4),
        (PLAIN, 2, {"0": 2}, 0),
        (0, 1, {"0": 1}, 4),
    ]
    assert all(one["start_ns"] < one["end_ns"] for one in stretches)
    assert [said[0] for what, said in lines if what == "refused"] == [1]
    again = "train" + REPEATING
    plainly = ["train", "train"]
    assert heard.labels == ["train"] * 4 + [again, again, "test", again, *plainly, again, again, "test"]


def test_a_device_rests_on_both_sides_of_a_stretch_and_waits_in_each_step_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr("joulemap.recorder.experiment.time.sleep", lambda _: done.append("rest"))
    monkeypatch.setattr(Waits, "wait", lambda _, seconds: done.append(f"wait {seconds}"))
    monkeypatch.setattr(Waits, "take_s", lambda _: 0.5)
    experiment = Experiment(tmp_path, Heard(), lambda: len(done))
    said = {"device": "cpu", "label": "train", "stop": False, "operations": [], "modules": []}
    (tmp_path / TARGETS).write_text(json.dumps({**said, "pause_s": 0.1}))
    order = {"target": WAITING, "times": 2, "steps": 2, "rest": 2, "wait_s": 0.01}
    (tmp_path / ORDERS).write_text(json.dumps(order) + "\n")
    for label in ("train", "train", "train", "test", "train", "train", "test"):
        done.append(label)
        experiment.begin(label)
        experiment.end()
    experiment.stop()
    stretches = [said for what, said in read_journal(tmp_path) if what == "stretch"]
    told = [(one["target"], one["waited_s"], one["pause_s"]) for one in stretches]
    assert told == [(WAITING, 0.5, 0.1), (PLAIN, 0.5, 0.1)]
    wait = "wait 0.01"
    waits = ["train", wait, "train", "rest", wait, "train", wait, "test", "rest"]
    assert done == [*waits, "train", "rest", "train", "test", "rest"]


def test_waits_are_as_long_as_they_were_found_to_be() -> None:
    waits = Waits()
    assert waits.take_s() == 0.0
    waits._waits = [(Moment(1.0), Moment(3.0)), (Moment(5.0), Moment(6.0))]
    assert waits.take_s() == pytest.approx(0.003)
    assert waits.take_s() == 0.0


def test_a_look_at_clocks_in_which_the_host_was_held_up_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Now(Moment):
        def synchronize(self) -> None: ...

    def looked(*at_ms: float) -> float:
        monkeypatch.setattr(clock, "_counted", lambda *_: tuple(map(Now, at_ms)))
        return clock.clock_mhz()

    assert looked(0.0, 0.102, 0.104) == pytest.approx((clock.CYCLES - 1) / 100)
    assert looked(0.0, 0.102, 0.204) == 0.0
    assert looked(0.0, 0.102, 0.3) == 0.0


@pytest.mark.gpu
def test_a_gpu_tells_its_clocks_and_waits_for_about_as_long_as_it_is_to() -> None:
    torch.ones(4096, 4096, device="cuda") @ torch.ones(4096, 4096, device="cuda")
    assert 300 < clock_mhz() < 3000
    waits = Waits()
    waits.wait(0.01)
    torch.cuda.synchronize()
    assert 0.004 < waits.take_s() < 0.03


class Moment:
    """An event of CUDA."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, later: Moment) -> float:
        return later.at_ms - self.at_ms


def test_a_program_is_interrupted_at_a_border_even_where_nothing_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # it is left to be as it was
    experiment = Experiment(tmp_path, Heard(), lambda: 0)
    said = {"device": "cpu", "label": "", "stop": True, "operations": [], "modules": []}
    said |= {"pause_s": 0.0}
    (tmp_path / TARGETS).write_text(json.dumps(said))
    experiment.begin("train")
    experiment.end()
    (tmp_path / ORDERS).write_text(json.dumps({"stop": True}) + "\n")
    with pytest.raises(KeyboardInterrupt):
        experiment.begin("train")
    experiment.stop()


def test_an_experiment_that_fails_leaves_the_program_alone(tmp_path: Path) -> None:
    heard = Heard()
    experiment = Experiment(tmp_path, heard, lambda: 0)
    (tmp_path / TARGETS).write_text("{")
    for _ in range(2):
        experiment.begin("train")
        experiment.end()
    assert heard.labels == ["train", "train"]
    assert [what for what, _ in read_journal(tmp_path)] == ["problem"]
