"""What a budget of replays buys, and what becomes of those that end the program that makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from joulemap.errors import InputError
from joulemap.replaying import (
    BUILDING_S,
    Bought,
    Interrupted,
    Replays,
    affordable,
    bought,
    eased_part_s,
    replayed,
    way,
)

S = 1_000_000_000


def test_a_budget_is_spent_on_all_operations_before_it_is_spent_on_long_replays():
    assert way(8, 60.0, idle_s=2.0, period_s=0.1, eased_s=0.0) == (2, 1.0)
    assert way(8, 20.0, idle_s=2.0, period_s=0.01, eased_s=0.0) == (2, 0.5)
    assert way(8, 10.0, idle_s=2.0, period_s=0.1, eased_s=0.0) == (1, 0.5)
    assert way(800, 60.0, idle_s=2.0, period_s=0.1, eased_s=0.0) == (1, 0.5)
    assert way(8, 600.0, idle_s=2.0, period_s=1.0, eased_s=0.0) == (2, 10.0)
    assert affordable(10.0, 1, 0.5, idle_s=2.0, eased_s=0.0) == 8
    assert affordable(5.0, 2, 1.0, idle_s=2.0, eased_s=0.0) == 1


@given(
    needed=some.integers(1, 80),
    budget_s=some.floats(5.0, 300.0),
    period_s=some.sampled_from([0.001, 0.1, 0.5]),
    device=some.sampled_from(["cpu", "cuda:0"]),
)
def test_what_a_way_promises_is_affordable(needed: int, budget_s: float, period_s: float, device: str):
    eased_s = eased_part_s(device, budget_s)
    passes, seconds = way(needed, budget_s, 2.0, period_s, eased_s)
    plan = Replays(device, {}, 0.0, budget_s, passes, seconds, 2.0, 0.95, 0.01)
    assert plan.eased_s == eased_s <= 0.2 * budget_s
    one_s = seconds + BUILDING_S
    if passes > 1 or needed * one_s <= plan.first_s:
        assert affordable(budget_s, passes, seconds, 2.0, eased_s) >= needed
        assert passes * (needed * one_s + 2.0) + eased_s <= budget_s + 1e-6
    kept_s = budget_s - eased_s - 2.0 - plan.first_s
    if passes == 1:
        assert kept_s == pytest.approx(0.0, abs=1e-9) or 2.0 + one_s <= kept_s <= 0.15 * budget_s + 1e-9


def test_a_plan_says_how_much_will_have_a_cost():
    plan = Replays(
        "cpu", {"a": 0.5, "b": 0.3, "c": 0.02, "d": 0.015, "e": 0.009}, 0.1, 60.0, 2, 1.0, 2.0, 0.9, 0.01
    )
    assert plan.goal == pytest.approx(0.935)
    assert replace(plan, known=0.95, shares={"e": 0.009}).goal == 0.95
    assert replace(plan, known=0.95, shares={"d": 0.015, "e": 0.009}).goal == pytest.approx(0.965)
    assert bought(plan, []).reaches == pytest.approx(0.935)


def test_what_takes_the_replays_down_is_left_out_and_the_others_begin_anew(monkeypatch: pytest.MonkeyPatch):
    """In processes of their own, without PyTorch; two of four operations end theirs."""
    monkeypatch.setattr("joulemap.replaying._PROGRAM", "tests.replays_that_end")
    shares = dict.fromkeys(("good", "ends", "fails and ends", "better"), 0.25)
    heard: list[Bought] = []
    plan = Replays("cpu", shares, 0.0, 60.0, 1, 0.3, 0.3, 0.95, 0.01)
    lines, powers = replayed(plan, heard.append)
    assert [(one["key"], one.get("skipped", "")) for one in lines] == [
        ("good", ""),
        ("ends", "PyTorch ended while it ran."),
        ("fails and ends", "odd"),
        ("better", ""),
        ("", ""),
    ]
    assert [power.domain.device for power in powers]
    for power in powers:  # of all three attempts, one after the other
        [first, last] = (next(one for one in lines if one["key"] == key) for key in ("good", "better"))
        assert power.edges_ns[0] < first["start_ns"] < last["start_ns"] < power.edges_ns[-1]
        assert power.gap.sum() >= 2
    assert all(one.covered <= one.reaches for one in heard)
    with pytest.raises(InputError, match="interrupted") as raised:
        replayed(replace(plan, shares={"good": 0.5, "is interrupted": 0.5}))
    assert not isinstance(raised.value, Interrupted)  # but asked to end, by another signal
    with pytest.raises(Interrupted):
        replayed(replace(plan, shares={"good": 0.5, "hears Ctrl-C": 0.5}))


def test_however_many_operations_end_the_replays_the_others_keep_their_costs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("joulemap.replaying._PROGRAM", "tests.replays_that_end")
    shares = dict.fromkeys(("first", *(f"fails and ends {number}" for number in range(6)), "last"), 0.125)
    lines, _ = replayed(Replays("cpu", shares, 0.0, 600.0, 1, 0.1, 0.1, 0.95, 0.01))
    assert [one["key"] for one in lines if "skipped" not in one] == ["first", "last", ""]
    assert len(lines) == 9


def test_where_nothing_can_be_replayed_at_all_it_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("joulemap.replaying._PROGRAM", "tests.replays_that_end")
    monkeypatch.setenv("REPLAYS_END", "at once")
    with pytest.raises(InputError, match="does not work here any more"):
        replayed(Replays("cpu", {"a": 0.5, "b": 0.5}, 0.0, 60.0, 1, 0.1, 0.1, 0.95, 0.01))


def test_when_a_budget_is_spent_nothing_begins_anew_but_what_is_drawn_at_rest():
    plan = Replays("cpu", {"a": 0.5, "b": 0.3, "c": 0.2}, 0.0, 10.0, 1, 0.5, 0.5, 0.95, 0.01)
    lines = [{"key": "a"}, {"key": "b", "skipped": "odd"}]
    assert plan.after(lines, 4.0).shares == {"c": 0.2}
    assert (plan.after(lines, 4.0).known, plan.after(lines, 4.0).budget_s) == (0.5, 6.0)
    assert plan.after(lines, 10.0).shares == {}


def test_what_a_budget_has_bought_and_will():
    plan = Replays("cpu", {"a": 0.4, "b": 0.2, "c": 0.1, "d": 0.05}, 0.1, 14.0, 2, 1.0, 2.0, 0.95, 0.01)

    def line(key: str, start_s: int, **more: str) -> dict[str, Any]:
        return {"key": key, "start_ns": start_s * S, "end_ns": (start_s + 2) * S, **more}

    assert bought(plan, []) == Bought(0.1, pytest.approx(0.85), 0.0)
    once = [line("a", 7)]
    assert bought(plan, once) == Bought(0.5, pytest.approx(0.7), pytest.approx(2 / 14))
    once += [line("b", 9, skipped="odd")]
    assert bought(plan, once) == Bought(0.5, 0.5, pytest.approx(4 / 14))
    twice = [*once, line("c", 11), line("", 13), line("a", 15), line("c", 17), line("", 19)]
    assert bought(plan, twice) == Bought(pytest.approx(0.6), pytest.approx(0.6), 1.0)
