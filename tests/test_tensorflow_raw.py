"""What real TensorFlow programs leave behind, read: names, phases, workers, dataflow."""

import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from joulemap.accounting import attribute
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.frameworks.tensorflow.raw import read_raw
from joulemap.traces import PowerTrace

from .environment import uncovered

PROGRAMS = ("fit", "xla", "function", "eager", "loops", "recompute", "plain", "session")
MODULES = ("attention/query", "attention/key", "attention/value", "intermediate", "output", "norm")
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    command = [sys.executable, "-m", "tests.tensorflow_programs", str(folder), *PROGRAMS]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=uncovered(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def read(raw):
    return {program: read_raw(raw / program) for program in PROGRAMS}


def energy(trace):
    """(name, phase) -> joules of work, with a constant power shared out by the accounting."""
    events = trace.events
    start, end = events.span_ns
    power = PowerTrace(Domain("package-0", "CPU:0"), [start, end], [100.0])
    found = defaultdict(float)
    for row in attribute(events, power).to_records():
        if not row["name"].startswith("(runtime)") and row["phase"] is not None:
            found[row["name"], row["phase"]] += row["energy_j"]
    return found


def named_share(found):
    total = sum(found.values())
    return 1 - sum(joules for (name, _), joules in found.items() if name.startswith("(unnamed)")) / total


def undisturbed(trace):
    """(name, phase) -> seconds of work, were no thread kept off its core: each as quick as the quickest."""
    found = defaultdict(list)
    events = trace.events
    for name, phase, kind, length in zip(
        events.name, events.phase, events.kind, (events.end_ns - events.start_ns).tolist(), strict=True
    ):
        if kind != "runtime" and not name.startswith("(runtime)"):
            found[name, phase].append(length)
    return {key: len(lengths) * min(lengths) / 1e9 for key, lengths in found.items()}


def layers(found, phase, prefix="bert/layer_"):
    return {name.split("/")[1] for name, its_phase in found if its_phase == phase and name.startswith(prefix)}


@needs_tensorflow
class TestNames:
    @pytest.mark.parametrize("program", ["fit", "function", "loops", "recompute", "session"])
    def test_nearly_all_work_has_a_name(self, read, program):
        assert named_share(undisturbed(read[program])) > 0.97

    def test_compiled_work_has_a_name(self, read):
        assert named_share(undisturbed(read["xla"])) > 0.9

    @pytest.mark.parametrize("program", ["fit", "xla", "function"])
    def test_all_layers_are_there_in_both_passes(self, read, program):
        found = energy(read[program])
        for phase in ("forward", "backward"):
            assert layers(found, phase) == {"layer_0", "layer_1"}
        names = {name for name, _ in found}
        assert not [name for name in names if "PartitionedCall" in name or "gradient_tape" in name]
        assert not [name for name in names if "bert_1" in name or "layer_0_1" in name]

    @pytest.mark.parametrize("phase", ["forward", "backward"])
    def test_modules_have_their_own_paths(self, read, phase):
        names = {name for name, its_phase in energy(read["fit"]) if its_phase == phase}
        for layer in ("layer_0", "layer_1"):
            for module in MODULES:
                assert any(name.startswith(f"bert/{layer}/{module}/") for name in names), (layer, module)
        assert any(name.startswith("bert/predictions/") for name in names)
        assert any(name.startswith("loss/") for name in names)

    def test_the_optimizer_is_sorted_by_the_layers_it_updates(self, read):
        updates = {name for name, phase in energy(read["fit"]) if phase == "optimizer"}
        for layer in ("bert/layer_0/attention/query", "bert/layer_1/norm", "bert/embeddings"):
            assert any(name.startswith(f"adam/{layer}/") for name in updates), layer

    def test_an_optimizer_is_known_whatever_its_name(self, read):
        updates = {name for name, phase in energy(read["function"]) if phase == "optimizer"}
        assert any(name.startswith("descent/bert/layer_0/") for name in updates)

    def test_gradients_that_meet_are_the_backward_passs(self, read):
        assert ("(gradient accumulation)/AddN", "backward") in energy(read["fit"])

    def test_metrics_and_the_input_pipeline_are_apart(self, read):
        found = energy(read["fit"])
        assert any(name.startswith("(metrics)/") for name, phase in found if phase == "other")
        pipeline = {name for name, phase in found if name.startswith("input pipeline/")}
        assert any("MakeIterator" in name for name in pipeline)
        assert {phase for name, phase in found if name in pipeline} == {"other"}

    def test_loops_belong_to_their_layer(self, read):
        found = energy(read["loops"])
        cell = [(name, phase) for name, phase in found if name.startswith("rnn/lstm/lstm_cell/")]
        assert {phase for _, phase in cell} == {"forward", "backward"}
        assert not [name for name, _ in found if "/body/" in name or "lstm_1" in name]
        assert not [name for name, phase in found if phase == "recompute"]

    def test_what_is_computed_again_is_recompute(self, read):
        found = energy(read["recompute"])
        again = {name for name, phase in found if phase == "recompute"}
        for block in ("one", "two"):
            assert any(name.startswith(f"net/{block}/first/") for name in again)
            backward = {name for name, phase in found if phase == "backward"}
            assert any(name.startswith(f"net/{block}/second/") for name in backward)
        assert not [name for name in again if "head" in name]

    def test_a_program_without_layers_has_phases(self, read):
        found = {name: set() for name, _ in energy(read["plain"])}
        for name, phase in energy(read["plain"]):
            found[name].add(phase)
        assert found["(unnamed)/MatMul"] == {"forward", "recompute", "backward"}
        assert found["optimizer/AssignSubVariableOp"] == {"optimizer"}
        assert {name.split("/")[0] for name in found} <= {
            "(unnamed)",
            "loss",
            "optimizer",
            "(gradient accumulation)",
        }

    def test_transfers_are_one_line(self, read):
        for trace in read.values():
            names = {name for name in trace.events.name.words if "_send_" in name or "_Send" in name}
            assert names <= {"(runtime)/_Send"}

    def test_a_session_has_layers_gradients_and_the_optimizer(self, read):
        found = energy(read["session"])
        for i in range(3):
            assert (f"layer_{i}/MatMul", "forward") in found
            assert any(
                name.startswith(f"layer_{i}/MatMul_grad/") for name, phase in found if phase == "backward"
            )
            assert any(
                name.startswith(f"Adam/update_layer_{i}") for name, phase in found if phase == "optimizer"
            )

    def test_eager_layers_are_named_by_ranges(self, read):
        found = energy(read["eager"])
        assert any(
            name.startswith("bert/layer_1/attention/query/") for name, phase in found if phase == "forward"
        )
        assert {"forward", "backward", "optimizer"} <= {phase for _, phase in found}


@needs_tensorflow
class TestRows:
    def test_workers_carry_the_name_of_their_operation(self, read):
        events = read["fit"].events
        rows = list(zip(events.name, events.phase, events.kind, strict=True))
        operations = {(name, phase) for name, phase, kind in rows if kind == "op"}
        workers = [(name, phase) for name, phase, kind in rows if kind == "worker"]
        assert workers
        waits = {name for name, _ in workers if name.startswith("input pipeline/")}
        assert {one for one in workers if one[0] not in waits} <= operations

    def test_no_wrapper_counts_as_work(self, read):
        for trace in read.values():
            events = trace.events
            work = {n for n, kind in zip(events.name, events.kind, strict=True) if kind in ("op", "worker")}
            assert not [n for n in work if n.startswith("(runtime)") or "EagerExecute" in n or "TFE_Py" in n]

    def test_events_lie_within_their_session(self, read, raw):
        """But for what runs while it is opened and closed."""
        for program in ("fit", "eager", "session"):
            session = next((raw / program).rglob("session.json"), None)
            if session is not None:
                known, events = json.loads(session.read_text()), read[program].events
                inside = (events.start_ns >= known["start_ns"]) & (events.end_ns <= known["stop_ns"])
                assert inside.mean() > 0.99

    def test_the_dataflow_is_between_names_that_ran(self, read):
        for program in ("fit", "function", "session"):
            graph, events = read[program].program, read[program].events
            assert set(graph.operations) <= set(events.name.words)
            assert len(graph.edges) > len(graph.operations) / 2
        edges = set(read["session"].program.edges)
        assert any(a.startswith("layer_0/") and b.startswith("layer_1/") for a, b in edges)

    def test_there_are_no_steps(self, read):
        assert all(len(trace.steps) == 0 for trace in read.values())


def test_an_empty_folder_is_no_trace_but_no_error(tmp_path):
    read = read_raw(tmp_path)
    assert len(read.events) == 0
    assert read.program.operations == {}


def test_a_damaged_graph_is_refused_by_name(tmp_path):
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "0.json").write_text('{"format": 1, "name": "f", "scopes": {}, "nodes": [[1]]}')
    with pytest.raises(InputError, match=r"0\.json is no graph"):
        read_raw(tmp_path)
    (tmp_path / "graphs" / "0.json").write_text('{"format": 9}')
    with pytest.raises(InputError, match="format 9"):
        read_raw(tmp_path)
