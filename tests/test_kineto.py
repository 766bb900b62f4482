"""Traces of real programs: every kernel and every gradient below its layer."""

import gzip
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.frameworks.imported import named_share
from joulemap.frameworks.kineto import KinetoColumns, trace_of
from joulemap.frameworks.kineto_names import guess_categories
from joulemap.labels import Labels

from .kineto_rows import table

DATA = Path(__file__).parent / "data"
H200 = Path(__file__).parents[2] / "shared" / "data" / "h200" / "bert-torch-events.npz"


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
