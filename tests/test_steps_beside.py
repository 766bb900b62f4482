"""Steps that threads make beside each other: one is known at a time, and how many are not is said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from joulemap.recorder.steps import StepClock
from tests.test_steps_passed import MS, UNTRACING, Passing


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Passing]:
    passing = Passing(tmp_path, UNTRACING)
    yield passing
    passing.journal.close()


def warnings(one: Passing) -> list[str]:
    one.steps.switch_off()
    one.journal.flush()
    return [line for line in one.journal.path.read_text().splitlines() if line.startswith('["warning"')]


@pytest.mark.parametrize(("lasts_ms", "said"), [(10, False), (15, True)])
def test_steps_that_are_passed_over_are_said_where_they_take_much(
    one: Passing, lasts_ms: int, said: bool
) -> None:
    one.now_ns += 85 * MS  # the program starts
    one.steps.begin("inference")
    with ThreadPoolExecutor(1) as other:
        for _ in range(2):
            other.submit(one.steps.begin, "train").result()
            other.submit(one.steps.begin, "inner").result()
            one.now_ns += lasts_ms // 2 * MS
            other.submit(one.steps.end).result()
            other.submit(one.steps.end).result()
        other.submit(one.steps.begin, "none").result()
        one.now_ns += 20 * MS
        other.submit(one.steps.cancel).result()
    one.steps.end()
    found = warnings(one)
    assert bool(found) == said
    assert not said or "2 of 'train', of 14.0 ms together" in found[0]


def test_a_thread_that_ends_in_a_step_that_is_passed_over_leaves_nothing(one: Passing) -> None:
    one.steps.begin("inference")
    for _ in range(20):
        thread = threading.Thread(target=one.steps.begin, args=("train",))
        thread.start()
        thread.join()
        one.now_ns += MS
    one.steps.end()
    one.steps.end()  # of what had not begun
    assert warnings(one) == []


def test_training_beside_a_server_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program of PyTorch's."""
    pytest.importorskip("torch", reason="needs PyTorch")
    from tests.torch_recorded import recording

    monkeypatch.setattr("joulemap.recorder.beside._MUCH", 0)
    with recording(StepClock) as (program, written):
        program.clock.begin("serving")
        program.in_a_thread(lambda: [program.trains() for _ in range(5)])
        program.clock.end()
        assert written() == [("serving", 0)]
        journal = Path(program.clock._journal.path).read_text()
    assert "5 of 'train', of " in journal
