"""Steps of which the recorder is told in a word, while nothing can come of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from joulemap.recorder.budget import WARM_UP, Plan
from joulemap.recorder.journal import Journal, read_journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.steps import COMPILED, HURRY_S, TRACED, UNTRACED, StepClock
from tests.test_recorder import Tracer

MS = 1_000_000


class Passing:
    """A clock of its own time, and what it has written."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.now_ns, self.tracer, self.journal = 0, Tracer(), Journal(folder)
        sessions = Sessions(folder, self.journal, self.time_ns)
        sessions.add(self.tracer)
        self.steps = StepClock(plan, sessions, self.journal, self.time_ns)

    def time_ns(self) -> int:
        return self.now_ns

    def passes(self, label: str = "train", following: str = "train", after_ms: int = 1) -> bool:
        self.now_ns += after_ms * MS
        return self.steps.passed(label, following)

    def written(self) -> list[list[object]]:
        self.journal.flush()
        return [content for what, content in read_journal(self.journal.path.parent) if what == "step"]

    def seen(self) -> list[tuple[object, object]]:
        return [(label, seen) for _, _, label, seen in self.written()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[Plan], Passing]]:
    made: list[Passing] = []

    def passing(plan: Plan) -> Passing:
        made.append(Passing(tmp_path, plan))
        return made[-1]

    yield passing
    for one in made:
        one.journal.close()


UNTRACING = Plan(overhead=0.0)


def test_steps_that_pass_follow_each_other_and_are_written_down_together(
    make: Callable[[Plan], Passing],
) -> None:
    one = make(UNTRACING)
    one.steps.begin("train")
    assert [one.passes(after_ms=length) for length in (2, 3, 4)] == [True] * 3
    assert one.written() == []
    one.now_ns += 5 * MS
    one.steps.rename("test")
    one.steps.end()
    borders = [0, 2 * MS, 5 * MS, 9 * MS, 14 * MS]
    labels = ["train"] * 3 + ["test"]
    assert one.written() == [
        [start, end, label, UNTRACED]
        for start, end, label in zip(borders[:-1], borders[1:], labels, strict=True)
    ]
    assert one.steps.count == 4


def test_they_are_counted_without_being_asked_for(make: Callable[[Plan], Passing]) -> None:
    one = make(UNTRACING)
    one.steps.begin("train")
    assert one.passes()
    assert one.steps.count == 1


def test_now_and_then_a_step_is_told_of_in_full(make: Callable[[Plan], Passing]) -> None:
    one = make(UNTRACING)
    one.steps.begin("train")
    assert one.passes()
    assert not one.passes(after_ms=round(HURRY_S * 1e3))


def test_nothing_passes_before_a_label_has_had_its_session(make: Callable[[Plan], Passing]) -> None:
    one = make(Plan(overhead=0.01))
    for _ in range(WARM_UP):
        one.steps.begin("train")
        assert not one.passes(after_ms=10)
        one.steps.end()
    one.steps.begin("train")
    assert one.tracer.said == ["start 0"]
    assert not one.passes(after_ms=10)
    one.steps.end()
    assert one.tracer.said == ["start 0", "stop"]
    one.steps.begin("train")
    assert one.passes()
    assert not one.passes(following="test")  # which may be traced
    one.steps.end()
    assert one.steps.count == WARM_UP + 3
    assert one.seen() == [("train", UNTRACED)] * WARM_UP + [("train", TRACED)] + [("train", UNTRACED)] * 2


@pytest.mark.parametrize("plan", [Plan(trace_all=True), Plan(steps=((5, 5),))])
def test_where_steps_are_asked_for_none_passes(make: Callable[[Plan], Passing], plan: Plan) -> None:
    one = make(plan)
    one.steps.begin("train")
    assert not one.passes()


def test_sessions_come_all_the_same(make: Callable[[Plan], Passing], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose steps all pass, where they may, for a minute."""
    monkeypatch.setattr("joulemap.recorder.sessions.time.perf_counter", lambda: 0.0)
    one = make(Plan(overhead=0.01))
    for _ in range(6000):
        if not one.passes(after_ms=10):
            one.steps.end()
            one.steps.begin("train")
    one.steps.end()
    assert one.tracer.said.count("stop") > 5
    assert one.steps.count == 6000
    steps = one.written()
    assert all(after[0] == before[1] for before, after in pairwise(steps))
    assert len(steps) == 6000


def test_steps_with_something_between_them_are_only_noted_too(make: Callable[[Plan], Passing]) -> None:
    one = make(UNTRACING)
    for _ in range(3):
        one.now_ns += MS
        one.steps.begin("train")
        one.now_ns += 2 * MS
        one.steps.end()
    assert one.written() == []
    one.now_ns += round(HURRY_S * 1e9)
    one.steps.begin("train")
    assert one.written() == [[start * MS, (start + 2) * MS, "train", UNTRACED] for start in (1, 4, 7)]
    one.steps.compiled()
    one.steps.end()
    assert one.seen()[3:] == [("train", COMPILED)]


def test_of_steps_with_something_between_them_those_are_traced_that_are_to_be(
    make: Callable[[Plan], Passing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joulemap.recorder.sessions.time.perf_counter", lambda: 0.0)
    one = make(Plan(overhead=0.01))
    for number in range(3000):
        one.steps.begin("train" if number % 10 else "test")
        one.now_ns += 10 * MS
        one.steps.end()
        one.now_ns += 10 * MS
    assert one.steps.count == 3000
    traced = [(label, start_ns) for start_ns, _, label, seen in one.written() if seen == TRACED]
    assert {label for label, _ in traced} == {"train", "test"}
    assert one.tracer.said.count("stop") > 5


def test_a_step_that_fails_is_not_noted(make: Callable[[Plan], Passing]) -> None:
    one = make(UNTRACING)
    one.steps.begin("train")
    try:
        raise ValueError
    except ValueError:
        one.steps.end()
    assert one.steps.count == 0


def test_a_step_that_compiles_does_not_pass_and_those_before_it_are_not_tainted(
    make: Callable[[Plan], Passing],
) -> None:
    one = make(UNTRACING)
    one.steps.begin("train")
    assert one.passes()
    one.steps.compiled()
    assert not one.passes()
    one.steps.end()
    assert one.seen() == [("train", UNTRACED), ("train", COMPILED)]


def test_what_turns_out_to_be_none_leaves_those_before_it(make: Callable[[Plan], Passing]) -> None:
    one = make(UNTRACING)
    one.steps.begin("train")
    assert one.passes()
    one.steps.cancel()
    assert not one.passes()
    assert one.seen() == [("train", UNTRACED)]


def test_no_step_passes_in_another_in_another_thread_or_in_an_error(make: Callable[[Plan], Passing]) -> None:
    one = make(UNTRACING)
    one.steps.begin("train")
    one.steps.begin("inside")
    assert not one.passes()
    one.steps.end()
    passed: list[bool] = []
    thread = threading.Thread(target=lambda: passed.append(one.passes()))
    thread.start()
    thread.join()
    try:
        raise StopIteration
    except StopIteration:
        passed.append(one.passes())
    assert passed == [False, False]
    assert one.passes()


def test_at_the_end_all_are_written_and_in_a_forked_child_none(make: Callable[[Plan], Passing]) -> None:
    parent, child = make(UNTRACING), make(UNTRACING)
    for one in (parent, child):
        one.steps.begin("train")
        assert one.passes()
    child.steps.abandon()
    assert not child.passes()
    child.steps.switch_off()
    assert child.written() == []
    parent.steps.switch_off()
    assert not parent.passes()
    assert parent.seen() == [("train", UNTRACED)]


def test_what_cannot_be_written_as_it_is_is_written_as_text(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put("region", [1, 2, tmp_path])
    journal.put("step", [1, 2, "train", 0])
    journal.close()
    assert list(read_journal(tmp_path)) == [
        ("region", [1, 2, str(tmp_path)]),
        ("step", [1, 2, "train", 0]),
    ]


def test_a_step_whose_thread_has_ended_is_over(make: Callable[[Plan], Passing]) -> None:
    """And no others' are passed over for it."""
    passing = make(UNTRACING)
    ended = threading.Thread(target=passing.steps.begin, args=("warm-up",))
    ended.start()
    ended.join()
    while ended.ident in sys._current_frames():  # for a moment longer
        time.sleep(0.001)
    for _ in range(2):
        passing.now_ns += 1000 * MS
        passing.steps.begin("train")
        passing.now_ns += MS
        passing.steps.end()
    assert passing.steps.count == 2
    assert passing.seen() == [("train", UNTRACED)] * 2
