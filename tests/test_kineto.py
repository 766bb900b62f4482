import gzip
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.frameworks.imported import named_share
from joulemap.frameworks.kineto import KinetoColumns, trace_of
from joulemap.frameworks.kineto_names import guess_categories, kernel, operation
from joulemap.frameworks.nesting import Forest
from joulemap.labels import Labels

DATA = Path(__file__).parent / "data"
H200 = Path(__file__).parents[2] / "shared" / "data" / "h200" / "bert-torch-events.npz"
EPOCH_NS = 1_700_000_000_000_000_000


def table(events, kind=None):
    """(name, phase) -> calls, of one kind of rows."""
    kept = events if kind is None else events.take(np.array([k == kind for k in events.kind], bool))
    return Counter(zip(kept.name, kept.phase, strict=True))


def layers(events, depth):
    """phase -> parts of the path at a depth, of the kernels below bert/encoder."""
    found = defaultdict(set)
    for name, phase in table(events, "kernel"):
        if name.startswith("bert/encoder/layer/"):
            found[phase].add(name.split("/")[depth])
    return dict(found)


# Real exports


@pytest.fixture(scope="module")
def step():
    return read_trace([DATA / "h200-step.json.gz"])


def test_every_kernel_of_bert_has_its_layer(step):
    assert step.framework == "torch"
    twelve = {str(i) for i in range(12)}
    assert layers(step.events, 3) == {"forward": twelve, "backward": twelve}
    assert named_share(step.events) > 0.99
    kernels = table(step.events, "kernel")
    assert kernels["optimizer/AdamW/_foreach_addcdiv_", "optimizer"] == 6
    assert kernels["bert/encoder/layer/3/output/dense/addmm", "forward"] == 1
    assert kernels["bert/encoder/layer/3/output/dense/mm", "backward"] == 3  # two products and a memset
    assert kernels["(model)/nll_loss_forward", "forward"] == 2


def test_layers_own_their_backward_nodes(step):
    """Each Linear, LayerNorm and Embedding has exactly the gradient of its own kind."""
    ops = table(step.events, "op")
    linear = {n.removesuffix("/addmm") for n, phase in ops if n.endswith("/addmm")}
    assert len(linear) == 76
    assert {n.removesuffix("/AddmmBackward0") for n, _ in ops if n.endswith("/AddmmBackward0")} == linear
    norms = {n.removesuffix("/native_layer_norm") for n, _ in ops if n.endswith("/native_layer_norm")}
    assert len(norms) == 26
    assert {
        n.removesuffix("/NativeLayerNormBackward0") for n, _ in ops if n.endswith("/NativeLayerNormBackward0")
    } == norms
    embeddings = {n for n, _ in ops if n.endswith("/EmbeddingBackward0")}
    assert {name.split("/")[-2] for name in embeddings} == {
        "word_embeddings",
        "position_embeddings",
        "token_type_embeddings",
    }


def test_rows_of_the_host(step):
    runtime, ops = table(step.events, "runtime"), table(step.events, "op")
    dense = "bert/encoder/layer/3/output/dense"
    assert runtime[f"{dense}/(python)", "forward"] == 1
    assert runtime[f"{dense}/addmm/cuLaunchKernelEx", "forward"] == 1
    assert runtime[f"{dense}/AddmmBackward0/(autograd)", "backward"] == 1
    assert runtime["(step)/(python)", "other"] == 1
    assert runtime["optimizer/AdamW/(python)", "optimizer"] == 1
    assert any(name.startswith("(profiler)/") for name, _ in runtime)
    added = Counter({name: n for (name, _), n in ops.items() if name.endswith("/AccumulateGrad")})
    assert added.total() == 206
    assert added[f"{dense}/AccumulateGrad"] == 2  # its weight and its bias
    assert set(step.events.device.words) == {"CPU", "GPU:0"}
    assert {"thread 453", "thread 494", "stream 7"} <= set(step.events.lane.words)


def test_steps_and_their_kernels(step):
    assert len(step.steps) == 1
    assert (step.events.step >= -1).all()
    kernels = step.events.take(np.array([kind == "kernel" for kind in step.events.kind]))
    assert (kernels.step == 0).all()


def test_times_are_exact(step):
    with gzip.open(DATA / "h200-step.json.gz") as file:
        raw = json.load(file, parse_float=str)
    first = raw["traceEvents"][0]
    assert step.steps.start_ns[0] == raw["baseTimeNanoseconds"] + int(first["ts"].replace(".", ""))


def test_ranges_drawn_on_the_gpu_are_no_work(step):
    assert any("ranges drawn a second time on the GPU" in note for note in step.notes)
    assert not any(name.startswith("M:") for name in step.events.name.words)


def test_activation_checkpointing_is_recomputation():
    imported = read_trace([DATA / "torch-checkpoint.json.gz"])
    kernels = table(imported.events, "kernel")
    for layer in ("layer/0", "layer/1"):
        assert (
            kernels[f"{layer}/linear1/addmm", "forward"]
            == kernels[f"{layer}/linear1/addmm", "recompute"]
            == 8
        )
        assert kernels[f"{layer}/linear1/mm", "backward"] == 6
    assert kernels["input pipeline/Memcpy HtoD", "other"] == 2
    assert kernels["loss part/nll_loss_forward", "forward"] == 2
    assert kernels["loss part/nll_loss_backward", "backward"] == 2
    assert kernels["gradient clipping/_foreach_norm", "optimizer"] == 4  # outside every range
    assert len(imported.steps) == 2
    assert set(np.unique(imported.events.step)) <= {-1, 0, 1}


def test_module_classes_of_python_stacks_make_paths():
    imported = read_trace([DATA / "torch-stack.json.gz"])
    kernels = table(imported.events, "kernel")
    attention = "loss part/B_0/TransformerEncoderLayer_1/MultiheadAttention_1"
    assert kernels[f"{attention}/_efficient_attention_forward", "forward"] == 2
    assert kernels[f"{attention}/_efficient_attention_backward", "backward"] == 2
    assert any("Python frames" in note for note in imported.notes)


def test_cuda_graphs_say_what_they_lost():
    imported = read_trace([DATA / "torch-cuda-graph.json.gz"])
    assert named_share(imported.events) == 1
    assert any("141 kernels are from CUDA graphs" in note for note in imported.notes)
    assert "CUDA graph/vectorized_layer_norm_kernel" in imported.events.name.words
    assert len(imported.steps) == 0


def test_files_of_one_process_follow_each_other():
    paths = [DATA / "torch-checkpoint.json.gz", DATA / "torch-stack.json.gz"]
    both = read_trace(paths)
    parts = [read_trace([path]) for path in paths]
    assert len(both.events) == sum(len(part.events) for part in parts)
    assert len(both.steps) == 4
    assert (np.diff(both.steps.start_ns) > 0).all()
    assert set(both.events.step.tolist()) - {-1} == {0, 1, 2, 3}
    with pytest.raises(InputError, match="overlap in time"):
        read_trace([paths[0], paths[0]])


def test_frameworks_do_not_mix():
    with pytest.raises(InputError, match="different frameworks"):
        read_trace([DATA / "torch-stack.json.gz", DATA / "tf-timeline.json.gz"])
    with pytest.raises(InputError, match="No trace file"):
        read_trace([])


# The whole recording


def h200_columns():
    with np.load(H200) as data:
        name = Labels(data["name"].astype(np.int32), tuple(data["names"].tolist()))
        start, length, gpu, device, resource, correlation, linked, sequence, forward, thread = data["num"].T
    category = guess_categories(name, gpu == 1, linked)
    launched = np.array([word in ("cuda_runtime", "kernel", "gpu_memset") for word in category.words])[
        category.codes
    ]
    ids, lanes = np.unique(2 * resource + gpu, return_inverse=True)
    return KinetoColumns(
        name=name,
        category=category,
        start_ns=start,
        end_ns=start + length,
        device=np.where(gpu == 1, device, -1),
        lane=Labels(
            lanes.astype(np.int32), tuple(f"{['thread', 'stream'][i % 2]} {i // 2}" for i in ids.tolist())
        ),
        op_id=np.where(launched, linked, correlation),
        correlation=np.where(launched, correlation, 0),
        sequence=sequence,
        forward_thread=forward,
        thread_number=thread,
    )


@pytest.mark.external
@pytest.mark.skipif(not H200.is_file(), reason=f"{H200} is not there")
def test_sixty_steps_of_bert():
    read = trace_of(h200_columns())
    assert len(read.steps) == 60
    assert len(read.events) == 846_983 - 11_040
    twelve = {str(i) for i in range(12)}
    assert layers(read.events, 3) == {"forward": twelve, "backward": twelve}
    assert named_share(read.events) > 0.9999
    kernels = table(read.events, "kernel")
    assert sum(kernels.values()) == 94_620
    assert all(calls % 60 == 0 for calls in kernels.values())


@pytest.mark.external
@pytest.mark.skipif(not H200.is_file(), reason=f"{H200} is not there")
def test_the_fixture_is_what_the_script_makes_of_the_recording(tmp_path):
    script = Path(__file__).parents[1] / "scripts" / "h200_as_chrome_trace.py"
    subprocess.run([sys.executable, script, H200.parent, tmp_path, "--steps", "1"], check=True)
    assert (tmp_path / "power.csv").read_text() == (DATA / "h200-step-power.csv").read_text()
    with gzip.open(tmp_path / "trace.json.gz") as made, gzip.open(DATA / "h200-step.json.gz") as kept:
        assert made.read() == kept.read()


# Small traces of our own


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


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::addmm", "addmm"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "AccumulateGrad"),
        ("Torch-Compiled Region: 0/1", "Torch-Compiled Region: 0:1"),
        ("detach", "detach"),
        ("nccl:all_reduce", "nccl:all_reduce"),
    ],
)
def test_short_names_of_operations(name, short):
    assert operation(name) == short


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::X>(int)",
            "multi_tensor_apply_kernel",
        ),
        ("nvjet_sm90_tst_192x128_64x5", "nvjet_sm90_tst_192x128_64x5"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
    ],
)
def test_short_names_of_kernels(name, short):
    assert kernel(name) == short


# Nesting


def brute_force_parents(lane, start, end):
    """The parent of each row, one row at a time, with the longest of equal starts outside."""
    order = sorted(range(len(start)), key=lambda i: (lane[i], start[i], -end[i]))
    parent, stack = [-1] * len(start), []
    for i in order:
        while stack and (lane[stack[-1]] != lane[i] or end[stack[-1]] <= start[i]):
            stack.pop()
        parent[i] = stack[-1] if stack else -1
        stack.append(i)
    return parent


@st.composite
def nested_intervals(draw):
    """Intervals that nest, in up to three lanes, with ties and shared borders."""
    rows = []

    def fill(lane, start, end, depth):
        cuts = sorted(draw(st.lists(st.integers(start, end), max_size=4)))
        for a, b in zip(cuts[::2], cuts[1::2], strict=False):
            if a < b:
                rows.append((lane, a, b))
                if depth < 3:
                    fill(lane, a, b, depth + 1)

    for lane in range(draw(st.integers(1, 3))):
        fill(lane, 0, 30, 0)
    return draw(st.permutations(rows))


@given(nested_intervals())
def test_parents_are_those_of_a_stack(rows):
    lane, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    forest = Forest.of(lane, start, end)
    assert forest.parent.tolist() == brute_force_parents(lane.tolist(), start.tolist(), end.tolist())
    assert forest.end_ns.tolist() == end.tolist()
    assert sorted(np.concatenate(forest.levels).tolist()) == list(range(len(rows))) if rows else True


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 25)), max_size=12))
def test_crossing_intervals_are_cut_until_they_nest(rows):
    lane = np.array([row[0] for row in rows], np.int64)
    start = np.array([row[1] for row in rows], np.int64)
    end = start + np.array([row[2] for row in rows], np.int64)
    forest = Forest.of(lane, start, end)
    assert (forest.end_ns <= end).all()
    assert (forest.end_ns >= start).all()
    for row, parent in enumerate(forest.parent.tolist()):
        if parent >= 0:
            assert lane[parent] == lane[row]
            assert start[parent] <= start[row]
            assert max(forest.end_ns[parent], start[parent] + 1) >= forest.end_ns[row]


def test_values_are_inherited_from_the_nearest_row_above():
    forest = Forest.of(np.zeros(4, np.int64), np.array([0, 1, 2, 20]), np.array([10, 9, 8, 30]))
    assert forest.inherit(np.array([7, -1, -1, -1])).tolist() == [7, 7, 7, -1]
    assert forest.inherit(np.array([7, 3, -1, 5])).tolist() == [7, 3, 3, 5]
