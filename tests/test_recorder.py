"""The program's side of a recording, with a framework that does what it is told."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import joulemap
from joulemap.frameworks.adapter import StepListener, TooEarly, TracerBusy
from joulemap.recorder.between import in_order, named_spans, steps_table, with_slices_between
from joulemap.recorder.budget import WARM_UP, Plan
from joulemap.recorder.imports import ImportWatch
from joulemap.recorder.journal import JOURNAL, Journal, read_journal
from joulemap.recorder.sessions import BUSY_NS, MOST_FAILURES, Sessions
from joulemap.recorder.steps import (
    COMPILED,
    LOOK_S,
    PATIENCE_S,
    SLICE,
    TRACED,
    UNTRACED,
    StepClock,
)
from joulemap.traces import EventTrace


class Tracer:
    """A framework's adapter that writes down what is asked of it."""

    name, watches = "fake", ("fake",)

    def __init__(self, error: Exception | None = None) -> None:
        self.problems: list[str] = []
        self.said: list[str] = []
        self.error = error

    def attach(self, module: str, steps: StepListener) -> None:
        self.said.append(f"attach {module}")

    def start(self, folder: Path) -> None:
        if self.error:
            raise self.error
        self.said.append(f"start {folder.name}")

    def stop(self) -> None:
        self.said.append("stop")

    def detach(self) -> None:
        self.said.append("detach")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path)
    yield made
    made.close()


def clock(journal: Journal, plan: Plan, tracer: Tracer | None = None) -> StepClock:
    sessions = Sessions(journal.path.parent, journal, time.time_ns)
    if tracer is not None:
        sessions.add(tracer)
    return StepClock(plan, sessions, journal, time.time_ns)


def heard(journal: Journal, what: str) -> list[object]:
    journal.flush()
    return [content for kind, content in read_journal(journal.path.parent) if kind == what]


def steps_of(journal: Journal) -> list[tuple[str, int]]:
    return [(str(step[2]), int(step[3])) for step in heard(journal, "step")]  # type: ignore[index]


def test_a_step_may_turn_out_to_be_of_another_kind(journal: Journal) -> None:
    steps = clock(journal, Plan())
    assert not steps.is_open()
    steps.rename("nobody's")
    assert steps.open_label() == ""
    steps.begin("train")
    assert steps.is_open()
    assert steps.open_label() == "train"
    steps.rename("inference")
    steps.begin("inner")
    steps.rename("inner's own")  # the outermost keeps its name
    assert steps.open_label() == "inference"
    steps.end()
    steps.end()
    assert steps.open_label() == ""
    assert steps_of(journal) == [("inference", UNTRACED)]


def test_a_step_may_turn_out_to_be_none(journal: Journal) -> None:
    tracer = Tracer()
    steps = clock(journal, Plan(trace_all=True), tracer)
    steps.cancel()  # there is none
    steps.begin("train")
    steps.begin("inner")
    steps.cancel()
    assert steps.is_open()
    steps.cancel()
    assert not steps.is_open()
    assert tracer.said == ["start 0", "stop"]
    assert steps_of(journal) == []
    assert steps.budget.spent.total_s > 0
    steps.begin("train")
    steps.end()
    assert steps_of(journal) == [("train", TRACED)]


def test_other_threads_neither_rename_nor_cancel(journal: Journal) -> None:
    steps = clock(journal, Plan())
    steps.begin("train")
    seen: list[bool] = []

    def meddle() -> None:
        seen.append(steps.is_open() or bool(steps.open_label()))
        steps.rename("theirs")
        steps.cancel()

    thread = threading.Thread(target=meddle)
    thread.start()
    thread.join()
    steps.end()
    assert seen == [False]
    assert steps_of(journal) == [("train", UNTRACED)]


def test_a_step_of_another_thread_can_be_forgotten(journal: Journal) -> None:
    """One that it never ends would hide all others."""
    steps = clock(journal, Plan())
    with ThreadPoolExecutor(1) as other:
        other.submit(steps.begin, "train").result()
        steps.begin("mine")
        assert not steps.is_open()
        steps.forget_others()
        steps.begin("mine")
        steps.forget_others()  # its own stays
        other.submit(steps.end).result()
        assert steps.is_open()
        steps.end()
    assert steps_of(journal) == [("mine", UNTRACED)]


@pytest.mark.parametrize("left", ["in a step", "between steps"])
def test_a_session_that_the_program_left_behind_is_closed(journal: Journal, left: str) -> None:
    tracer = Tracer()
    steps = clock(journal, Plan(trace_all=left == "between steps"), tracer)
    while not tracer.said:
        steps.begin("train")
        if not tracer.said or left == "between steps":
            steps.end()
    assert tracer.said == ["start 0"]
    steps._give_up(time.time_ns() + 3_600_000_000_000)
    assert tracer.said == ["start 0", "stop"]
    if left == "in a step":
        steps.end()
        assert steps_of(journal) == [("train", UNTRACED)] * (WARM_UP + 1)  # it was not seen to its end


def test_a_step_that_is_to_be_traced_may_take_as_long_as_it_likes(journal: Journal) -> None:
    tracer = Tracer()
    steps = clock(journal, Plan(steps=((0, 0),)), tracer)
    steps.begin("train")
    steps._give_up(time.time_ns() + 3_600_000_000_000)
    steps.end()
    assert tracer.said == ["start 0", "stop"]
    assert steps_of(journal) == [("train", TRACED)]


def test_a_step_inside_a_step_is_part_of_it(journal: Journal) -> None:
    steps = clock(journal, Plan())
    steps.begin("train")
    steps.begin("call")
    steps.end()
    steps.end()
    steps.end()  # one too many does no harm
    assert steps_of(journal) == [("train", UNTRACED)]


def test_steps_of_other_threads_meanwhile_are_passed_over(journal: Journal) -> None:
    steps = clock(journal, Plan())
    steps.begin("train")
    other = threading.Thread(target=lambda: (steps.begin("other"), steps.end()))
    other.start()
    other.join()
    steps.end()
    assert steps_of(journal) == [("train", UNTRACED)]


def test_sessions_open_and_close_at_the_borders_of_steps(journal: Journal) -> None:
    tracer = Tracer()
    steps = clock(journal, Plan(steps=((1, 2), (4, 4))), tracer)
    for number in range(6):
        steps.begin("train")
        if number == 0:
            steps.compiled()
        steps.end()
    assert tracer.said == ["start 0", "stop", "start 1", "stop"]
    assert [seen for _, seen in steps_of(journal)] == [COMPILED, TRACED, TRACED, UNTRACED, TRACED, UNTRACED]


def test_a_session_that_is_bound_to_a_thread_ends_with_its_step(journal: Journal) -> None:
    tracer = Tracer()
    tracer.bound = True  # type: ignore[attr-defined]
    steps = clock(journal, Plan(steps=((0, 1),)), tracer)
    for _ in range(3):
        steps.begin("train")
        steps.end()
    assert tracer.said == ["start 0", "stop", "start 1", "stop"]
    assert [seen for _, seen in steps_of(journal)] == [TRACED, TRACED, UNTRACED]


def test_somebody_elses_tracing_is_waited_for(journal: Journal) -> None:
    now_ns = 0
    tracer = Tracer(TracerBusy("TensorBoard is tracing.", "Metering goes on."))
    sessions = Sessions(journal.path.parent, journal, lambda: now_ns)
    sessions.add(tracer)
    assert not any(sessions.start() for _ in range(MOST_FAILURES + 2))
    assert not sessions.possible
    now_ns, tracer.error = 2 * BUSY_NS, None
    assert sessions.possible
    assert sessions.start()
    said = "fake could not be traced for a while: TensorBoard is tracing. Metering goes on."
    assert heard(journal, "warning") == [said]


def test_a_framework_that_cannot_be_traced_yet_keeps_no_other_waiting(journal: Journal) -> None:
    """Keras imports JAX where it is installed; a program of TensorFlow never uses it."""
    used, unused = Tracer(), Tracer(TooEarly("Nothing has run on it yet.", ""))
    unused.name = "unused"
    sessions = Sessions(journal.path.parent, journal, lambda: 0)
    sessions.add(used)
    sessions.add(unused)
    for _ in range(2):
        assert sessions.possible
        assert sessions.start()
        sessions.stop(1, 0.0)
    assert used.said == ["start 0", "stop", "start 1", "stop"]
    assert heard(journal, "warning") == []


def test_a_step_that_is_cut_short_is_none(journal: Journal) -> None:
    steps = clock(journal, Plan())
    for number in range(3):
        try:
            steps.begin("train")
            try:
                if number == 1:
                    raise StopIteration
            finally:
                steps.end()
        except StopIteration:  # noqa: PERF203
            steps.begin("after")
            steps.end()
    assert [label for label, _ in steps_of(journal)] == ["train", "after", "train"]


def test_a_tracer_that_fails_is_noted_once_and_left_alone_in_the_end(journal: Journal) -> None:
    tracer = Tracer(RuntimeError("no profiler"))
    steps = clock(journal, Plan(trace_all=True), tracer)
    for _ in range(MOST_FAILURES + 2):
        steps.begin("train")
        steps.end()
    assert heard(journal, "warning") == ["fake could not be traced: RuntimeError: no profiler"]
    assert {seen for _, seen in steps_of(journal)} == {UNTRACED}


def test_a_step_that_begins_ends_the_slice_before_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = Tracer()
    monkeypatch.setattr("joulemap.recorder.steps.PATIENCE_S", -1.0)
    monkeypatch.setattr("joulemap.recorder.steps.SLICE_S", 30.0)
    asleep, over = threading.Event(), threading.Event()
    monkeypatch.setattr("joulemap.recorder.steps.time.sleep", lambda _: (asleep.set(), over.wait()))
    steps = clock(journal, Plan(), tracer)
    slicer = threading.Thread(target=steps.slice)
    slicer.start()
    asleep.wait()
    steps.begin("train")
    assert tracer.said == ["start 0", "stop"]
    steps.end()
    over.set()
    slicer.join()
    assert steps_of(journal) == [(SLICE, TRACED), ("train", UNTRACED)]


class Waiting(Tracer):
    open_ended = True


def test_slices_do_not_wait_for_the_end_of_a_step_that_may_have_none(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joulemap.recorder.steps.PATIENCE_S", -1.0)
    tracer = Waiting()
    steps = clock(journal, Plan(), tracer)
    tracer.open_ended = False
    steps.begin("train")
    steps.slice()
    assert tracer.said == []
    tracer.open_ended = True
    steps.slice()
    assert tracer.said == ["start 0", "stop"]
    steps.end()
    assert steps_of(journal) == [(SLICE, TRACED), ("train", UNTRACED)]


@pytest.mark.parametrize("ended", [True, False])
def test_a_step_that_ends_after_all_ends_the_slice_in_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    monkeypatch.setattr("joulemap.recorder.steps.PATIENCE_S", -1.0)
    tracer = Waiting()
    steps = clock(journal, Plan(), tracer)
    steps.begin("train")
    monkeypatch.setattr(
        "joulemap.recorder.steps.time.sleep", lambda _: steps.end() if ended else steps.cancel()
    )
    steps.slice()
    assert tracer.said == ["start 0", "stop"]
    assert steps_of(journal) == [(SLICE, TRACED), ("train", UNTRACED)][: 1 + ended]


class Expecting(Tracer):
    expects_steps = True


def test_slices_wait_where_steps_are_expected(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulemap.recorder.steps.PATIENCE_S", -1.0)
    tracer = Expecting()
    steps = clock(journal, Plan(trace_all=True), tracer)
    steps.slice()
    assert tracer.said == []
    tracer.expects_steps = False
    steps.slice()
    assert tracer.said == ["start 0", "stop"]


def test_a_program_that_makes_steps_is_left_alone(journal: Journal) -> None:
    """Nobody looks for slices until a step would have had to come."""
    now_ns = [0]
    sessions = Sessions(journal.path.parent, journal, lambda: now_ns[0])
    steps = StepClock(Plan(), sessions, journal, lambda: now_ns[0])
    for after_s, quiet_s in ((0.0, PATIENCE_S), (3.0, PATIENCE_S - 3.0), (PATIENCE_S, LOOK_S), (1e6, LOOK_S)):
        steps.begin("train")
        steps.end()
        now_ns[0] += round(after_s * 1e9)
        assert steps.quiet_s == pytest.approx(quiet_s)


def test_a_torn_line_at_the_end_costs_only_itself(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put("step", [1, 2, "train", 0])
    journal.close()
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('["step", [3, 4, "tr')
    assert list(read_journal(tmp_path)) == [("step", [1, 2, "train", 0])]


def test_a_full_disk_does_not_trouble_the_program(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).symlink_to("/dev/full")
    journal = Journal(tmp_path)
    journal.put("step", [1, 2, "train", 0])
    journal.close()


def test_importing_a_watched_module_is_noticed_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_one.py").write_text("inside = __loader__, __spec__.loader")
    (tmp_path / "watched_bad.py").write_text("raise ImportError('no')")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[str] = []
    watch = ImportWatch(["watched_one", "watched_bad", "json"], seen.append)
    watch.start()
    try:
        import watched_one  # type: ignore[import-not-found]

        with pytest.raises(ImportError, match="no"):
            __import__("watched_bad")
        with pytest.raises(ModuleNotFoundError):
            __import__("watched_missing")
    finally:
        watch.stop()
        sys.modules.pop("watched_one", None)
    assert seen == ["json", "watched_one"]
    assert all(type(loader).__name__ == "SourceFileLoader" for loader in watched_one.inside)
    assert watch not in sys.meta_path


def test_steps_that_overlap_or_leave_the_window_are_cut() -> None:
    kept = in_order([(50, 70, "b", 0), (0, 60, "a", 0), (65, 200, "c", 0), (300, 400, "d", 0)], (10, 100))
    assert kept == [(10, 60, "a", 0), (60, 70, "b", 0), (70, 100, "c", 0)]


def test_slices_stand_for_the_time_around_them() -> None:
    steps = [(10, 20, "train", UNTRACED), (50, 60, SLICE, TRACED), (80, 90, SLICE, TRACED)]
    filled = with_slices_between(steps, 100)
    assert [step[:2] for step in filled] == [(10, 20), (50, 60), (60, 80), (80, 90), (90, 100)]
    assert steps_table(filled).traced.tolist() == [False, True, False, True, False]


def test_all_time_without_a_step_has_a_name() -> None:
    steps = [(20, 30, "train", COMPILED), (40, 50, "train", TRACED)]
    session = {"opened_ns": 35, "started_ns": 38, "closing_ns": 50, "closed_ns": 55}
    spans = named_spans(steps, [session], (0, 100))
    found = {
        (name, start, end)
        for name, start, end in zip(spans.name, spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    }
    assert found == {
        ("(start-up)", 0, 20),
        ("(compilation)", 20, 30),
        ("(between steps)", 30, 40),
        ("(between operations)", 40, 50),
        ("(tracing)", 35, 38),
        ("(tracing)", 50, 55),
        ("(after the last step)", 50, 100),
    }


def test_what_is_compiled_outside_of_steps_has_a_name_there() -> None:
    steps = [(20, 30, "train", COMPILED), (40, 50, "train", UNTRACED)]
    compilations = [(2, 4), (4, 6), (18, 24), (25, 27), (29, 32), (33, 34), (38, 52)]
    found = named_spans(steps, [], (0, 60), (), compilations)
    spans = zip(found.start_ns.tolist(), found.end_ns.tolist(), found.name, strict=True)
    start, compiling, between = "(start-up)", "(compilation)", "(between steps)"
    assert sorted(spans) == [
        (0, 2, start),
        (2, 4, compiling),
        (4, 6, compiling),
        (6, 18, start),
        (18, 20, compiling),
        (20, 30, compiling),
        (30, 32, compiling),
        (32, 33, between),
        (33, 34, compiling),
        (34, 38, between),
        (38, 40, compiling),
        (50, 52, compiling),
        (52, 60, "(after the last step)"),
    ]


def test_a_traced_step_has_ended_when_all_that_was_called_in_it_is_computed(journal: Journal) -> None:
    """Whoever marks it: what a GPU still does is none of the next one's."""

    class Late(Tracer):
        def settle(self) -> None:
            self.said.append("settle")
            time.sleep(0.02)

    tracer = Late()
    steps = clock(journal, Plan(steps=[(1, 1)]), tracer)
    for _ in range(3):
        steps.begin("mine")
        steps.end()
    steps.switch_off()
    assert tracer.said == ["start 0", "settle", "stop"]
    lasted = [step[1] - step[0] for step in heard(journal, "step")]  # type: ignore[index]
    assert max(lasted) > 20_000_000


def test_time_in_traced_steps_in_which_no_operation_ran_has_a_name() -> None:
    """On a CPU; of GPUs it is idle time."""
    steps = [(10, 30, "train", TRACED), (30, 50, "train", UNTRACED), (60, 70, "train", TRACED)]
    events = EventTrace.from_columns(
        name="op",
        device=["CPU", "CPU:1", "CPU", "GPU:0", "CPU", "CPU"],
        start_ns=[5, 14, 12, 20, 24, 35],
        end_ns=[8, 16, 15, 24, 30, 40],
    )
    for traced in ([events], [events.take(slice(0, 3)), events.take(slice(3, 6))]):
        spans = named_spans(steps, [], (10, 70), traced)
        rows = spans.name.isin(["(between operations)"])
        found = zip(spans.start_ns[rows].tolist(), spans.end_ns[rows].tolist(), strict=True)
        assert list(found) == [(10, 12), (16, 24), (60, 70)]


def test_recording_this_process_in_a_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "here.joulemap"
    with joulemap.record(path) as recording:
        with joulemap.step("work"):
            sum(range(10_000_000))
        with joulemap.record(tmp_path / "two.joulemap") as second:
            sum(range(10_000_000))
    assert "recorded already" in capsys.readouterr().err
    assert any("recorded already" in warning for warning in second.load().info.warnings)
    assert second.load().info.status == "complete"
    assert joulemap.account(second.load()).measured_j > 0
    footprint = joulemap.account(recording.load())
    footprint.check()
    assert footprint.measured_j > 0
    assert recording.load().info.status == "complete"
    assert not (path / "raw").exists()
    assert json.loads((path / "recording.json").read_text())["host"]["machine"]
