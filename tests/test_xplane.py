"""XPlane files: the format, pool tasks, compiled programs; on files made here and on real ones."""

from pathlib import Path

import numpy as np
import pytest

from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.frameworks.nesting import Forest
from joulemap.frameworks.tensorflow.frames import Frames
from joulemap.frameworks.tensorflow.roles import RECORD
from joulemap.frameworks.xplane import pool
from joulemap.frameworks.xplane.events import Line
from joulemap.frameworks.xplane.hlo import Module
from joulemap.frameworks.xplane.pool import NONE, Spans
from joulemap.frameworks.xplane.space import GPU, HOST, is_space, read_space
from tests.messages import Plane, computation, instruction, length, module, number, space, write_space

H200 = Path(__file__).parents[2] / "shared" / "data" / "h200"
START_NS = 1_794_700_000_000_000_000


def small():
    plane = Plane(HOST).describe("described", hlo_module="jit_step")
    plane.event("python", "first", 10, 20, step_num=3, tf_op="a/b:MatMul")
    plane.event("python", "described", 30, 30)
    plane.event("pool", "first", 5, 2_000_000_000_000, big=(1 << 63) - 1, negative=-7)
    return plane


def test_events_lines_names_and_times(tmp_path):
    read = read_space(write_space(tmp_path / "x.xplane.pb", small()))
    events = read.events[HOST]
    assert events.lines == (Line(1, "python"), Line(2, "pool"))
    assert list(events.name) == ["first", "described", "first"]
    assert events.line.tolist() == [0, 0, 1]
    assert (events.start_ns - START_NS).tolist() == [10, 30, 5]
    assert (events.end_ns - START_NS).tolist() == [20, 30, 2_000_000_000_000]


def test_a_profile_of_nothing_but_remarks(tmp_path):
    plane = Plane(HOST).event("pool", RECORD, 10, 20, _p=3)
    frames = Frames.of(read_space(write_space(tmp_path / "x.xplane.pb", plane)).events[HOST])
    assert len(frames) == 0
    assert len(frames.owner) == 0


def test_stats_are_columns(tmp_path):
    events = read_space(write_space(tmp_path / "x.xplane.pb", small())).events[HOST]
    assert events.numbers("step_num", -1).tolist() == [3, -1, -1]
    assert events.numbers("big").tolist() == [0, 0, (1 << 63) - 1]
    assert events.numbers("negative").tolist() == [0, 0, -7]
    assert list(events.texts("tf_op")) == ["a/b:MatMul", "", ""]
    assert list(events.texts("hlo_module")) == ["", "jit_step", ""]  # said once for all events of that name
    assert events.has("step_num").tolist() == [True, False, False]
    assert not events.has("nobody has this").any()


def test_texts_may_be_references(tmp_path):
    """A value that repeats is kept once, among the names of the stats."""
    stat = number(1, 1) + number(7, 2)
    event = number(1, 9) + number(2, 0) + number(3, 1000) + length(4, stat)
    line = length(2, "python") + length(4, event)
    names = b"".join(
        length(5, number(1, i) + length(2, number(1, i) + length(2, word)))
        for i, word in ((1, "tf_op"), (2, "a:B"))
    )
    plane = length(2, HOST) + length(3, line) + names
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(length(1, plane))
    events = read_space(path).events[HOST]
    assert list(events.texts("tf_op")) == ["a:B"]
    assert list(events.name) == [""]  # the event's own name is in no table
    assert events.end_ns.tolist() == [1]  # no start is noted: times count from the profile's own zero


def test_old_files_count_from_1970(tmp_path):
    line = length(2, "python") + number(3, START_NS) + length(4, number(1, 1) + number(2, 5000))
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(length(1, length(2, HOST) + length(3, line)) + space())
    assert read_space(path).events[HOST].start_ns.tolist() == [START_NS + 5]


def test_progress_reaches_the_end(tmp_path):
    said = []
    read_space(write_space(tmp_path / "x.xplane.pb", small()), said.append)
    assert said == sorted(said)
    assert said[-1] == 1.0


def test_an_empty_file_says_why(tmp_path):
    path = tmp_path / "x.xplane.pb"
    path.touch()
    with pytest.raises(InputError, match="is empty") as error:
        read_trace([path])
    assert "2 GB" in error.value.hint


def test_a_file_that_is_cut_off_is_refused_wherever_it_is_cut(tmp_path):
    whole = space(small())
    path = tmp_path / "x.xplane.pb"
    whole_planes = {len(space(small())) - len(length(1, b"")) + 2, *_borders(whole)}
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        if cut not in whole_planes:
            with pytest.raises(InputError, match="no whole XPlane file"):
                read_space(path)


def _borders(data):
    from joulemap.frameworks import wire

    return [field.end for field in wire.fields(data)]


def test_flipped_bytes_are_refused_or_read_but_never_crash(tmp_path):
    whole = bytearray(space(small()))
    path = tmp_path / "x.xplane.pb"
    chance = np.random.default_rng(5)
    refused = 0
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[int(chance.integers(len(whole)))] ^= 1 << int(chance.integers(8))
        path.write_bytes(flipped)
        try:
            read_trace([path])
        except InputError:
            refused += 1
    assert 0 < refused < 300


def test_a_profile_is_told_by_its_content():
    assert is_space(space(small())[:100])
    for other in (b"", b"\n", b'{"traceEvents": []}', b'\n{"traceEvents"', b"\x1f\x8b\x08", b"step_stats {"):
        assert not is_space(other)


def test_a_folder_stands_for_the_profiles_in_it(tmp_path):
    for name, shift in (("2026_01", 0), ("2026_02", 10**9)):
        plane = Plane(HOST).op("python", "a/MatMul", "MatMul", 0, 10)
        write_space(tmp_path / "plugins" / "profile" / name / "h.xplane.pb", plane, start_ns=START_NS + shift)
    events = read_trace([tmp_path]).events
    assert list(events.name) == ["a/MatMul"] * 2
    assert len(set(events.lane)) == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"no \*\.xplane\.pb"):
        read_trace([empty])


# Tasks of pools


def paired(marks):
    """(line, time, 'B' or 'E', number) -> (line, start, end, number)"""
    columns = list(zip(*marks, strict=True))
    begins = np.array([mark == "B" for mark in columns[2]])
    found = pool.tasks(np.array(columns[0], np.int32), np.array(columns[1]), begins, np.array(columns[3]))
    spans = found.spans
    return sorted(
        zip(
            spans.line.tolist(),
            spans.start_ns.tolist(),
            spans.end_ns.tolist(),
            found.number.tolist(),
            strict=True,
        )
    )


def test_tasks_are_paired_line_by_line():
    marks = [
        (0, 5, "B", 1),
        (1, 6, "B", 2),
        (0, 9, "E", -1),
        (1, 8, "E", -1),
        (0, 9, "B", 3),
        (0, 12, "E", -1),
    ]
    assert paired(marks) == [(0, 5, 9, 1), (0, 9, 12, 3), (1, 6, 8, 2)]


def test_tasks_inside_tasks_are_paired():
    marks = [
        (0, 1, "B", 1),
        (0, 2, "B", 2),
        (0, 3, "E", -1),
        (0, 4, "B", 3),
        (0, 5, "E", -1),
        (0, 6, "E", -1),
    ]
    assert paired(marks) == [(0, 1, 6, 1), (0, 2, 3, 2), (0, 4, 5, 3)]


def test_what_the_profiles_borders_cut_is_left_out():
    marks = [
        (0, 1, "E", -1),
        (0, 2, "B", 7),
        (0, 3, "E", -1),
        (0, 4, "B", 8),
        (1, 1, "B", 9),
        (1, 2, "E", -1),
    ]
    assert paired(marks) == [(0, 2, 3, 7), (1, 1, 2, 9)]


def test_the_innermost_span_at_a_moment():
    spans = Spans(np.array([0, 0, 1], np.int32), np.array([0, 10, 0]), np.array([100, 20, 5]))
    forest = Forest.of(spans.line, spans.start_ns, spans.end_ns)
    line, moment = np.array([0, 0, 0, 0, 1, 1, 2], np.int32), np.array([5, 10, 20, 50, 3, 50, 3])
    assert pool.innermost(spans, forest, line, moment).tolist() == [0, 1, 1, 0, 2, NONE, NONE]


def test_tasks_lead_back_through_tasks():
    # row 0 is an operation; 1 was handed over in it, 2 in 1, 3 in 2; 4 from nowhere; 5 and 6 by each other
    origin = np.array([NONE, 0, 1, 2, NONE, 6, 5])
    is_task = np.array([False, True, True, True, True, True, True])
    assert pool.owners(origin, is_task).tolist() == [NONE, 0, 0, 0, NONE, NONE, NONE]


# Compiled programs


FUSED = computation(
    1,
    12,
    instruction("p", "parameter", 10),
    instruction("m", "multiply", 11, "a/mul"),
    instruction("r", "add", 12, "a/add;b/add"),
)
ROOTLESS = computation(2, 22, instruction("n", "negate", 21, "c/neg"), instruction("t", "tuple", 22))
ENTRY = computation(
    3,
    34,
    instruction("x", "parameter", 30),
    instruction("dot", "dot", 31, "d/dot", operands=[30]),
    instruction("copy", "copy", 32, operands=[31]),
    instruction("fusion", "fusion", 33, operands=[32], called=[1]),
    instruction("other", "fusion", 34, operands=[33], called=[2]),
)
PROGRAM = Module(module(FUSED, ROOTLESS, ENTRY))


def test_an_instruction_says_where_it_came_from():
    assert PROGRAM.number == 42
    assert PROGRAM.source("dot").op_name == "d/dot"
    assert PROGRAM.source("fusion").op_name == "a/add"  # the root inside it, and the first of merged names
    assert PROGRAM.source("other").op_name == "c/neg"  # the root says nothing, most of the inside does
    assert PROGRAM.source("copy") is None
    assert PROGRAM.source("nowhere") is None


def test_dataflow_goes_through_what_has_no_name():
    assert set(PROGRAM.edges()) == {("dot", "fusion"), ("fusion", "other")}


# Files of JAX on an H200


@pytest.mark.external
@pytest.mark.skipif(not H200.is_dir(), reason=f"{H200} is not there")
class TestJaxOnTheH200:
    def test_kernels_have_the_names_of_layers(self):
        imported = read_trace([H200 / "jax-ops.xplane.pb"])
        events = imported.events
        assert imported.framework == "jax"
        kernels = events.take(events.kind.codes == events.kind.code("kernel"))
        assert set(kernels.device) == {"GPU:0"}
        assert len(kernels) > 1290  # fusions of several layers are split
        named = [not name.startswith("(unnamed)") for name in kernels.name]
        long = kernels.end_ns - kernels.start_ns
        assert long[named].sum() > 0.97 * long.sum()
        for phase in ("forward", "backward"):
            layers = {
                name.split("/")[0] for name, p in zip(kernels.name, kernels.phase, strict=True) if p == phase
            }
            assert {f"layer_{i}" for i in range(6)} <= layers
        edges = set(imported.program.edges)
        assert len(edges) > 50
        assert all(source != target for source, target in edges)

    def test_kernels_of_command_buffers_find_their_names_again(self):
        imported = read_trace([H200 / "jax-commandbuffer.xplane.pb"])
        kernels = [
            n for n, kind in zip(imported.events.name, imported.events.kind, strict=True) if kind == "kernel"
        ]
        assert len(kernels) > 1260
        assert {f"layer_{i}" for i in range(6)} <= {name.split("/")[0] for name in kernels}
        assert any("CUDA graphs" in note for note in imported.notes)

    def test_streams_are_lanes(self):
        events = read_space(H200 / "jax-ops.xplane.pb").events[f"{GPU}0"]
        assert [line.name for line in events.lines] == ["Stream #14(Compute,Memset)"]
        assert len(np.unique(events.numbers("correlation_id"))) > 1000
