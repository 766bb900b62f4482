"""An experiment inside of a program: orders are taken between steps, and what was done is said."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch import clock  # noqa: E402
from joulemap.frameworks.torch.clock import clock_mhz, idle  # noqa: E402
from joulemap.frameworks.torch.repeating_generated import IN_PLACE  # noqa: E402
from joulemap.frameworks.watch import Nobody  # noqa: E402
from joulemap.recorder.experiment import (  # noqa: E402
    EASED_STEP,
    ORDERS,
    PLAIN,
    REFERENCE,
    REPEATING,
    TARGETS,
    Experiment,
)
from joulemap.recorder.journal import read_journal  # noqa: E402
from joulemap.validating.stretch import Stretch  # noqa: E402


class Heard(Nobody):
    """Whom an experiment passes steps on to."""

    def __init__(self) -> None:
        self.open = False
        self.labels: list[str] = []

    def begin(self, label: str) -> None:
        self.open = True
        self.labels.append(label)

    def end(self, done: bool = False) -> None:
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

    def step(label: str = "train") -> None:
        experiment.begin(label)
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        if label == "test":
            assert not experiment._repeats[0].extra
        experiment.end()

    step()
    told(tmp_path, "mm", "mul_")
    step()  # a warm-up
    step()
    assert ["refused", [1, IN_PLACE]] in map(list, read_journal(tmp_path)), "before a block is ordered of it"
    for _ in range(2):
        step()
    ordered(tmp_path, *[{"target": 0, "times": 5}] * 2)
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
    assert heard.labels == ["train"] * 5 + [again, again, "test", again, *plainly, again, again, "test"]


def told(folder: Path, *ops: str, **more: Any) -> None:
    """The program's side hears of the targets, which are given two matrices each."""
    square = [[[2, 2], "float"], [[2, 2], "float"]]
    each = {"operands": [square], "files": [[]], "cold": [""], "each_s": 0.25}
    operations = [{"target": number, "op": op, **each} for number, op in enumerate(ops)]
    said = {"device": "cpu", "label": "train", "stop": False, "operations": operations, "modules": []}
    (folder / TARGETS).write_text(json.dumps({**said, **more}))


def ordered(folder: Path, *orders: dict[str, Any]) -> None:
    """And of blocks of two steps, with two steps after each."""
    usual = {"times": 1, "ease": 0.0, "steps": 2, "rest": 2, "rest_ease": 0.0, "pause_s": 0.0}
    with (folder / ORDERS).open("a") as file:
        file.writelines(json.dumps({**usual, **one}) + "\n" for one in orders)


def stretches_of(folder: Path) -> list[Stretch]:
    return [Stretch.of(said) for what, said in read_journal(folder) if what == "stretch"]


def test_a_device_rests_on_both_sides_of_a_stretch_from_the_first_order_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr("joulemap.recorder.experiment.time.sleep", lambda for_s: done.append(f"rest {for_s}"))
    experiment = Experiment(tmp_path, Heard(), lambda: len(done))
    told(tmp_path)

    def steps(*labels: str) -> None:
        for label in labels:
            done.append(label)
            experiment.begin(label)
            experiment.end()

    steps("train", "train", "train")
    ordered(tmp_path, {"target": REFERENCE, "pause_s": 0.1})
    steps("train", "train", "train", "test", "train", "train", "test", "train")
    ordered(tmp_path, {"target": REFERENCE, "pause_s": 0.05})
    steps("train", "train")
    experiment.stop()
    found = [(one.target, one.steps, one.pause_s) for one in stretches_of(tmp_path)]
    assert found == [(PLAIN, 2, 0.0), (REFERENCE, 2, 0.1), (PLAIN, 2, 0.1), (PLAIN, 1, 0.05)]
    first = ["train", "train", "train", "rest 0.1", "train", "rest 0.1", "train", "test", "rest 0.1"]
    then = ["train", "rest 0.1", "train", "test", "rest 0.1", "train", "rest 0.1"]
    assert done == ["train", *first, *then, "train", "rest 0.05", "train", "rest 0.05"]


def test_a_stretch_says_how_long_the_gpu_waited_in_it_and_its_steps_are_called_so(tmp_path: Path) -> None:
    heard = Heard()
    experiment = Experiment(tmp_path, heard, lambda: 0)
    told(tmp_path, "mm")
    waits: list[set[tuple[int, int, float]]] = []

    def steps(count: int, label: str = "train") -> None:
        for _ in range(count):
            experiment.begin(label)
            waits.append({(one.target, one.more, one.ease) for one in experiment._repeats})
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            experiment.end()

    steps(3)
    block, longer = {"target": 0, "times": 4, "ease": 1.0}, {"target": REFERENCE, "ease": 2.0}
    ordered(tmp_path, *({**one, "rest_ease": 1.0} for one in (block, {"target": REFERENCE}, longer)))
    steps(4)
    steps(1, "test")
    steps(11)
    assert {one.ease for one in experiment._repeats} == {1.0}
    experiment.leave()
    assert {one.ease for one in experiment._repeats} == {0.0}
    experiment.stop()
    found = [(one.target, one.steps, one.ease, one.extra) for one in stretches_of(tmp_path)]
    begun = [(PLAIN, 2, 0.0, 0), (0, 2, 1.0, 6), (PLAIN, 1, 1.0, 0), (PLAIN, 1, 1.0, 0)]
    assert found == [*begun, (REFERENCE, 2, 0.0, 0), (PLAIN, 2, 1.0, 0), (REFERENCE, 2, 2.0, 0)]
    plainly, between = {(PLAIN, 0, 0.0)}, {(PLAIN, 0, 1.0)}
    begun_with = [*[plainly] * 3, *[{(0, 3, 1.0)}] * 3, between, plainly, between]
    references = [*[{(REFERENCE, 0, 0.0)}] * 3, *[between] * 2, *[{(REFERENCE, 0, 2.0)}] * 3, *[between] * 2]
    assert waits == begun_with + references
    again, waited = "train" + REPEATING, "train" + EASED_STEP
    labels = ["train"] * 3 + [again] * 3 + [waited, "test", waited] + ["train"] * 3
    assert heard.labels == [*labels, *[waited] * 7]


def test_a_look_at_clocks_in_which_the_host_was_held_up_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Now(Moment):
        def synchronize(self) -> None: ...

    def looked(*at_ms: float) -> float:
        monkeypatch.setattr(clock, "_counted", lambda *_: tuple(map(Now, at_ms)))
        return clock.clock_mhz()

    assert looked(-9.0, 0.0, 0.102, 0.104) == pytest.approx((clock.CYCLES - 1) / 100)
    assert looked(-0.002, 0.0, 0.102, 0.204) == 0.0
    assert looked(-0.002, 0.0, 0.102, 0.3) == 0.0


@pytest.mark.gpu
def test_a_gpu_tells_its_clocks_and_waits_for_about_as_long_as_it_is_to() -> None:
    torch.ones(4096, 4096, device="cuda") @ torch.ones(4096, 4096, device="cuda")
    assert 300 < clock_mhz() < 3000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    idle(0.01, "cuda")
    end.record()
    assert not end.query()
    end.synchronize()
    assert 4 < begin.elapsed_time(end) < 30


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
    told(tmp_path, label="", stop=True)
    experiment.begin("train")
    experiment.end()
    (tmp_path / ORDERS).write_text(json.dumps({"stop": True}) + "\n")
    with pytest.raises(KeyboardInterrupt):
        experiment.begin("train")
    experiment.stop()


def test_a_timeout_that_comes_at_a_border_is_the_programs(tmp_path: Path) -> None:
    def late(*_: Any) -> None:
        raise TimeoutError

    def now_ns() -> int:
        signal.raise_signal(signal.SIGUSR1)
        return 0

    before = signal.signal(signal.SIGUSR1, late)
    experiment = Experiment(tmp_path, Heard(), now_ns)
    told(tmp_path, "mm", label="train")

    def steps() -> None:
        for _ in range(20):
            experiment.begin("train")
            experiment.end()

    try:
        with pytest.raises(TimeoutError):
            steps()
    finally:
        experiment.stop()
        signal.signal(signal.SIGUSR1, before)
    assert list(read_journal(tmp_path)) == []


def test_an_experiment_that_fails_leaves_the_program_alone(tmp_path: Path) -> None:
    heard = Heard()
    experiment = Experiment(tmp_path, heard, lambda: 0)
    (tmp_path / TARGETS).write_text("{")
    for _ in range(2):
        experiment.begin("train")
        experiment.end()
    assert heard.labels == ["train", "train"]
    assert [what for what, _ in read_journal(tmp_path)] == ["problem"]
