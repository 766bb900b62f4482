"""Small traces of our own: numbers, clocks, devices and phases, and files that are old, torn or odd."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.calibration.operation import own_seconds
from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.frameworks.kineto import KinetoColumns, trace_of
from joulemap.labels import Labels

from .kineto_rows import table

EPOCH_NS = 1_700_000_000_000_000_000


def chrome(tmp_path, events, **header):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, **header}))
    return path


def op(name, start, end, *, cat="cpu_op", tid=1, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 9,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": {key.replace("_", " "): value for key, value in args.items()},
    }


def launched(name, start, end, correlation, external=None, device=0, cat="kernel"):
    args = {"device": device, "stream": 7, "correlation": correlation}
    if external is not None:
        args["External id"] = external
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": device,
        "tid": 7,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def read(tmp_path, events, **header):
    return read_trace([chrome(tmp_path, events, baseTimeNanoseconds=EPOCH_NS, **header)])


def test_newest_forward_operation_with_the_number_wins(tmp_path):
    """Operations that make no node share the number of the next one that does; and numbers start again."""
    events = [
        op("M:old", 0, 9),
        op("aten::addmm", 1, 8, Sequence_number=5, Fwd_thread_id=0),
        op("M:a", 10, 20),
        op("aten::slice", 11, 12, Sequence_number=5, Fwd_thread_id=0),
        op("M:b", 20, 30),
        op("aten::addmm", 21, 29, Sequence_number=5, Fwd_thread_id=0),
        op(
            "autograd::engine::evaluate_function: AddmmBackward0",
            40,
            50,
            tid=2,
            Sequence_number=5,
            Fwd_thread_id=1,
        ),
        op("AddmmBackward0", 41, 49, tid=2, Sequence_number=5, Fwd_thread_id=1),
        op("aten::mm", 42, 48, tid=2, External_id=77),
        launched("void gemm<int>(float*)", 60, 70, 3, external=77),
        op("M:late", 80, 90),
        op("aten::addmm", 81, 89, Sequence_number=5, Fwd_thread_id=0),
    ]
    assert table(read(tmp_path, events).events, "kernel") == {("b/mm", "backward"): 1}


def test_what_seems_to_differentiate_itself_belongs_nowhere(tmp_path):
    """Where times are whole microseconds, and threads share numbers: two nodes that begin at once."""

    def node(name, number, tid):
        return op(name, 40, 50, tid=tid, Sequence_number=number, Fwd_thread_id=1)

    events = [
        op("M:a", 0, 9),
        op("aten::x", 1, 8, Sequence_number=4, Fwd_thread_id=0),
        node("autograd::engine::evaluate_function: XBackward0", 5, 2),
        op("aten::y", 40, 49, tid=2, Sequence_number=6, Fwd_thread_id=0),
        node("autograd::engine::evaluate_function: YBackward0", 6, 3),
        op("aten::z", 40, 49, tid=3, Sequence_number=5, Fwd_thread_id=0),
        op("autograd::engine::evaluate_function: ZBackward0", 60, 70, Sequence_number=5, Fwd_thread_id=1),
    ]
    found = {name for name, _ in table(read(tmp_path, events).events)}
    assert {"a/x", "(unnamed)/XBackward0/(autograd)", "(unnamed)/YBackward0/(autograd)"} <= found
    assert "(unnamed)/ZBackward0/(autograd)" in found


def test_threads_keep_their_numbers_apart_where_they_are_known():
    def columns(thread_number):
        names = ["M:a", "aten::x", "M:b", "aten::x", "autograd::engine::evaluate_function: XBackward0"]
        return KinetoColumns(
            name=Labels.of(names),
            category=Labels.of("cpu_op", 5),
            start_ns=np.array([0, 1, 5, 6, 50]),
            end_ns=np.array([9, 8, 15, 14, 60]),
            device=np.full(5, -1),
            lane=Labels.of(["thread 1", "thread 1", "thread 2", "thread 2", "thread 3"]),
            op_id=np.arange(1, 6),
            correlation=np.zeros(5, np.int64),
            sequence=np.array([-1, 4, -1, 4, 4]),
            forward_thread=np.array([0, 0, 0, 0, 1]),
            thread_number=thread_number,
        )

    def layer(read):
        return next(name for name in read.events.name if "XBackward0" in name).split("/")[0]

    assert layer(trace_of(columns(np.array([1, 1, 2, 2, 3])))) == "a"
    assert layer(trace_of(columns(None))) == "b"


def test_older_traces_repeat_the_correlation_as_the_link(tmp_path):
    """Then the id may be some other operation's; the launch knows better."""
    events = [
        op("M:net.fc", 0, 100),
        op("aten::addmm", 10, 50, External_id=1),
        op("aten::relu", 60, 90, External_id=33),
        op("cudaLaunchKernel", 20, 30, cat="cuda_runtime", correlation=33, External_id=33),
        launched("k", 200, 210, 33, external=33),
        launched("Memset (Device)", 220, 230, 34, external=34, cat="gpu_memset"),
    ]
    found = table(read(tmp_path, events).events, "kernel")
    assert found == {("net/fc/addmm", "forward"): 1, ("(unnamed)/Memset", "other"): 1}


def test_old_traces_count_microseconds_since_1970(tmp_path):
    epoch_us = 1_689_861_288_827_753
    imported = read_trace([chrome(tmp_path, [op("aten::mm", epoch_us, epoch_us + 130)])])
    assert imported.events.span_ns == (epoch_us * 1000, (epoch_us + 130) * 1000)
    assert not any("1970" in note for note in imported.notes)


def test_a_clock_without_an_epoch_is_said(tmp_path):
    imported = read_trace([chrome(tmp_path, [op("aten::mm", 5, 6)])])
    assert any("do not count from 1970" in note for note in imported.notes)


def test_rounded_times_do_not_change_the_layers(tmp_path):
    """A child that ends after its parent, and a range that reaches into the next one."""
    events = [
        op("M:a", 0, 101),
        op("aten::mm", 50, 103),
        op("M:b", 100, 200),
        op("aten::add", 100, 150),
    ]
    assert set(table(read(tmp_path, events).events, "op")) == {("a/mm", "forward"), ("b/add", "forward")}


def test_two_gpus_stay_apart(tmp_path):
    events = [
        op("aten::mm", 0, 9, External_id=5),
        launched("k", 1, 2, 1, 5),
        launched("k", 1, 2, 2, 5, device=1),
    ]
    events = read(tmp_path, events).events
    assert Counter(events.device) == {"CPU": 1, "GPU:0": 1, "GPU:1": 1}


def test_broken_events_are_counted_not_fatal(tmp_path):
    broken = [op("aten::mm", 0, 9) | {"ts": None}, {"ph": "X", "cat": "cpu_op"}, op("aten::mm", 9, 3)]
    imported = read(tmp_path, [op("aten::mm", 0, 9), *broken])
    assert len(imported.events) == 2
    assert any("broken numbers (2)" in note for note in imported.notes)
    assert any("negative durations count as calls of 0 s (1)" in note for note in imported.notes)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers()),
)
fields = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), fields, odd), max_size=6), odd)
def test_odd_values_are_left_out_or_refused(tmp_path_factory, changes, base):
    events = [
        op("aten::mm", 0, 9, External_id=5),
        launched("k", 1, 2, 1, 5),
        {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "/device:CPU:0 Compute"}},
        op("MatMul", 3, 4, cat="Op"),
    ]
    for row, field, value in changes:
        events[row] = events[row] | {field: value}
    for header in ({"baseTimeNanoseconds": base}, {}):
        try:
            imported = read_trace([chrome(tmp_path_factory.mktemp("odd"), events, **header)])
        except InputError:
            continue
        assert len(imported.events) <= 3


def test_phases_without_ranges(tmp_path):
    """In a step: forward until the backward pass begins. Without steps: what gradients are recorded for."""
    calls = [
        op("aten::mm", 10, 20, Sequence_number=1, Fwd_thread_id=0),
        op("autograd::engine::evaluate_function: MmBackward0", 30, 40, Sequence_number=1, Fwd_thread_id=1),
        op("aten::norm", 50, 60),
    ]
    phases = {"(unnamed)/mm": "forward", "(unnamed)/norm": "other"}
    assert dict(table(read(tmp_path, calls).events, "op").keys()) == phases
    in_step = [op("ProfilerStep#7", 0, 100, cat="user_annotation"), *calls]
    imported = read(tmp_path, in_step)
    assert dict(table(imported.events, "op").keys()) == phases
    assert len(imported.steps) == 1


def test_a_torn_trace_is_read_and_said(tmp_path):
    text = json.dumps(
        {"baseTimeNanoseconds": EPOCH_NS, "traceEvents": [op(f"aten::x{i}", i, i + 1) for i in range(9)]}
    )
    path = tmp_path / "torn.json"
    path.write_text(text[:-40])
    imported = read_trace([path])
    assert len(imported.events) == 8
    assert any("stops in the middle" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"ph": "X", "cat": "blink", "name": "paint", "ts": 1, "dur": 1, "pid": 1, "tid": 1}], "neither"),
        ([{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/host:CPU"}}], "xplane"),
    ],
)
def test_other_chrome_traces_are_refused(tmp_path, events, said):
    with pytest.raises(InputError) as caught:
        read_trace([chrome(tmp_path, events)])
    assert said in str(caught.value)


def test_the_profilers_own_work_is_where_it_held_a_thread_up(tmp_path):
    """It says of no thread; the backward pass waits in one, and in the other an operation that launches."""
    trace = read(
        tmp_path,
        [
            op("aten::backward", 0, 100, tid=1),
            op("aten::fill_", 20, 60, tid=2),
            op("Activity Buffer Request", 25, 55, cat="overhead", tid=0),
            op("Activity Buffer Request", 150, 160, cat="overhead", tid=0),
        ],
    )
    events = trace.events
    lanes = dict(zip(events.start_ns.tolist(), events.lane, strict=True))
    assert lanes[EPOCH_NS + 25_000] == lanes[EPOCH_NS + 20_000] != lanes[EPOCH_NS]
    assert lanes[EPOCH_NS + 150_000] not in (lanes[EPOCH_NS], lanes[EPOCH_NS + 20_000])
    assert own_seconds(events)[events.start_ns == EPOCH_NS + 20_000] == pytest.approx([10e-6])


def test_the_profilers_own_work_has_no_phase(tmp_path):
    trace = read(
        tmp_path,
        [
            op("nn.Module: Net_0", 0, 50, cat="python_function"),
            op("aten::mm", 0, 50, Sequence_number=1, Fwd_thread_id=0),
            op("Activity Buffer Request", 10, 20, cat="overhead", tid=0),
            op(
                "autograd::engine::evaluate_function: MmBackward0", 60, 99, Sequence_number=1, Fwd_thread_id=1
            ),
            op("Activity Buffer Request", 70, 80, cat="overhead", tid=0),
        ],
    )
    phases = dict(zip(trace.events.start_ns - EPOCH_NS, trace.events.phase, strict=True))
    assert (phases[10_000], phases[70_000]) == ("other", "other")
    assert {"forward", "backward"} <= set(trace.events.phase)
