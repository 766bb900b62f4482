import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.frameworks.tensorflow.dataflow import Node, input_name
from joulemap.frameworks.tensorflow.names import places

DATA = Path(__file__).parent / "data"
TIMELINE = DATA / "tf-timeline.json.gz"
RECORDED = Path(__file__).parents[2] / "shared" / "data" / "smaragdine" / "bert-base-cpu"
KEY = "bert/encoder/layer_4/attention/self/key"


@pytest.fixture(scope="module")
def imported():
    return read_trace([TIMELINE])


def rows(events):
    """(name, phase) -> [calls, ns]"""
    found = defaultdict(lambda: [0, 0])
    length = (events.end_ns - events.start_ns).tolist()
    for name, phase, ns in zip(events.name, events.phase, length, strict=True):
        found[name, phase][0] += 1
        found[name, phase][1] += ns
    return dict(found)


def raw_events(path=TIMELINE):
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]


def test_nothing_is_lost(imported):
    raw, events = raw_events(), imported.events
    assert len(events) == len(raw) == 6425
    assert sorted(events.start_ns.tolist()) == sorted(1000 * event["ts"] for event in raw)
    assert (events.end_ns - events.start_ns).sum() == 1000 * sum(event["dur"] for event in raw)
    assert ((events.end_ns == events.start_ns).sum()) == sum(event["dur"] == 0 for event in raw) > 0
    assert set(events.device.words) == {"CPU"}
    assert events.lane is None
    assert imported.framework == "tensorflow"


def test_one_file_is_one_step(imported):
    events, steps = imported.events, imported.steps
    assert len(steps) == 1
    assert (events.step == 0).all()
    assert events.span_ns == (steps.start_ns[0], steps.end_ns[0])
    assert 1_794_704_104 < steps.start_ns[0] / 1e9 < 1_794_704_125


def test_all_layers_have_their_three_phases(imported):
    for phase in ("forward", "backward", "optimizer"):
        layers = {
            name.split("/")[2]
            for name, its_phase in rows(imported.events)
            if its_phase == phase and name.startswith("bert/encoder/layer_")
        }
        assert layers == {f"layer_{i}" for i in range(12)}


def test_names_are_the_papers(imported):
    found = rows(imported.events)
    assert found["bert/encoder/layer_0/output/dense/BiasAdd", "forward"][0] == 1
    assert found["bert/encoder/layer_0/output/dense/MatMul_grad/MatMul", "backward"][0] == 1
    assert found["bert/encoder/layer_0/output/dense/MatMul_grad/MatMul_1", "backward"][0] == 1
    assert found["loss/LogSoftmax", "forward"][0] == 1
    assert found["loss/LogSoftmax_grad/mul", "backward"][0] == 1
    assert not any(name.startswith("gradients") for name, _ in found)
    assert found["(gradient accumulation)/AddN", "backward"][0] == 36


def test_a_hand_written_optimizer_is_found_by_its_dataflow(imported):
    found = rows(imported.events)
    update = {
        name: calls
        for (name, phase), (calls, _) in found.items()
        if name.startswith(f"{KEY}/kernel/(update)")
    }
    # m, v and the weight are assigned; their arithmetic is two products, two sums and so on.
    assert update[f"{KEY}/kernel/(update)/Assign"] == 3
    assert update[f"{KEY}/kernel/(update)/Sqrt"] == 1
    assert update[f"{KEY}/kernel/(update)/Square"] == 1
    assert found[f"{KEY}/kernel/adam_v/read", "optimizer"][0] == 1
    assert found[f"{KEY}/kernel/read", "forward"][0] == 1
    assert found["gradient clipping/global_norm/L2Loss", "optimizer"][0] == 1
    assert found["global_step/(update)/Assign", "optimizer"][0] == 1
    assert found["PolynomialDecay/Mul", "optimizer"][0] == 2  # Mul, and truediv by a constant
    phases = Counter(imported.events.phase)
    assert phases["optimizer"] > 4400
    assert phases["backward"] == 891
    assert not any(name.startswith("(unnamed)") for name, _ in found)


def test_what_belongs_to_no_layer_is_kept_apart(imported):
    found = rows(imported.events)
    assert ("(runtime)/_SOURCE", "other") in found
    assert found["input pipeline/_Arg", "other"][0] == 4
    kinds = Counter(imported.events.kind)
    assert kinds == {"op": 6424, "runtime": 1}


def test_the_graph_has_the_events_names(imported):
    program, events = imported.program, imported.events
    assert set(events.name.words) == set(program.operations)
    assert program.operations["bert/encoder/layer_0/output/dense/MatMul_grad/MatMul"] == "MatMul"
    edges = set(program.edges)
    layer = "bert/encoder/layer_3/output"
    assert (f"{layer}/dense/kernel/read", f"{layer}/dense/BiasAdd") in edges
    assert len(edges) > 5000
    assert all(source != target for source, target in edges)


def test_it_says_what_it_understood(imported):
    said = "\n".join(imported.notes)
    assert "6,425 events on CPU" in said
    assert "in 1 step." in said
    assert "2026-11-15" in said
    assert "100 % of the operations' time" in said


@pytest.mark.external
@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"{RECORDED} is not there")
def test_three_files_are_three_steps_in_order_of_time():
    imported = read_trace([RECORDED / f"timeline-{i}.json.gz" for i in (3, 1, 2)])
    assert len(imported.steps) == 3
    assert (np.diff(imported.steps.start_ns) > 0).all()
    assert np.bincount(imported.events.step).tolist() == [6425] * 3
    lasting = imported.events.take(imported.events.end_ns > imported.events.start_ns)
    assert (imported.steps.at(lasting.start_ns) == lasting.step).all()
    totals = [rows(imported.events.take(imported.events.step == i)).keys() for i in range(3)]
    assert len(totals[0] ^ totals[1]) < 20  # constant folding differs a little from run to run


def test_the_same_step_twice_is_refused():
    with pytest.raises(InputError, match="cover the same time"):
        read_trace([TIMELINE, TIMELINE])


# GPU timelines, as timeline.py writes them; no recording of one exists yet.


def gpu_timeline(tmp_path, events):
    devices = [
        "/job:localhost/replica:0/task:0/device:CPU:0 Compute",
        "/job:localhost/replica:0/task:0/device:GPU:1 Compute",
        "/device:GPU:1/stream:all Compute",
        "/device:GPU:1/stream:13 Compute",
        "/device:GPU:1/memcpy Compute",
        "/job:localhost/replica:0/task:0/device:CPU:0 Tensors",
    ]
    meta = [
        {"name": "process_name", "ph": "M", "pid": i, "args": {"name": name}}
        for i, name in enumerate(devices)
    ]
    made = [
        {
            "ph": "X",
            "cat": "Op",
            "name": op,
            "pid": pid,
            "tid": 0,
            "ts": ts,
            "dur": dur,
            "args": {"name": name, "op": op},
        }
        for pid, name, op, ts, dur in events
    ]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": made + meta}))
    return path


def test_each_kernel_counts_once_and_launches_are_no_gpu_work(tmp_path):
    epoch = 1_700_000_000_000_000
    path = gpu_timeline(
        tmp_path,
        [
            (1, "net/MatMul", "MatMul", epoch, 5),
            (2, "net/MatMul", "MatMul", epoch + 2, 40),
            (3, "net/MatMul", "MatMul", epoch + 2, 40),
            (3, "net/copy", "MEMCPYHtoD", epoch + 50, 7),
            (4, "net/copy", "MEMCPYHtoD", epoch + 50, 7),
            (2, "net/only_in_all", "Add", epoch + 60, 3),
            (0, "net/Shape", "Shape", epoch + 2, 40),
            (5, "net/MatMul:0", "Tensor", epoch, 100),
        ],
    )
    imported = read_trace([path])
    events = imported.events
    found = sorted(zip(events.name, events.device, events.kind, strict=True))
    assert found == [
        ("net/MatMul", "CPU", "runtime"),
        ("net/MatMul", "GPU:1", "kernel"),
        ("net/Shape", "CPU", "op"),
        ("net/copy", "GPU:1", "kernel"),
        ("net/only_in_all", "GPU:1", "kernel"),
    ]
    assert any(
        "2 GPU events that the timeline lists under several streams" in note for note in imported.notes
    )


def test_a_timeline_without_work_is_refused(tmp_path):
    path = gpu_timeline(tmp_path, [(5, "net/MatMul:0", "Tensor", 1, 1)])
    with pytest.raises(InputError, match="no operations"):
        read_trace([path])


# Names


def names(**nodes):
    return places({name.replace("__", "/"): Node(op, inputs) for name, (op, inputs) in nodes.items()})


def test_inputs_name_nodes():
    assert input_name("^a/b") == "a/b"
    assert input_name("a/b:1") == "a/b"


def test_unscoped_operations_are_kept_under_their_type():
    found = names(MatMul_7=("MatMul", ("x", "weights")), x=("Placeholder", ()), weights=("VariableV2", ()))
    assert found["MatMul_7"] == ("(unnamed)/MatMul", "forward")
    assert found["weights"] == ("weights/VariableV2", "forward")


def test_a_stock_optimizer_is_found_by_name():
    found = names(
        Adam__update_dense__kernel__ApplyAdam=(
            "ApplyAdam",
            ("dense/kernel", "gradients/dense/MatMul_grad/MatMul_1"),
        ),
        dense__kernel=("VariableV2", ()),
        dense__MatMul=("MatMul", ("x", "dense/kernel")),
        dense__kernel__Adam_1=("VariableV2", ()),
        gradients__dense__MatMul_grad__MatMul_1=("MatMul", ("x",)),
        beta1_power__read=("Identity", ()),
        x=("Placeholder", ()),
    )
    assert found["Adam/update_dense/kernel/ApplyAdam"][1] == "optimizer"
    assert found["dense/kernel/Adam_1"][1] == "optimizer"
    assert found["beta1_power/read"][1] == "optimizer"
    assert found["dense/kernel"] == ("dense/kernel", "forward")
    assert found["gradients/dense/MatMul_grad/MatMul_1"] == ("dense/MatMul_grad/MatMul_1", "backward")


def test_inference_has_no_optimizer():
    found = names(a__MatMul=("MatMul", ("x",)), add=("AddV2", ("a/MatMul",)), x=("Placeholder", ()))
    assert {phase for _, phase in found.values()} == {"forward"}


def test_cycles_of_loops_do_no_harm():
    found = names(w__Merge=("Merge", ("w/Next", "v__adam_m")), w__Next=("NextIteration", ("w/Merge",)))
    assert len(found) == 2
