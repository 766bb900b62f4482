"""What a session on a GPU leaves behind, with events as Kineto gives them."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from joulemap.frameworks.adapter import Asynchronous
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.extract import write_events
from joulemap.frameworks.torch.raw import read_raw
from joulemap.frameworks.watch import Watch


@dataclass
class Event:
    """One of Kineto's, as far as it is asked."""

    its_name: str
    its_category: str
    start: int
    length: int
    resource: int = 100
    correlation: int = 0
    linked: int = 0
    gpu: int = 0
    sequence: int = -1
    forward_thread: int = 0
    thread: int = 1

    def name(self) -> str:
        return self.its_name

    def activity_type(self) -> str:
        return self.its_category

    def start_ns(self) -> int:
        return 1_700_000_000_000_000_000 + self.start

    def duration_ns(self) -> int:
        return self.length

    def device_resource_id(self) -> int:
        return self.resource

    def start_thread_id(self) -> int:
        return self.thread

    def fwd_thread_id(self) -> int:
        return self.forward_thread

    def sequence_nr(self) -> int:
        return self.sequence

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_index(self) -> int:
        return self.gpu


STEP = [
    Event("aten::copy_", "cpu_op", 0, 90, correlation=1),
    Event("cudaMemcpyAsync", "cuda_runtime", 10, 20, correlation=901, linked=1),
    Event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 40, 40, 7, 901, 1),
    Event("M:1:encoder", "cpu_op", 100, 100, correlation=2),
    Event("aten::addmm", "cpu_op", 110, 50, correlation=3, sequence=5),
    Event("cudaLaunchKernel", "cuda_runtime", 120, 10, correlation=902, linked=3),
    Event("void gemm<float>(float*)", "kernel", 300, 50, 7, 902, 3, gpu=1),
    Event("M:1:encoder", "gpu_user_annotation", 300, 50, 7, 0, 2, gpu=1),
    Event("AddmmBackward0", "cpu_op", 210, 50, 200, 4, sequence=5, forward_thread=1, thread=2),
    Event("cudaLaunchKernel", "cuda_runtime", 220, 10, 200, 903, 4, thread=2),
    Event("void gemm<float>(float*)", "kernel", 360, 50, 8, 903, 4),
    Event("c10d::allreduce_", "cpu_op", 270, 20, 200, 5, thread=2),
    Event("ncclDevKernel_AllReduce_Sum_f32(ncclDevKernelArgsStorage<4096ul>)", "kernel", 420, 90, 20, 904, 5),
    Event("M:1:head", "cpu_op", 600, 100, correlation=6),
    Event("cudaGraphLaunch", "cuda_runtime", 620, 10, correlation=905),
    Event("vectorized_layer_norm_kernel", "kernel", 700, 30, 7, 905),
]


def kernels(folder: Path) -> dict[str, tuple[str, str, str]]:
    events = read_raw(folder).events
    assert events.lane is not None
    rows = zip(events.name, events.phase, events.device, events.lane, events.kind, strict=True)
    return {name: (phase, device, lane) for name, phase, device, lane, kind in rows if kind == "kernel"}


def test_kernels_belong_to_what_launched_them(tmp_path: Path) -> None:
    write_events(STEP, tmp_path, ["", "Net"])
    found = kernels(tmp_path)
    assert found.pop("encoder/AddmmBackward0") == ("backward", "GPU:0", "stream 8")
    assert found == {
        "input pipeline/Memcpy HtoD": ("other", "GPU:0", "stream 7"),
        "encoder/addmm": ("forward", "GPU:1", "stream 7"),
        "communication/ncclDevKernel_AllReduce_Sum_f32": ("other", "GPU:0", "stream 20"),
        "head/vectorized_layer_norm_kernel": ("forward", "GPU:0", "stream 7"),
    }


def test_what_is_launched_while_something_is_compiled_is_compilation(tmp_path: Path) -> None:
    """The GPU may still be at what was called before, and does later what is called meanwhile."""
    write_events(STEP, tmp_path, ["", "Net"])
    begin_ns, end_ns = (Event("", "", at, 0).start_ns() for at in (200, 500))
    events = read_raw(tmp_path, None, [(begin_ns, end_ns)]).events
    found = sorted(zip(events.start_ns - begin_ns + 200, events.name, events.device, strict=True))
    assert [one for one in found if one[2] != "CPU"] == [
        (40, "input pipeline/Memcpy HtoD", "GPU:0"),
        (300, "encoder/addmm", "GPU:1"),
        (360, "(compilation)", "GPU:0"),
        (420, "(compilation)", "GPU:0"),
        (700, "head/vectorized_layer_norm_kernel", "GPU:0"),
    ]
    assert all(begins < 200 or begins >= 500 for begins, _, device in found if device == "CPU")


def test_copies_to_a_gpu_feed_it_on_both_sides(tmp_path: Path) -> None:
    """Outside of modules; and what has the GPU compute as well, such as another type, is no copy alone."""
    copies = [
        Event("aten::to", "cpu_op", 0, 90, correlation=1, sequence=3),
        Event("aten::_to_copy", "cpu_op", 5, 80, correlation=2),
        Event("aten::empty_strided", "cpu_op", 10, 5, correlation=3),
        Event("aten::copy_", "cpu_op", 20, 60, correlation=4),
        Event("cudaMemcpyAsync", "cuda_runtime", 30, 10, correlation=901, linked=4),
        Event("cudaStreamSynchronize", "cuda_runtime", 50, 20, correlation=902, linked=4),
        Event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 40, 40, 7, 901, 4),
        Event("aten::copy_", "cpu_op", 100, 90, correlation=5),
        Event("aten::copy_", "cpu_op", 110, 20, correlation=6),
        Event("cudaMemcpyAsync", "cuda_runtime", 115, 10, correlation=903, linked=6),
        Event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 130, 10, 7, 903, 6),
        Event("cudaLaunchKernel", "cuda_runtime", 150, 10, correlation=904, linked=5),
        Event("void elementwise<float>(float*)", "kernel", 160, 10, 7, 904, 5),
        Event("M:1:encoder", "cpu_op", 200, 100, correlation=7),
        Event("aten::copy_", "cpu_op", 210, 50, correlation=8),
        Event("cudaMemcpyAsync", "cuda_runtime", 220, 10, correlation=905, linked=8),
        Event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 230, 10, 7, 905, 8),
        Event("aten::copy_", "cpu_op", 310, 50, correlation=9),
        Event("cudaMemcpyAsync", "cuda_runtime", 320, 10, correlation=906, linked=9),
        Event("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", 330, 10, 7, 906, 9),
    ]
    write_events(copies, tmp_path, ["", "Net"])
    events = read_raw(tmp_path).events
    assert Counter(zip(events.device, events.name, events.phase, strict=True)) == {
        ("CPU", "input pipeline/to", "other"): 1,
        ("CPU", "input pipeline/_to_copy", "other"): 1,
        ("CPU", "input pipeline/empty_strided", "other"): 1,
        ("CPU", "input pipeline/copy_", "other"): 2,
        ("CPU", "input pipeline/copy_/cudaMemcpyAsync", "other"): 2,
        ("CPU", "input pipeline/copy_/cudaStreamSynchronize", "other"): 1,
        ("GPU:0", "input pipeline/Memcpy HtoD", "other"): 2,
        ("CPU", "(unnamed)/copy_", "other"): 2,
        ("CPU", "(unnamed)/copy_/cudaLaunchKernel", "other"): 1,
        ("CPU", "(unnamed)/copy_/cudaMemcpyAsync", "other"): 1,
        ("GPU:0", "(unnamed)/copy_", "other"): 2,
        ("CPU", "encoder/(python)", "forward"): 1,
        ("CPU", "encoder/copy_", "forward"): 1,
        ("CPU", "encoder/copy_/cudaMemcpyAsync", "forward"): 1,
        ("GPU:0", "encoder/copy_", "forward"): 1,
    }


def test_gradients_of_gradients_count_on_the_thread_that_took_the_first(tmp_path: Path) -> None:
    """Which has numbers of its own: those of the forward pass are another thread's."""
    penalty = [
        Event("M:1:encoder", "cpu_op", 0, 40, correlation=1),
        Event("aten::addmm", "cpu_op", 10, 20, correlation=2, sequence=8),
        Event("M:1:head", "cpu_op", 50, 40, correlation=3),
        Event("aten::addmm", "cpu_op", 60, 20, correlation=4, sequence=9),
        Event("AddmmBackward0", "cpu_op", 110, 30, 200, 5, sequence=9, forward_thread=1, thread=2),
        Event("aten::mm", "cpu_op", 120, 10, 200, 6, sequence=7, thread=2),
        Event("AddmmBackward0", "cpu_op", 150, 30, 200, 7, sequence=8, forward_thread=1, thread=2),
        Event("aten::mm", "cpu_op", 160, 10, 200, 8, sequence=8, thread=2),
        Event("MmBackward0", "cpu_op", 210, 30, 200, 9, sequence=8, forward_thread=2, thread=2),
        Event("encodes", "kernel", 220, 10, 7, 901, 9),
        Event("MmBackward0", "cpu_op", 250, 30, 200, 10, sequence=7, forward_thread=2, thread=2),
        Event("heads", "kernel", 260, 10, 7, 902, 10),
    ]
    write_events(penalty, tmp_path, ["", "Net"])
    assert kernels(tmp_path) == {
        "encoder/MmBackward0": ("backward", "GPU:0", "stream 7"),
        "head/MmBackward0": ("backward", "GPU:0", "stream 7"),
    }


def test_graphs_that_are_replayed_are_noted(tmp_path: Path) -> None:
    write_events(STEP, tmp_path, ["", "Net"])
    [note] = read_raw(tmp_path).notes
    assert note.startswith("1 kernels are from CUDA graphs, which do not keep their layers")


def test_a_graph_that_is_replayed_outside_every_module_is_named(tmp_path: Path) -> None:
    """In a program that has modules, and in one that has none."""
    outside = [
        Event("cudaGraphLaunch", "cuda_runtime", 820, 10, correlation=906),
        Event("void gemm<float>(float*)", "kernel", 900, 50, 7, 906),
        Event("cuGraphLaunch", "cuda_driver", 960, 10, correlation=907),
        Event("triton_poi_fused_0", "kernel", 980, 10, 7, 907),
    ]
    for folder, before in (("with", STEP), ("without", [])):
        (tmp_path / folder).mkdir()
        write_events([*before, *outside], tmp_path / folder, ["", "Net"])
        found = kernels(tmp_path / folder)
        assert found["CUDA graph/gemm"] == ("other", "GPU:0", "stream 7")
        assert found["CUDA graph/triton_poi_fused_0"] == ("other", "GPU:0", "stream 7")
        assert not any(name.startswith("(unnamed)") for name in found)


def test_a_graph_inside_a_compiled_region_stays_there(tmp_path: Path) -> None:
    replay = [
        Event("M:1:", "cpu_op", 0, 100, correlation=1),
        Event("Torch-Compiled Region: 0/0", "user_annotation", 10, 80, correlation=2),
        Event("cudaGraphLaunch", "cuda_runtime", 20, 10, correlation=901),
        Event("triton_poi_fused_0", "kernel", 60, 10, 7, 901),
    ]
    write_events(replay, tmp_path, ["", "Net"])
    assert kernels(tmp_path) == {"compiled region 0/triton_poi_fused_0": ("forward", "GPU:0", "stream 7")}


def test_the_tracer_is_taken_out_and_no_child_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    from joulemap.frameworks.torch.residue import Residue

    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(os, "putenv", lambda *args: said.append(args))
    monkeypatch.setattr(os, "unsetenv", lambda *args: said.append(args))
    monkeypatch.setattr("joulemap.frameworks.torch.gpus.wait", lambda: None)
    watch = Watch("PyTorch")
    residue = Residue(watch, Patches())
    residue.step_ended()
    residue.session_begins()
    residue.session_ended()
    assert said == [("TEARDOWN_CUPTI", "1")]
    residue.step_ended()
    residue.step_ended()
    assert said == [("TEARDOWN_CUPTI", "1"), ("TEARDOWN_CUPTI",)]
    assert "TEARDOWN_CUPTI" not in os.environ


def test_the_programs_own_word_on_the_tracer_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    from joulemap.frameworks.torch.residue import Residue

    monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    residue = Residue(Watch("PyTorch"), Patches())
    residue.session_begins()
    residue.clear()
    assert os.environ["TEARDOWN_CUPTI"] == "0"


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_what_a_gpu_had_still_to_do_is_no_time_of_the_tracer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that takes a while, of which there is nothing but the waiting."""
    pytest.importorskip("torch", reason="needs PyTorch")
    from tests.torch_live import attached, session

    waits = [0.05]
    monkeypatch.setattr("joulemap.frameworks.torch.gpus.in_use", lambda: True)
    monkeypatch.setattr(
        "joulemap.frameworks.torch.gpus.wait", lambda: time.sleep(waits.pop() if waits else 0)
    )
    with attached(tmp_path) as (adapter, _):
        assert isinstance(adapter, Asynchronous)
        with session(adapter, tmp_path):
            assert adapter.waited_s >= 0.05
        monkeypatch.setattr("joulemap.frameworks.torch.gpus.in_use", lambda: False)
        with session(adapter, tmp_path, 1):
            assert adapter.waited_s == 0.0
