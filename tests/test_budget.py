"""What is traced, and that it stays within what was allowed: runs of programs, played on paper."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulemap.program import sized, unsized
from joulemap.recorder.budget import (
    BEYOND,
    DEFAULT_OVERHEAD,
    FOR_SESSIONS,
    MOST_MISSED,
    MOST_STEPS,
    PLANNED,
    WARM_UP,
    Budget,
    Cost,
    Plan,
)


def play(
    plan: Plan,
    step_s: float,
    steps: int,
    *,
    slow_down: float = 0.1,
    start_s: float = 0.0003,
    stop_s: float = 0.012,
    label: str = "train",
) -> tuple[Budget, list[int], float]:
    """A run of equal steps: the budget, the numbers of the traced steps, and when it ended."""
    budget, now_s, traced = Budget(plan, 0.0), 5.0, list[int]()
    left, cost = 0, Cost()
    for number in range(steps):
        if not left:
            left = budget.steps_to_trace(label, number, now_s)
            if left:
                cost = Cost(start_s=start_s)
                now_s += start_s
        took_s = step_s * (1 + slow_down * bool(left))
        now_s += took_s
        cost.slow_down_s += budget.step_ended(label, took_s, traced=bool(left), compiled=number == 0)
        if left:
            traced.append(number)
            left -= 1
            if not left:
                cost.stop_s = stop_s
                now_s += stop_s
                budget.session_ended([label], cost, now_s)
    return budget, traced, now_s


@given(
    step_s=st.floats(1e-4, 5.0),
    steps=st.integers(50, 2000),
    overhead=st.floats(0.001, 0.2),
    stop_s=st.floats(1e-4, 0.5),
    slow_down=st.floats(0.0, 0.5),
)
def test_the_budget_holds_but_for_the_one_session_that_is_always_held(
    step_s: float, steps: int, overhead: float, stop_s: float, slow_down: float
) -> None:
    budget, traced, end_s = play(Plan(overhead), step_s, steps, stop_s=stop_s, slow_down=slow_down)
    first_s = 0.0003 + slow_down * step_s + stop_s
    dearer = MOST_STEPS * slow_down * step_s  # a session may take five steps where the one before took one
    planned_s = PLANNED * overhead * end_s
    allowed_s = max(planned_s - budget.standing_s(end_s), FOR_SESSIONS * planned_s)
    assert budget.spent.total_s <= allowed_s + first_s + dearer
    assert traced


@pytest.mark.parametrize(
    ("step_s", "for_sessions"), [(0.2, 0.0065), (0.036, 0.0043), (0.02, 0.002), (0.002, 0.002)]
)
def test_hooks_and_monitor_have_their_part_of_the_budget(step_s: float, for_sessions: float) -> None:
    """In a run of some minutes; short steps leave sessions little, and yet something."""
    budget, _, end_s = play(Plan(), step_s, round(400 / step_s), slow_down=0.1, start_s=0.01, stop_s=0.15)
    assert 0.8 * for_sessions < budget.share(end_s) <= for_sessions
    if step_s >= 0.02:
        assert budget.share(end_s) + budget.standing_s(end_s) / end_s < PLANNED * 0.0101


def test_what_the_step_after_a_session_takes_longer_is_a_cost_too() -> None:
    budget = Budget(Plan(), 0.0)
    for seconds in (0.1, 0.1, 0.1):
        budget.step_ended("train", seconds, traced=False, compiled=False)
    for longer_s, known_s in ((0.04, 0.04), (-0.01, 0.0), (30.0, 0.1)):  # the last one saved a checkpoint
        budget.spent = Cost()
        budget.session_ended(["train"], Cost(stop_s=0.2), 1.0)
        for seconds in (0.1 + longer_s, 0.15):
            assert budget.step_ended("train", seconds, traced=False, compiled=False) == 0.0
        assert budget.spent.after_s == pytest.approx(known_s)
        assert budget.spent.total_s == pytest.approx(0.2 + known_s)


def test_warm_up_is_left_alone_and_the_first_session_comes_right_after_it() -> None:
    _, traced, _ = play(Plan(), 0.3, 100)
    assert traced[0] == 1 + WARM_UP  # the first one compiled


def test_a_long_run_is_traced_all_along_but_ever_more_rarely() -> None:
    budget, traced, _ = play(Plan(), 0.1, 50_000)
    assert 20 < budget.sessions < 400
    assert traced[-1] > 45_000
    halves = sum(number < 25_000 for number in traced), sum(number >= 25_000 for number in traced)
    assert halves[0] > halves[1] > 0


def test_short_steps_share_a_session_and_long_ones_have_one_each() -> None:
    _, short, _ = play(Plan(), 0.005, 3000)
    assert short[1] - short[0] > 1  # the first session takes one step: nobody knows yet what it costs
    assert short[1:6] == list(range(short[1], short[1] + MOST_STEPS))
    _, long, _ = play(Plan(), 0.5, 3000)
    assert all(after - before > 1 for before, after in pairwise(long))


def test_nothing_everything_or_exactly_these() -> None:
    assert play(Plan(0.0), 0.1, 50)[1] == []
    assert play(Plan(trace_all=True), 0.1, 50)[1] == list(range(50))
    assert play(Plan(steps=((3, 4), (20, 31))), 0.1, 50)[1] == [3, 4, *range(20, 32)]


def test_each_kind_of_step_is_seen() -> None:
    budget, now_s = Budget(Plan(), 0.0), 100.0
    for label in ("train", "test"):
        for _ in range(WARM_UP):
            assert not budget.steps_to_trace(label, 0, now_s)
            budget.step_ended(label, 0.1, traced=False, compiled=False)
        assert budget.steps_to_trace(label, 0, now_s) == 1
        budget.session_ended([label], Cost(stop_s=50.0), now_s)  # far beyond the budget
        assert not budget.steps_to_trace(label, 0, now_s)


def test_sizes_that_take_much_of_a_model_s_time_are_seen_and_others_as_the_budget_allows() -> None:
    """After a single step of theirs, and as many at once as fit: prompts are few, and tokens short."""
    budget, now_s = Budget(Plan(), 0.0), 100.0
    tokens, prompts, few = (sized("inference", numbers) for numbers in (1, 1000, 70))
    for _ in range(WARM_UP):
        budget.step_ended(tokens, 0.01, traced=False, compiled=False)
    assert budget.steps_to_trace(tokens, 0, now_s) == 1
    assert not budget.is_calm(tokens)
    budget.session_ended([tokens], Cost(stop_s=0.9), now_s)  # with the next beyond the budget
    assert not budget.steps_to_trace(prompts, 0, now_s)
    for label, seconds in ((prompts, 0.02), (few, 0.001)):
        budget.step_ended(label, seconds, traced=False, compiled=False)
    assert budget.steps_to_trace(prompts, 0, now_s) == 4  # of the five seconds that it may be by then
    assert not budget.steps_to_trace(few, 0, now_s)
    assert budget.is_calm(few)
    budget.session_ended([prompts], Cost(), now_s)
    assert not budget.steps_to_trace(prompts, 0, now_s)
    assert budget.steps_to_trace(few, 0, 100_000.0) == 5


def test_sizes_wait_while_they_would_cost_many_times_the_budget() -> None:
    """Until they have taken so much time themselves that it is worth it."""
    budget = Budget(Plan(), 0.0)
    for _ in range(WARM_UP):
        budget.step_ended("inference", 0.1, traced=False, compiled=False)
    budget.session_ended(["inference"], Cost(stop_s=0.5), 1.0)
    prompts = sized("inference", 1000)
    waited = 0
    while not budget.steps_to_trace(prompts, 0, 2.0 + waited * 0.1):
        budget.step_ended(prompts, 0.1, traced=False, compiled=False)
        waited += 1
    assert waited * 0.1 == pytest.approx(0.5 / (BEYOND * DEFAULT_OVERHEAD), rel=0.02)
    generous = Budget(Plan(0.2), 0.0)
    generous.session_ended(["inference"], Cost(stop_s=0.5), 1.0)
    generous.step_ended(prompts, 0.1, traced=False, compiled=False)
    assert generous.steps_to_trace(prompts, 0, 2.0)


@given(
    models=st.integers(1, 4),
    sizes=st.integers(1, 9),
    step_s=st.floats(1e-3, 0.3),
    stop_s=st.floats(1e-3, 0.3),
    rounds=st.integers(5, 200),
)
def test_many_sizes_take_a_few_times_the_budget_beside_the_first_session_of_each_model(
    models: int, sizes: int, step_s: float, stop_s: float, rounds: int
) -> None:
    """A program of 4 s with four sizes was traced for a fifth of its time."""
    budget, now_s, labels = Budget(Plan(), 0.0), 1.0, list[str]()
    for model in range(models):
        name = f"inference {model + 1}"
        labels += [name, *(sized(name, 9**size) for size in range(1, sizes))]
    seen = set[str]()
    for _ in range(rounds):
        for label in labels:
            traced = budget.steps_to_trace(label, 0, now_s)
            now_s += step_s
            budget.step_ended(label, step_s, traced=traced > 0, compiled=False)
            if traced:
                now_s += traced * stop_s
                budget.session_ended([label], Cost(stop_s=traced * stop_s), now_s)
                seen.add(unsized(label))
    firsts_s = models * stop_s
    assert budget.spent.total_s <= firsts_s + 2 * BEYOND * DEFAULT_OVERHEAD * now_s
    assert len(seen) == models


def test_what_it_cost_is_a_share_of_the_time_without_it() -> None:
    budget = Budget(Plan(), 10.0)
    budget.session_ended(["train"], Cost(0.1, 0.2, 0.7), 50.0)
    assert budget.share(111.0) == 1.0 / 100.0


def expected_and_real(cycles: int, turns: int) -> list[tuple[str, str]]:
    """Steps of a discriminator, so many in turn, and of a generator: what comes after either is expected to
    be what came the last time."""
    real = (["train"] * turns + ["train 2"]) * cycles
    after: dict[str, str] = {}
    expected = ["train"]
    for before, now in pairwise(real):
        expected.append(after.get(before, before))
        after[before] = now
    return list(zip(expected, real, strict=True))


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
def test_a_kind_that_is_expected_when_another_one_comes_is_met_by_a_longer_session(turns: int) -> None:
    budget, now_s, left, sessions, seen = Budget(Plan(), 0.0), 5.0, 0, 0, list[str]()
    for expected, real in expected_and_real(200, turns):
        if not left:
            left, labels = budget.steps_to_trace(expected, 0, now_s), list[str]()
        now_s += 0.005
        budget.step_ended(real, 0.005, traced=bool(left), compiled=False)
        if left:
            labels.append(real)
            left -= 1
            if not left:
                seen += labels
                sessions += 1
                budget.session_ended(labels, Cost(stop_s=0.1), now_s := now_s + 0.1)
    assert {"train", "train 2"} == set(seen)
    assert sessions <= 2 + MOST_MISSED


def test_a_kind_that_never_comes_has_no_sessions_for_ever() -> None:
    budget, now_s, opened = Budget(Plan(), 0.0), 5.0, 0
    for _ in range(WARM_UP):
        budget.step_ended("rare", 0.005, traced=False, compiled=False)
    for _ in range(1000):
        steps = budget.steps_to_trace("rare", 0, now_s)
        now_s += 0.005
        budget.step_ended("train", 0.005, traced=bool(steps), compiled=False)
        if steps:
            opened += 1
            budget.session_ended(["train"], Cost(stop_s=0.1), now_s := now_s + 0.1)
    assert opened == MOST_MISSED
