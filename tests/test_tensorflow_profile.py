"""Profiles of TensorFlow, made by hand event by event: what becomes of each kind of event."""

import json

import pytest

from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.frameworks.tensorflow.raw import read_raw
from tests.messages import Plane, computation, instruction, length, module, number, space, write_space

HOST = "/host:CPU"
POOL, EIGEN, PYTHON = "tf_Compute/1", "tf_numa_-1_Eigen/2", "python"
EPOCH_NS = 1_794_700_000_000_000_000


def record(plane, line, t_ns, number):
    return plane.event(line, "ThreadpoolListener::Record", t_ns, t_ns, _pt=15, _p=number)


def task(plane, line, start_ns, end_ns, number):
    plane.event(line, "ThreadpoolListener::StartRegion", start_ns, start_ns, _ct=15, _c=number)
    return plane.event(line, "ThreadpoolListener::StopRegion", end_ns, end_ns)


def rows(tmp_path, *planes, graphs=()):
    """(kind, phase, name, op, start, end) of every row."""
    write_space(tmp_path / "0" / "h.xplane.pb", *planes)
    (tmp_path / "graphs").mkdir(exist_ok=True)
    for i, graph in enumerate(graphs):
        (tmp_path / "graphs" / f"{i}.json").write_text(json.dumps({"format": 1, **graph}))
    events = read_raw(tmp_path).events
    columns = (events.kind, events.phase, events.name, events.op)
    times = ((events.start_ns - EPOCH_NS).tolist(), (events.end_ns - EPOCH_NS).tolist())
    return sorted(zip(*columns, *times, strict=True))


def works(found):
    return [row[:4] for row in found if row[0] != "runtime"]


def test_a_node_is_an_operation_and_its_tasks_are_its_workers(tmp_path):
    plane = Plane(HOST).op(POOL, "dense/MatMul", "MatMul", 100, 200)
    record(record(plane, POOL, 110, 1), POOL, 111, 2)
    record(plane, EIGEN, 125, 3)  # a task hands over another one
    task(task(plane, EIGEN, 120, 150, 1), EIGEN, 160, 170, 3)
    task(plane, "tf_numa_-1_Eigen/9", 120, 190, 2)
    assert rows(tmp_path, plane) == [
        ("op", "forward", "dense/MatMul", "MatMul", 100, 200),
        ("worker", "forward", "dense/MatMul", "MatMul", 120, 150),
        ("worker", "forward", "dense/MatMul", "MatMul", 120, 190),
        ("worker", "forward", "dense/MatMul", "MatMul", 160, 170),
    ]


def test_what_the_executor_hands_over_is_nobodys_work(tmp_path):
    plane = Plane(HOST)
    plane.event(POOL, "ExecutorState::Process", 100, 300, id=7)
    plane.op(POOL, "a/Relu", "Relu", 110, 120)
    record(plane, POOL, 130, 1)  # between two nodes
    task(plane, "tf_Compute/2", 140, 200, 1)
    plane.event("tf_Compute/2", "ExecutorState::Process", 141, 199, id=7)
    plane.op("tf_Compute/2", "b/Relu", "Relu", 150, 190)
    found = rows(tmp_path, plane)
    assert works(found) == [("op", "forward", "a/Relu", "Relu"), ("op", "forward", "b/Relu", "Relu")]
    assert {row[2] for row in found if row[0] == "runtime"} == {
        "(runtime)/ExecutorState::Process",
        "(runtime)/thread pool",
    }


def test_the_task_in_which_a_called_function_runs_is_no_worker(tmp_path):
    plane = Plane(HOST).op(POOL, "map/MapDefun", "MapDefun", 100, 300)
    record(plane, POOL, 110, 1)
    task(plane, "tf_Compute/2", 120, 290, 1)
    plane.event("tf_Compute/2", "ExecutorState::Process", 121, 289, id=8)
    plane.op("tf_Compute/2", "inner/Mul", "Mul", 130, 280)
    kinds = [(kind, name) for kind, _, name, *_ in rows(tmp_path, plane)]
    assert ("worker", "map/MapDefun") not in kinds
    assert ("runtime", "(runtime)/thread pool") in kinds


def test_ranges_that_wait_are_left_out(tmp_path):
    plane = Plane(HOST)
    for name in (
        "multi_step_on_iterator",
        "TFE_Py_ExecuteCancelable",
        "EagerExecute",
        "EagerLocalExecute: __inference_multi_step_on_iterator_12",
        "EagerKernelExecute",
        "KernelAndDeviceFunc::Run",
        "TFE_DeleteTensorHandle",
        "SessionRun",
    ):
        plane.event(PYTHON, name, 0, 1000)
    plane.event(POOL, "ExecutorState::ProcessAsync::Start", 0, 900)
    plane.event(PYTHON, "FunctionRun", 10, 20, id=7)
    plane.event(PYTHON, "MemoryAllocation", 12, 12)
    assert rows(tmp_path, plane) == [("runtime", "other", "(runtime)/FunctionRun", "FunctionRun", 10, 20)]


def test_the_input_pipeline_works_and_waits(tmp_path):
    thread = "tf_data_iterator_resource/1"
    plane = Plane(HOST)
    plane.event(thread, "PrefetchProduce", 0, 100)
    plane.event(thread, "Iterator::Root::Prefetch", 1, 90)
    plane.event(thread, "Iterator::Root::Prefetch::BatchV2", 2, 50)
    plane.event(thread, "FunctionRun", 10, 20, id=5)
    plane.event("tf_data_private_threadpool/1", "ExecutorState::Process", 20, 40, id=5)
    plane.op("tf_data_private_threadpool/1", "resize/Mul", "Mul", 21, 39)
    plane.event(PYTHON, "EagerLocalExecute: MakeIterator", 0, 10)
    found = rows(tmp_path, plane)
    assert works(found) == [
        ("op", "other", "input pipeline/MakeIterator", "MakeIterator"),
        ("op", "other", "input pipeline/Prefetch/BatchV2", "BatchV2"),
        ("op", "other", "input pipeline/PrefetchProduce", "PrefetchProduce"),
        ("op", "other", "input pipeline/resize/Mul", "Mul"),
    ]
    assert ("runtime", "other", "input pipeline/Prefetch", "Prefetch", 1, 90) in found


def test_the_pipelines_functions_are_the_pipelines_wherever_they_run(tmp_path):
    plane = Plane(HOST)
    plane.event("tf_data_iterator_resource/1", "FunctionRun", 10, 20, id=5)
    plane.event(POOL, "ExecutorState::Process", 20, 40, id=5)
    plane.op(POOL, "resize/Mul", "Mul", 21, 39)
    assert works(rows(tmp_path, plane)) == [("op", "other", "input pipeline/resize/Mul", "Mul")]


def test_eager_operations_take_the_ranges_around_them(tmp_path):
    plane = Plane(HOST)
    plane.event(PYTHON, "joulemap:bert/pooler", 0, 100)
    plane.event(PYTHON, "EagerLocalExecute: MatMul", 10, 20)
    plane.event(PYTHON, "EagerLocalExecute: MatMul", 110, 120)
    plane.event(PYTHON, "joulemap-phase:backward", 200, 300)
    plane.event(PYTHON, "EagerLocalExecute: MatMul", 210, 220)
    plane.event(PYTHON, "EagerLocalExecute: AddN", 220, 230)
    assert works(rows(tmp_path, plane)) == [
        ("op", "backward", "(gradient accumulation)/AddN", "AddN"),
        ("op", "backward", "(unnamed)/MatMul", "MatMul"),
        ("op", "forward", "bert/pooler/MatMul", "MatMul"),
        ("op", "other", "(unnamed)/MatMul", "MatMul"),
    ]


def test_compilation_is_a_bucket(tmp_path):
    plane = Plane(HOST).event(PYTHON, "tf.function-graph_building", 0, 100)
    assert works(rows(tmp_path, plane)) == [
        ("op", "other", "(compilation)/tf.function-graph_building", "tf.function-graph_building")
    ]


# Names by graphs


def graph(name, scopes, nodes, functions=()):
    return {"name": name, "scopes": scopes, "nodes": nodes, "functions": list(functions)}


def test_scopes_become_layers_by_the_graph_alone(tmp_path):
    """``dense_1`` is the first call of ``dense``; ``dense_1_2`` that of its sibling ``dense_1``."""
    made = graph(
        "step",
        {"m_1": "m", "m_1/dense_1": "m/dense", "m_1/dense_1_2": "m/dense_1"},
        [["m_1/dense_1/MatMul", "MatMul", []], ["m_1/dense_1_2/MatMul", "MatMul", ["m_1/dense_1/MatMul"]]],
    )
    plane = Plane(HOST)
    plane.op(POOL, "StatefulPartitionedCall/m_1/dense_1/MatMul", "_FusedMatMul", 0, 10)
    plane.op(POOL, "StatefulPartitionedCall/m_1/dense_1_2/MatMul", "MatMul", 10, 20)
    plane.op(POOL, "StatefulPartitionedCall/gradient_tape/m_1/dense_1/MatMul/MatMul_1", "MatMul", 20, 30)
    plane.op(
        POOL, "StatefulPartitionedCall/m_1/dense_1/ArithmeticOptimizer/AddOpsRewrite_add_2", "AddN", 30, 40
    )
    assert works(rows(tmp_path, plane, graphs=[made])) == [
        ("op", "backward", "m/dense/MatMul/MatMul_1", "MatMul"),
        ("op", "forward", "m/dense/MatMul", "_FusedMatMul"),
        ("op", "forward", "m/dense/add_2", "AddN"),
        ("op", "forward", "m/dense_1/MatMul", "MatMul"),
    ]
    assert read_raw(tmp_path).program.edges == (("m/dense/MatMul", "m/dense_1/MatMul"),)


def test_the_function_that_runs_decides_where_graphs_disagree(tmp_path):
    graphs = [
        graph(name, {"net_1": layer}, [["net_1/MatMul", "MatMul", []]], [f"__inference_{name}_1"])
        for name, layer in (("teacher", "big"), ("student", "small"))
    ]
    plane = Plane(HOST)
    for i, name in enumerate(("teacher", "student")):
        start = 1000 * i
        plane.event(PYTHON, f"EagerLocalExecute: __inference_{name}_1", start, start + 900)
        plane.event(PYTHON, "FunctionRun", start + 1, start + 2, id=i + 1)
        plane.event(POOL, "ExecutorState::Process", start + 10, start + 100, id=i + 1)
        plane.op(POOL, "net_1/MatMul", "MatMul", start + 11, start + 99)
    plane.op(POOL, "net_1/MatMul", "MatMul", 5000, 5001)  # nobody knows whose
    names = [row[2] for row in rows(tmp_path, plane, graphs=graphs) if row[0] == "op"]
    assert names == ["big/MatMul", "net_1/MatMul", "small/MatMul"]


def test_what_ran_together_tells_the_graph_that_was_inlined(tmp_path):
    graphs = [
        graph("train", {"m_1": "m"}, [["m_1/Relu", "Relu", []], ["m_1/Loss", "Mean", []]]),
        graph("other", {"m_1": "another"}, [["m_1/Relu", "Relu", []]]),
    ]
    plane = Plane(HOST).op(POOL, "StatefulPartitionedCall/m_1/Relu", "Relu", 0, 10)
    plane.op(POOL, "StatefulPartitionedCall/m_1/Loss", "Mean", 10, 20)
    assert [row[2] for row in rows(tmp_path, plane, graphs=graphs)] == ["m/Loss", "m/Relu"]


def test_bodies_of_loops_belong_to_the_layer_around_them(tmp_path):
    graphs = [
        graph("step", {"m_1/lstm_1": "m/lstm"}, [["m_1/lstm_1/while", "While", []]]),
        graph(
            "body",
            {"m_1/lstm_1/while/cell_1": "m/lstm/cell"},
            [["m_1/lstm_1/while/cell_1/MatMul", "MatMul", []]],
        ),
    ]
    plane = Plane(HOST)
    call = "StatefulPartitionedCall/m_1/lstm_1/while/body/_5/"
    plane.op(POOL, f"{call}m_1/lstm_1/while/cell_1/MatMul", "MatMul", 0, 10)
    plane.op(POOL, f"{call}m_1/lstm_1/while/TensorListPushBack", "TensorListPushBack", 10, 20)
    plane.op(POOL, f"{call}add", "AddV2", 20, 30)
    loop = "gradient_tape/m_1/lstm_1/while"
    grad = f"{loop}/m_1/lstm_1/while_grad/body/_9/{loop}/gradients"
    plane.op(POOL, f"{grad}/AddN_3", "AddN", 30, 40)
    plane.op(POOL, f"{grad}/m_1/lstm_1/while/cell_1/MatMul_grad/MatMul", "MatMul", 40, 50)
    found = rows(tmp_path, plane, graphs=graphs)
    assert [(phase, name) for _, phase, name, *_ in found] == [
        ("backward", "m/lstm/cell/MatMul_grad/MatMul"),
        ("backward", "m/lstm/while/AddN_3"),
        ("forward", "m/lstm/cell/MatMul"),
        ("forward", "m/lstm/while/TensorListPushBack"),
        ("forward", "m/lstm/while/add"),
    ]


# Compiled programs and GPUs


def test_instructions_are_named_by_the_function_that_was_compiled(tmp_path):
    entry = computation(
        1,
        2,
        instruction("MatMul.1", "dot", 1, "net_1/MatMul", "MatMul"),
        instruction("copy.2", "copy", 2),
        instruction("fusion.3", "fusion", 3, "gradient_tape/net_1/MatMul/MatMul_1", "MatMul", called=[9]),
    )
    proto = module(entry, name="a_inference_student_1__.9", program_id=77)
    metadata = Plane("/host:metadata").describe("a_inference_student_1(77)", **{"Hlo Proto": proto})
    plane = Plane(HOST)
    for i, name in enumerate(("MatMul.1", "copy.2", "fusion.3")):
        plane.event(POOL, name, 10 * i, 10 * i + 5, hlo_op=name, program_id=77)
        plane.event(POOL, f"end: {name}", 10 * i + 5, 10 * i + 5, hlo_op=name, program_id=77)
    graphs = [
        graph(name, {"net_1": layer}, [["net_1/MatMul", "MatMul", []]], [f"__inference_{name}_1"])
        for name, layer in (("teacher", "big"), ("student", "small"))
    ]
    assert rows(tmp_path, plane, metadata, graphs=graphs) == [
        ("op", "backward", "small/MatMul/MatMul_1", "MatMul", 20, 25),
        ("op", "forward", "small/MatMul", "MatMul", 0, 5),
        ("op", "other", "(unnamed)/hlo/copy.2", "copy.2", 10, 15),
    ]


def test_kernels_take_the_name_of_the_node_that_launched_them(tmp_path):
    """No profile of TensorFlow on a GPU was at hand: the stats are those of the profiler's source."""
    host = Plane(HOST).op(POOL, "m_1/dense_1/BiasAdd", "BiasAdd", 0, 100)
    host.event(POOL, "cuLaunchKernel", 10, 20, correlation_id=5)
    gpu = Plane("/device:GPU:0")
    gpu.event("Stream #7(Compute)", "gemm", 50, 80, correlation_id=4, tf_op="m_1/dense_1/MatMul:MatMul")
    gpu.event("Stream #7(Compute)", "bias", 80, 90, correlation_id=5)
    gpu.event("Stream #7(Compute)", "stray", 90, 95, correlation_id=6)
    gpu.event("Stream #9(MemcpyH2D)", "MemcpyH2D", 0, 9, correlation_id=7)
    gpu.event("TensorFlow Ops", "m_1/dense_1/MatMul", 50, 80)
    made = graph("step", {"m_1/dense_1": "m/dense"}, [["m_1/dense_1/MatMul", "MatMul", []]])
    found = [row for row in rows(tmp_path, host, gpu, graphs=[made]) if row[0] == "kernel"]
    assert found == [
        ("kernel", "forward", "m/dense/BiasAdd", "BiasAdd", 80, 90),
        ("kernel", "forward", "m/dense/MatMul", "MatMul", 50, 80),
        ("kernel", "other", "(unnamed)/stray", "stray", 90, 95),
        ("kernel", "other", "input pipeline/MemcpyH2D", "MemcpyH2D", 0, 9),
    ]
    events = read_raw(tmp_path).events
    assert set(events.device) == {"CPU", "GPU:0"}


def test_gpus_stay_apart(tmp_path):
    planes = [
        Plane(f"/device:GPU:{i}").event("Stream #1", "gemm", 0, 10 + i, tf_op="a/b:MatMul") for i in (0, 1)
    ]
    write_space(tmp_path / "h.xplane.pb", *planes)
    events = read_trace([tmp_path / "h.xplane.pb"]).events
    assert list(events.device) == ["GPU:0", "GPU:1"]
    assert len(set(events.lane)) == 2


# Importing


def test_steps_are_marked_ranges_or_calls_of_functions(tmp_path):
    def imported(**stats):
        plane = Plane(HOST).op(POOL, "a/Mul", "Mul", 0, 300)
        for start in (0, 100, 200):
            plane.event(PYTHON, "train", start, start + 90, **stats)
            plane.event(PYTHON, "inner", start + 5, start + 50, **stats)
        return read_trace([write_space(tmp_path / "h.xplane.pb", plane)])

    assert (imported(step_num=3).steps.start_ns - EPOCH_NS).tolist() == [0, 100, 200]
    assert (imported(tf_function_call="notTraced").steps.end_ns - EPOCH_NS).tolist() == [90, 190, 290]
    assert len(imported().steps) == 0


def test_without_graphs_the_scopes_stay_and_it_says_so(tmp_path):
    plane = Plane(HOST).op(POOL, "StatefulPartitionedCall/m_1/dense_1/MatMul", "MatMul", 0, 9)
    imported = read_trace([write_space(tmp_path / "h.xplane.pb", plane)])
    assert list(imported.events.name) == ["m_1/dense_1/MatMul"]
    assert any("dense becomes dense_1" in note for note in imported.notes)


def test_a_profile_and_a_timeline_are_not_one_import(tmp_path):
    profile = write_space(tmp_path / "h.xplane.pb", Plane(HOST).op(POOL, "a/Mul", "Mul", 0, 9))
    other = tmp_path / "run.pb"
    other.write_bytes(
        length(1, length(1, length(1, "/device:CPU:0") + length(2, length(1, "a") + number(13, 5))))
    )
    with pytest.raises(InputError, match="different frameworks"):
        read_trace([profile, other])


def test_damage_inside_a_compiled_program_is_an_input_error(tmp_path):
    broken = length(1, length(1, "jit_f") + number(5, 7) + length(3, b"\xff\xff"))
    metadata = Plane("/host:metadata").describe("jit_f(7)", **{"Hlo Proto": broken})
    plane = Plane(HOST).event(POOL, "dot.1", 0, 5, hlo_op="dot.1", program_id=7)
    path = tmp_path / "h.xplane.pb"
    path.write_bytes(space(plane, metadata))
    with pytest.raises(InputError, match="no whole XPlane file"):
        read_trace([path])


def test_one_damaged_session_does_not_spoil_the_others(tmp_path):
    write_space(tmp_path / "0" / "h.xplane.pb", Plane(HOST).op(POOL, "a/Mul", "Mul", 0, 9))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "h.xplane.pb").touch()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "h.xplane.pb").write_bytes((tmp_path / "0" / "h.xplane.pb").read_bytes()[:-5])
    read = read_raw(tmp_path)
    assert list(read.events.name) == ["a/Mul"]
    assert [note.partition(":")[0] for note in read.notes] == ["Left out", "Left out"]
