"""Whether traced steps are like those that they stand for: told apart, or said."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.accounting import attribute
from joulemap.accounting.alike import borrowed, told_apart, unlike
from joulemap.devices import Domain
from joulemap.program import SLICE, sized
from joulemap.traces import Steps

from .small_traces import S, by_name, one_watt, trace


def lasting(seconds, traced, label="decode"):
    ends = [round(S * sum(seconds[: number + 1])) for number in range(len(seconds))]
    marks = [number in traced for number in range(len(seconds))]
    return Steps.from_columns(start_ns=[0, *ends[:-1]], end_ns=ends, traced=marks, label=label)


def said_of(seconds, traced, label="decode", behind_s=0.0, events=100_000):
    """With a device that is done with each step so much later, and so many events in each: a tracer may take
    0.2 s of these."""
    steps_ = lasting(seconds, traced, label)
    return unlike(steps_, steps_.end_ns + round(behind_s * S), np.full(len(steps_), events))


@pytest.mark.parametrize(
    ("seconds", "traced", "how"),
    [
        ([0.066] * 100 + [0.015] * 700, [4], "mostly 15.0 ms"),
        ([1.0] * 20 + [0.4] * 100, [0, 1], "mostly 400 ms"),
        ([0.015] * 40 + [0.066] * 20 + [0.015] * 40, [50, 51], "mostly 15.0 ms"),
        ([0.001, 0.1] * 50, [4], "at most, and all of them 51.0 ms"),  # of two kinds, one was traced
        ([0.003] * 20 + [0.1] * 80, [10], "at most, and all of them 81.4 ms"),
        (([1.0] + [0.015] * 16) * 6, [4], "at most, and all of them 73.5 ms"),  # few that read long prompts
    ],
)
def test_that_traced_steps_are_unlike_those_they_stand_for_is_said(seconds, traced, how):
    [said] = said_of(seconds, traced)
    assert "decode" in said
    assert how in said
    assert "--steps" in said


@pytest.mark.parametrize(
    ("seconds", "traced", "behind_s"),
    [
        ([0.015] * 800, [4], 0.0),
        ([1.0] * 4 + [0.15] + [0.015] * 95, [4], 0.0),  # what is slow is before it, and what it does itself
        ([0.003] * 20 + [0.1] * 80, [10], 0.1),  # a host ahead of its GPU
        ([0.001] * 19 + [0.9] + [0.001] * 20, [4], 0.05),  # and one that waits for it now and then
        ([0.066] * 4 + [0.015] * 4, [1], 0.0),  # too few to tell
        ([0.066] * 20 + [0.015] * 80, [4, 40, 70], 0.0),
        ([0.6] + [0.005] * 99, [50], 0.0),  # the first one is never traced
        ([0.02] * 500 + [30.0] + [0.02] * 500, [50], 0.0),
        (([0.005] * 9 + [0.155]) * 20, [50], 0.015),  # a host that waits for ten steps at once
        (([0.1] + [0.015] * 128) * 6, [4], 0.0),  # short prompts take little of it
        ([0.066] * 100, [], 0.0),
        ([0.066] * 20, range(20), 0.0),
    ],
)
def test_steps_that_stand_for_others_like_them_need_no_words(seconds, traced, behind_s):
    assert said_of(seconds, traced, behind_s=behind_s) == []


@pytest.mark.parametrize(
    ("seconds", "traced", "events", "held_up"),
    [
        ([0.06] * 4 + [0.3] + [0.06] * 95, [4], 15_000, True),  # a busy machine
        ([0.06] * 4 + [0.1] + [0.06] * 95, [4], 15_000, False),  # a tracer
        ([0.002] * 4 + [0.012] + [0.002] * 95, [4], 2_000, False),
        ([0.06] * 4 + [0.3] * 2 + [0.06] * 3 + [0.06] * 95, [4, 5, 6, 7, 8], 15_000, False),  # two of five
        ([0.06] * 4 + [0.3] * 5 + [0.06] * 95, [4, 5, 6, 7, 8], 15_000, True),
        ([0.06, 0.5] * 50, [5], 1_000, False),  # it often does
    ],
)
def test_a_traced_step_that_was_held_up_is_said(seconds, traced, events, held_up):
    said = said_of(seconds, traced, events=events)
    assert bool(said) == held_up
    assert all("300 ms when they were traced" in one and "held them up" in one for one in said)


def test_slices_of_time_are_as_long_as_they_like():
    seconds = [0.1, 1.6] * 40
    assert said_of(seconds, range(0, 80, 2), "step") != []
    assert said_of(seconds, range(0, 80, 2), SLICE) == []


def test_each_kind_of_step_is_compared_with_its_own():
    kinds = ["prefill"] + ["decode"] * 20
    assert said_of([1.0] + [0.01] * 20, [0, 5], kinds) == []
    slow = [1.0] + [0.03] * 8 + [0.01] * 12
    spans = trace(("A", 0, 1), ("A", 1.1, 1.11), step=[0, 5], device="CPU", lane="main")
    footprint = attribute(spans, one_watt(2, Domain("cpu", "CPU:0")), steps=lasting(slow, [0, 5], kinds))
    assert [one for one in footprint.warnings if "decode" in one] == said_of(slow, [0, 5], kinds) != []


def test_a_step_lasts_until_its_device_is_done_with_it():
    steps_ = lasting([0.003] * 20 + [0.1] * 80, [10])
    for until_s, warned in {0.032: True, 0.12: False}.items():
        spans = trace(("A", 0.03, until_s), step=[10], device="GPU:0")
        footprint = attribute(spans, one_watt(9, Domain("GPU:0", "GPU:0")), steps=steps_)
        assert any("decode" in one for one in footprint.warnings) == warned


PLANS = [0.066] * 100 + [0.015] * 700
"""A program that makes plans at first."""


def drawn(seconds, events):
    """What operations draw in steps so long, at a watt, where ``events`` say what ran in the traced ones: how
    long of each."""
    steps_ = lasting(seconds, events)
    spans, of_step = [], []
    for step, names in events.items():
        until_s = int(steps_.start_ns[step]) / S
        for name, ran_s in names.items():
            spans.append((name, until_s, until_s + ran_s))
            of_step.append(step)
            until_s += ran_s
    found = trace(*spans, step=of_step, device="CPU", lane="main")
    return attribute(found, one_watt(math.ceil(sum(seconds)) + 1, Domain("cpu", "CPU:0")), steps=steps_)


def test_steps_of_a_time_are_projected_from_those_that_were_traced_then():
    """Half of the time while plans are made, nothing of it later."""
    once = {4: {"plan": 0.033, "work": 0.033}, 450: {"work": 0.015}}
    footprint = drawn(PLANS, once)
    assert by_name(footprint) == pytest.approx({"plan": 3.3, "work": 3.3 + 700 * 0.015}, rel=0.02)
    assert footprint.warnings == ()


def test_one_traced_time_stands_for_all_and_that_is_said():
    footprint = drawn(PLANS, {4: {"plan": 0.033, "work": 0.033}})
    assert by_name(footprint)["plan"] == pytest.approx(sum(PLANS) / 2, rel=0.02)
    assert any("mostly 15.0 ms" in one for one in footprint.warnings)


def labels_of(seconds, traced, label="decode"):
    return told_apart(lasting(seconds, traced, label)).label


@pytest.mark.parametrize(
    ("seconds", "traced"),
    [
        ([0.015] * 800, [4, 400, 700]),
        ([0.025] * 100 + [0.015] * 700, [4, 450]),  # a busy host
        ([0.001, 0.001, 0.001, 0.2] * 50, [4, 50, 51, 99]),  # a host ahead of its GPU
        ([0.001, 0.1] * 50, [4, 51]),  # of two kinds in turns
        (PLANS, [4, 60]),  # nothing was traced later
        ([0.066] * 4 + [0.015] * 8, [1, 10]),  # too few to tell
        ([0.02] * 50 + [30.0] + [0.02] * 50, [30, 49, 52, 70]),  # one that was held up
        ([1.0] * 4 + [0.15] + [0.015] * 95, [4, 40]),  # the first ones, and what tracing itself takes
        ([0.0] * 40, [4, 30]),
    ],
)
def test_steps_that_are_alike_as_far_as_is_known_stay_one_kind(seconds, traced):
    assert set(labels_of(seconds, traced)) == {"decode"}


def test_times_are_told_apart_where_steps_were_traced_in_each():
    label = list(labels_of([0.3] * 50 + PLANS, [10, 60, 300, 500]))
    assert set(label) == {f"decode of about {one}" for one in ("300 ms", "66.0 ms", "15.0 ms")}
    of_300, of_66 = (label.count(f"decode of about {one}") for one in ("300 ms", "66.0 ms"))
    assert abs(of_300 - 50) < 10
    assert abs(of_66 - 100) < 10
    assert len({label[10], label[60], label[300]}) == 3
    assert label[300] == label[500]


def test_a_traced_step_at_the_border_of_two_times_is_of_the_one_that_it_is_as_long_as():
    """What follows is a third of each kind, and no kind of its own."""
    seconds = [0.066] * 100 + [0.015] * 700
    label = list(labels_of(seconds, [40, 94, 400, 500]))
    assert label[94] == label[40] == "decode of about 66.0 ms"
    assert len(set(label)) == 2
    label = list(labels_of(seconds, [40, 104, 400, 500]))
    assert label[104] == label[400] == "decode of about 15.0 ms"


def test_slices_of_time_are_not_told_apart():
    assert set(labels_of(PLANS, [4, 450], SLICE)) == {SLICE}


def test_other_labels_stay_what_they_are():
    kinds = ["decode"] * 800 + ["prefill"] * 30
    label = list(labels_of(PLANS + [0.1] * 30, [4, 450, 810], kinds))
    assert label[800:] == ["prefill"] * 30
    assert "decode" not in label


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.01, 0.05, 1.0]), min_size=12, max_size=60), st.data())
def test_every_joule_goes_somewhere_whatever_is_told_apart(seconds, data):
    seconds = [first for one in seconds for first in [one] * 3]
    traced = data.draw(st.sets(st.integers(0, len(seconds) - 1), max_size=6))
    steps_ = lasting(seconds, traced)
    apart = told_apart(steps_)
    assert apart.traced.tolist() == steps_.traced.tolist()
    events = {step: {"a": seconds[step] / 2} for step in sorted(traced)}
    drawn(seconds, events).check()


def test_steps_of_a_size_that_was_not_traced_go_by_those_of_another():
    kinds = ["inference"] + [sized("inference", 4)] * 20 + [sized("inference", 90)] * 2 + ["train"] * 2
    seconds = [1.0] + [0.01] * 20 + [0.3] * 2 + [1.0] * 2
    for traced, like in (
        ([5], [kinds[5]] * 23),
        ([0], ["inference"] * 23),
        ([0, 5], [*kinds[:21], "inference", "inference"]),  # which take 0.3 s, and not 0.01
        ([0, 5, 21], kinds[:23]),
        ([24], kinds[:23]),
    ):
        assert list(told_apart(lasting(seconds, traced, kinds)).label) == [*like, "train", "train"]


def test_whose_energy_is_known_of_one_size_alone_has_all_of_it():
    kinds = ["inference"] + [sized("inference", 4)] * 9
    spans = trace(("A", 0, 1), step=[0], device="CPU", lane="main")
    footprint = attribute(spans, one_watt(10, Domain("cpu", "CPU:0")), steps=lasting([1.0] * 10, [0], kinds))
    assert by_name(footprint)["A"] == pytest.approx(10.0)


@pytest.mark.parametrize(("traced", "part"), [([0, 3], "10%"), ([0, 3, 20], None), ([20], "90%"), ([], None)])
def test_sizes_that_go_by_others_and_take_some_of_the_time_are_said(traced, part):
    """By name; before, their energy was in the rows of others with an interval as if it were known."""
    kinds = ["inference"] + [sized("inference", 4)] * 19 + [sized("inference", 90)] * 4
    seconds = [0.1] + [0.9 * 2 / 19] * 19 + [0.05] * 4
    said = borrowed(lasting(seconds, traced, kinds))
    spans = trace(*(("A", 0, 0.01) for _ in traced[:1]), step=traced[:1], device="CPU", lane="main")
    footprint = attribute(spans, one_watt(3, Domain("cpu", "CPU:0")), steps=lasting(seconds, traced, kinds))
    assert [one for one in footprint.warnings if "none was traced" in one] == said
    if part is None:
        assert said == []
    else:
        assert f"Of sizes that take {part} of the time" in said[0]
        assert "inference (90 numbers)" in said[0]
        assert "--steps" in said[0]


def test_a_size_that_takes_next_to_nothing_needs_no_words():
    kinds = ["inference"] * 10 + [sized("inference", 4)]
    assert borrowed(lasting([0.1] * 10 + [0.01], [3], kinds)) == []
    assert borrowed(lasting([0.0] * 11, [3], kinds)) == []


def test_of_many_sizes_the_longest_are_named():
    kinds = ["inference"] * 10 + [sized("inference", 9**size) for size in range(1, 7)]
    [said] = borrowed(lasting([0.1] * 10 + [0.01, 0.06, 0.05, 0.02, 0.03, 0.04], [3], kinds))
    named = ", ".join(f"{sized('inference', 9**size)} by inference" for size in (2, 3, 6))
    assert f"They go by others, {named}, 3 more: " in said
