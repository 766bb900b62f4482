"""What goes into a recording comes out again; what cannot is refused in words that help."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap import tables
from joulemap.devices import Domain
from joulemap.errors import DamagedRecording, InputError, NewerRecording, RecordingError
from joulemap.labels import Labels
from joulemap.program import Program
from joulemap.recording import (
    BACKUP,
    INFO,
    ProcessShares,
    Recording,
    RecordingAppender,
    RecordingInfo,
    RecordingWriter,
    file_name,
)
from joulemap.traces import ClockAnchor, EventTrace, PowerTrace, Steps

REPOSITORY = Path(__file__).parents[1]
T0 = 1_790_000_000_000_000_000
ODD_NAMES = ("bert/encoder/layer_0/MatMul", "", "/", "naïve/Größe/層/🔥", 'quote"\\\n\ttab', "a" * 3000)
DOMAINS = (
    Domain("package-0", "CPU", sensor="rapl", update_period_s=0.001),
    Domain("GPU 0/1", "GPU:0", sensor="nvml", provenance="estimated"),
    Domain("GPU-0-1", "GPU:1", parent="GPU 0/1"),
    Domain("..", "CPU:1"),
    Domain("größe/層", "CPU:2"),
)


def some_events(rows=20, seed=0, lanes=True, names=ODD_NAMES):
    rng = np.random.default_rng(seed)
    start = T0 + np.cumsum(rng.integers(0, 1000, rows))
    return EventTrace.from_columns(
        name=Labels(rng.integers(0, len(names), rows, dtype=np.int32), tuple(names)),
        device=Labels(rng.integers(0, 2, rows, dtype=np.int32), ("CPU:0", "GPU:0")),
        start_ns=start,
        end_ns=start + rng.integers(0, 5000, rows),
        lane=rng.integers(0, 3, rows) if lanes else None,
        phase=Labels(rng.integers(0, 2, rows, dtype=np.int32), ("forward", "backward")),
        step=rng.integers(-1, 3, rows),
    )


def some_power(domain=DOMAINS[0], rows=10, start_ns=T0, seed=0):
    rng = np.random.default_rng(seed)
    edges = start_ns + np.concatenate(([0], np.cumsum(rng.integers(1, 1000, rows))))
    return PowerTrace(domain, edges, rng.random(rows), gap=rng.random(rows) < 0.2)


def some_steps(rows=4, start_ns=T0):
    start = start_ns + 1000 * np.arange(rows)
    labels = ["train", "test"] * rows
    return Steps.from_columns(start_ns=start, end_ns=start + 900, traced=start % 3 > 0, label=labels[:rows])


def some_shares(domain="package-0", rows=5, start_ns=T0):
    return ProcessShares.from_columns(domain, start_ns + 10 * np.arange(rows + 1), np.linspace(0, 1, rows))


SOME_PROGRAM = Program.of({"a/MatMul": "MatMul", "b/層": "Relu"}, [("a/MatMul", "b/層")])
SOME_INFO = RecordingInfo(
    command=["python", "train.py", "\udcff"],
    source="run",
    host={"name": "node1", "cores": 8},
    versions={"joulemap": "0.1"},
    created_ns=T0,
    window_ns=(T0, T0 + 10**9),
    domains=[DOMAINS[0]],
    anchors=[ClockAnchor("gpu", 1, T0, 1001, T0 + 1000)],
    rank=1,
    world_size=4,
    warnings=["slow meter"],
)


def plain(value):
    """A trace as lists and strings, to be compared."""
    if isinstance(value, Labels):
        return list(value)
    if isinstance(value, np.ndarray):
        return [str(item) for item in value.tolist()]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (EventTrace, PowerTrace, Steps, ProcessShares)):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    return value


TABLES = ("events", "power", "steps", "shares", "program")


def everything(recording):
    """All that a recording holds, table by table."""
    return {name: plain(getattr(recording, name)()) for name in TABLES}


def write_open(path, parts=3):
    """A recording whose writer is gone, with its tables still open."""
    writer = RecordingWriter.create(path, SOME_INFO)
    writer.append_events(some_events())
    for part in range(1, parts):
        writer.append_events(some_events(5, seed=part))
    for domain in DOMAINS[:2]:
        start = T0
        for part in range(parts):
            trace = some_power(domain, 4, start, seed=part)
            writer.append_power(trace)
            start = int(trace.edges_ns[-1])
    for part in range(parts):
        writer.append_steps(some_steps(2, T0 + 10_000 * part))
    writer.append_shares(some_shares())
    writer.put_program(SOME_PROGRAM)
    writer.close()
    writer._release()
    return path


def write_sealed(path):
    write_open(path)
    RecordingWriter.attach(path).finish()
    return path


def flip(path, position, mask=0x10):
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


class TestRoundTrip:
    @pytest.mark.parametrize("how", ["append", "put"])
    def test_everything(self, tmp_path, how):
        given = {
            "events": some_events(),
            "steps": some_steps(),
            "power": [some_power(domain, seed=number) for number, domain in enumerate(DOMAINS)],
            "shares": [some_shares("package-0"), some_shares("GPU 0/1")],
        }
        with RecordingWriter.create(tmp_path / "r.joulemap", SOME_INFO) as writer:
            getattr(writer, f"{how}_events")(given["events"])
            getattr(writer, f"{how}_steps")(given["steps"])
            for trace in given["power"]:
                getattr(writer, f"{how}_power")(trace)
            for shares in given["shares"]:
                getattr(writer, f"{how}_shares")(shares)
            writer.put_program(SOME_PROGRAM)
        recording = Recording.open(tmp_path / "r.joulemap")
        found = everything(recording)
        assert found["events"] == plain(given["events"])
        assert found["steps"] == plain(given["steps"])
        assert sorted(found["power"], key=repr) == sorted(plain(given["power"]), key=repr)
        assert found["shares"] == {shares.domain: plain(shares) for shares in given["shares"]}
        assert recording.program() == SOME_PROGRAM
        assert recording.notes == []
        assert {domain.name for domain in recording.info.domains} == {domain.name for domain in DOMAINS}
        assert recording.info.status == "complete"

    @pytest.mark.parametrize("how", ["append", "put"])
    def test_empty(self, tmp_path, how):
        nothing = some_events(0)
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            getattr(writer, f"{how}_events")(nothing)
            getattr(writer, f"{how}_steps")(some_steps(0))
            getattr(writer, f"{how}_power")(PowerTrace(DOMAINS[1], [], []))
            getattr(writer, f"{how}_shares")(ProcessShares.from_columns("x", [], []))
        recording = Recording.open(tmp_path / "r")
        assert len(recording.events()) == len(recording.steps()) == len(recording.shares()["x"]) == 0
        assert [(trace.domain, len(trace)) for trace in recording.power()] == [(DOMAINS[1], 0)]
        assert recording.notes == []

    def test_nothing_at_all(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()):
            pass
        recording = Recording.open(tmp_path / "r")
        assert everything(recording)["power"] == []
        assert (len(recording.events()), recording.steps(), recording.shares()) == (0, None, {})
        assert recording.program() == Program()

    @pytest.mark.parametrize("how", ["append", "put"])
    def test_without_lanes(self, tmp_path, how):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            getattr(writer, f"{how}_events")(some_events(lanes=False))
        assert Recording.open(tmp_path / "r").events().lane is None
        assert "lane" not in pq.read_schema(tmp_path / "r" / "events.parquet").names

    def test_many_parts_are_one_trace(self, tmp_path):
        whole = some_events(1000)
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            for row in range(0, 1000, 10):
                writer.append_events(whole.take(slice(row, row + 10)))
            before = plain(Recording.open(tmp_path / "r").events())
        assert plain(whole) == before == plain(Recording.open(tmp_path / "r").events())

    @pytest.mark.parametrize("how", ["append", "put"])
    def test_many_row_groups_are_one_trace(self, tmp_path, how, monkeypatch):
        monkeypatch.setattr(tables, "ROWS_PER_GROUP", 7)
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            getattr(writer, f"{how}_events")(some_events(100))
            getattr(writer, f"{how}_power")(some_power(rows=50))
            opened = everything(Recording.open(tmp_path / "r"))
        assert pq.ParquetFile(tmp_path / "r" / "events.parquet").num_row_groups == 15
        assert opened == everything(Recording.open(tmp_path / "r"))
        assert opened["events"] == plain(some_events(100))
        assert opened["power"] == [plain(some_power(rows=50))]

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.text(), min_size=1, max_size=5))
    def test_any_text(self, tmp_path_factory, words):
        path = tmp_path_factory.mktemp("text") / "r"
        with RecordingWriter.create(path, RecordingInfo(command=words)) as writer:
            writer.put_events(some_events(9, names=words))
        assert plain(Recording.open(path).events()) == plain(some_events(9, names=words))
        assert Recording.open(path).info.command == words

    def test_half_a_surrogate_pair_is_spelled_out(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.append_events(some_events(3, names=["a\ud800"]))
        assert set(Recording.open(tmp_path / "r").events().name) == {"a\\ud800"}

    def test_info(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", SOME_INFO) as writer:
            writer.warn("the meter stopped")
            writer.update(rank=2)
            writer.finish(window_ns=(T0, T0 + 5))
        expected = dataclasses.replace(
            SOME_INFO, status="complete", warnings=["slow meter", "the meter stopped"], rank=2
        )
        expected = dataclasses.replace(expected, window_ns=(T0, T0 + 5))
        assert Recording.open(tmp_path / "r").info == expected

    def test_unknown_keys_are_kept(self, tmp_path):
        info = RecordingInfo(extra={"colour": {"of": [1, "blue"]}})
        with RecordingWriter.create(tmp_path / "r", info):
            pass
        RecordingWriter.attach(tmp_path / "r").finish()
        assert Recording.open(tmp_path / "r").info.extra == {"colour": {"of": [1, "blue"]}}

    def test_a_table_of_another_kind(self, tmp_path):
        calls = pa.table({"api": ["fit", "call"], "energy_j": [1.5, 2.0]})
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.append_table("calls", calls)
            writer.append_table("calls", calls)
            writer.put_table("sites", calls)
        recording = Recording.open(tmp_path / "r")
        assert recording.table("calls").to_pylist() == 2 * calls.to_pylist()
        assert recording.table("sites") == calls
        assert recording.table("other") is None

    def test_rows_never_become_python_objects(self, tmp_path):
        rows = 200_000
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            events = some_events(rows, names=[f"op{number}" for number in range(100)])
            tracemalloc.start()
            writer.append_events(events)
            loaded = Recording.open(tmp_path / "r").events()
            writer.finish()
            loaded_again = Recording.open(tmp_path / "r").events()
            blocks = sum(stat.count for stat in tracemalloc.take_snapshot().statistics("filename"))
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert len(loaded) == len(loaded_again) == rows
        assert blocks < rows / 4
        assert peak_bytes < 300 * rows


class TestFiles:
    def test_parquet_readers_see_the_units(self, tmp_path):
        write_sealed(tmp_path / "r")
        power = pq.read_table(tmp_path / "r" / "power" / "package-0.parquet")
        assert power.column_names == ["start_ns", "end_ns", "energy_j", "gap"]
        events = pq.read_table(tmp_path / "r" / "events.parquet")
        assert {"name", "device", "start_ns", "end_ns", "lane", "kind", "op", "phase", "step"} == set(
            events.column_names
        )

    def test_a_finished_recording_holds_nothing_but_sealed_files(self, tmp_path):
        write_sealed(tmp_path / "r")
        found = {path.relative_to(tmp_path / "r").as_posix() for path in (tmp_path / "r").rglob("*.*")}
        power = {f"power/{file_name(domain.name)}.parquet" for domain in DOMAINS[:2]}
        assert found == {
            *(INFO, BACKUP, "program.json", "events.parquet", "steps.parquet", "process/package-0.parquet"),
            *power,
        }

    def test_an_open_table_is_a_plain_arrow_stream(self, tmp_path):
        write_open(tmp_path / "r")
        with pa.ipc.open_stream(tmp_path / "r" / "events.arrows") as stream:
            names = stream.read_all()["name"].to_pylist()
        assert names == list(Recording.open(tmp_path / "r").events().name)

    @settings(deadline=None)
    @given(st.sets(st.text(max_size=200), min_size=2, max_size=6))
    def test_domains_have_files_of_their_own(self, names):
        files = {file_name(name) for name in names}
        assert len(files) == len(names)
        for name in files:
            assert 0 < len(name) < 100
            assert not set(name) & set("/\\. \0")

    def test_plain_domain_names_stay_plain(self):
        assert [file_name(name) for name in ("package-0", "GPU_0", "dram-1")] == [
            "package-0",
            "GPU_0",
            "dram-1",
        ]


class TestWriting:
    def test_power_must_follow(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            first = some_power()
            writer.append_power(first)
            end = int(first.edges_ns[-1])
            for start, word in ((end + 7, "7 ns after"), (end - 7, "7 ns before")):
                with pytest.raises(InputError, match=word):
                    writer.append_power(some_power(start_ns=start))
            writer.append_power(some_power(start_ns=end))
        (trace,) = Recording.open(tmp_path / "r").power()
        assert len(trace) == 20

    def test_steps_must_follow(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.append_steps(some_steps())
            with pytest.raises(InputError, match="before the end of the last one"):
                writer.append_steps(some_steps())
            writer.append_steps(some_steps(start_ns=T0 + 10**6))

    def test_lanes_are_for_all_or_none(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.append_events(some_events(0, lanes=False))
            writer.append_events(some_events(3))
            with pytest.raises(InputError, match="columns"):
                writer.append_events(some_events(3, lanes=False))
            writer.append_events(some_events(0, lanes=False))
        assert len(Recording.open(tmp_path / "r").events()) == 3

    def test_a_table_is_written_once(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.put_events(some_events())
            writer.append_power(some_power())
            for again in (writer.put_events, writer.append_events):
                with pytest.raises(RecordingError, match="events exists already"):
                    again(some_events())
            with pytest.raises(RecordingError, match="package-0 exists already"):
                writer.put_power(some_power())
            with pytest.raises(InputError, match="cannot name a table"):
                writer.put_table("../x", pa.table({}))

    def test_what_a_failed_attempt_left_does_not_count(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            for name in ("events.parquet", "events.parquet.tmp", "recording.json.tmp"):
                (tmp_path / "r" / name).write_bytes(b"half of it")
            assert len(Recording.open(tmp_path / "r").events()) == 0
            writer.put_events(some_events())
        assert len(Recording.open(tmp_path / "r").events()) == 20

    def test_shares_are_checked(self):
        nan = float("nan")
        for edges, share in (([0, 1], [1.5]), ([0, 1], [nan]), ([1, 0], [0.5]), ([0, 1], [0.5, 0.5])):
            with pytest.raises(InputError, match="x: "):
                ProcessShares.from_columns("x", edges, share)

    def test_an_exception_leaves_an_interrupted_recording(self, tmp_path):
        def fail():
            with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
                writer.append_events(some_events())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        recording = Recording.open(tmp_path / "r")
        assert recording.info.status == "interrupted"
        assert plain(recording.events()) == plain(some_events())

    def test_finished_is_finished(self, tmp_path):
        writer = RecordingWriter.create(tmp_path / "r", RecordingInfo())
        writer.finish()
        for late in (writer.finish, lambda: writer.warn("x"), lambda: writer.append_events(some_events())):
            with pytest.raises(RecordingError, match="finished"):
                late()

    def test_another_process_adds_its_own_tables(self, tmp_path):
        code = (
            "import sys; from joulemap.recording import RecordingAppender\n"
            "from tests.test_recording import some_power\n"
            "with RecordingAppender(sys.argv[1]) as monitor: monitor.append_power(some_power())"
        )
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.append_events(some_events())
            subprocess.run([sys.executable, "-c", code, tmp_path / "r"], check=True, cwd=REPOSITORY)
        recording = Recording.open(tmp_path / "r")
        assert plain(recording.power()) == [plain(some_power())]
        assert recording.info.domains == [DOMAINS[0]]

    def test_a_table_that_another_still_writes_stays_open(self, tmp_path):
        writer = RecordingWriter.create(tmp_path / "r", RecordingInfo())
        writer.append_events(some_events())
        with RecordingAppender(tmp_path / "r") as monitor:
            first = some_power()
            monitor.append_power(first)
            with pytest.raises(RecordingError, match=r"package-0\.arrows is still being written"):
                writer.finish()
            monitor.append_power(some_power(start_ns=int(first.edges_ns[-1])))
        recording = Recording.open(tmp_path / "r")
        assert recording.info.status == "complete"
        assert len(recording.power()[0]) == 20
        assert plain(recording.events()) == plain(some_events())
        RecordingWriter.attach(tmp_path / "r").finish()
        assert (tmp_path / "r" / "power" / "package-0.parquet").exists()
        assert len(Recording.open(tmp_path / "r").power()[0]) == 20

    def test_a_forked_child_cannot_spoil_it(self, tmp_path):
        code = """
import os, sys
from joulemap.errors import RecordingError
from joulemap.recording import RecordingInfo, RecordingWriter
from tests.test_recording import some_events
with RecordingWriter.create(sys.argv[1], RecordingInfo()) as writer:
    writer.append_events(some_events())
    child = os.fork()
    if child == 0:
        for act in (lambda: writer.append_events(some_events()), writer.finish):
            try:
                act()
            except RecordingError as error:
                assert "child" in error.message, error
            else:
                sys.exit("the child was let in")
    else:
        assert os.waitpid(child, 0)[1] == 0
        writer.append_events(some_events(seed=1))
"""
        command = [sys.executable, "-W", "ignore", "-c", code, tmp_path / "r"]
        subprocess.run(command, check=True, cwd=REPOSITORY)
        assert len(Recording.open(tmp_path / "r").events()) == 40

    def test_what_is_no_json_is_refused(self, tmp_path):
        for host in ({"load": float("nan")}, {"cores": {1}}):
            with pytest.raises(InputError, match="JSON"):
                RecordingWriter.create(tmp_path / "r", RecordingInfo(host=host))

    def test_where_nothing_can_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(RecordingError, match="cannot be written: Not a directory"):
            RecordingWriter.create(tmp_path / "file" / "r", RecordingInfo())


class TestOverwriting:
    def test_a_recording_is_kept_unless_told(self, tmp_path):
        write_sealed(tmp_path / "r")
        with pytest.raises(RecordingError, match="exists"):
            RecordingWriter.create(tmp_path / "r", RecordingInfo())
        assert len(Recording.open(tmp_path / "r").events()) == 30

    @pytest.mark.parametrize("write", [write_open, write_sealed])
    def test_a_recording_is_replaced(self, tmp_path, write):
        write(tmp_path / "r")
        with RecordingWriter.create(tmp_path / "r", RecordingInfo(), overwrite=True) as writer:
            writer.append_events(some_events(2))
        recording = Recording.open(tmp_path / "r")
        assert (len(recording.events()), recording.power(), recording.steps()) == (2, [], None)
        assert not (tmp_path / "r" / "power").exists()

    def test_a_damaged_recording_is_replaced(self, tmp_path):
        write_sealed(tmp_path / "r")
        flip(tmp_path / "r" / INFO, 100)
        RecordingWriter.create(tmp_path / "r", RecordingInfo(), overwrite=True).finish()
        assert Recording.open(tmp_path / "r").info.status == "complete"

    def test_an_empty_folder_is_used(self, tmp_path):
        RecordingWriter.create(tmp_path, RecordingInfo()).finish()
        assert Recording.open(tmp_path).info.status == "complete"

    @pytest.mark.parametrize(
        "stranger", ["notes.txt", "power/notes.txt", "a/b/c.parquet", "link.parquet", "power"]
    )
    def test_what_is_not_ours_is_never_touched(self, tmp_path, stranger):
        path = tmp_path / "r"
        if stranger != "power":
            write_sealed(path)
        path.mkdir(exist_ok=True)
        target = path / stranger
        target.parent.mkdir(parents=True, exist_ok=True)
        if stranger.startswith("link"):
            target.symlink_to("/nowhere")
        else:
            target.write_text("mine")
        before = sorted(path.rglob("*"))
        with pytest.raises(RecordingError, match="not a recording"):
            RecordingWriter.create(path, RecordingInfo(), overwrite=True)
        assert sorted(path.rglob("*")) == before

    @pytest.mark.parametrize("info", [None, '{"version": 2}'])
    def test_parquet_files_alone_are_no_recording(self, tmp_path, info):
        (tmp_path / "mine.parquet").write_bytes(b"PAR1")
        if info:
            (tmp_path / INFO).write_text(info)
        with pytest.raises(RecordingError, match="not a recording"):
            RecordingWriter.create(tmp_path, RecordingInfo(), overwrite=True)
        assert (tmp_path / "mine.parquet").exists()

    def test_a_file_is_not_replaced(self, tmp_path):
        (tmp_path / "r").write_text("mine")
        with pytest.raises(RecordingError, match="not a folder"):
            RecordingWriter.create(tmp_path / "r", RecordingInfo(), overwrite=True)

    def test_not_while_it_is_written(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            for take in (
                lambda: RecordingWriter.create(tmp_path / "r", RecordingInfo(), overwrite=True),
                lambda: RecordingWriter.attach(tmp_path / "r"),
            ):
                with pytest.raises(RecordingError, match="being written by another process"):
                    take()
            writer.append_events(some_events())
        assert len(Recording.open(tmp_path / "r").events()) == 20


class TestReading:
    def test_what_is_not_a_recording(self, tmp_path):
        (tmp_path / "file").touch()
        (tmp_path / "empty").mkdir()
        for name, words in (("file", "is a file"), ("empty", "is not a recording"), ("no", "does not exist")):
            for salvage in (False, True):
                with pytest.raises(RecordingError, match=words) as caught:
                    Recording.open(tmp_path / name, salvage)
                assert str(tmp_path / name) in caught.value.message
                assert "joulemap run" in caught.value.hint
        with pytest.raises(RecordingError, match="cannot be read"):
            Recording.open(tmp_path / "file" / "below")

    @pytest.mark.parametrize("salvage", [False, True])
    def test_a_newer_format(self, tmp_path, salvage):
        write_sealed(tmp_path / "r")
        for name in (INFO, BACKUP):
            content = json.loads((tmp_path / "r" / name).read_text())
            (tmp_path / "r" / name).write_text(json.dumps({**content, "format": 3, "files": "moved"}))
        with pytest.raises(NewerRecording) as caught:
            Recording.open(tmp_path / "r", salvage)
        assert "newer joulemap (format 3; this one reads up to 1)" in caught.value.message
        assert str(tmp_path / "r") in caught.value.message
        assert "Upgrade joulemap" in caught.value.hint

    def test_an_interrupted_recording(self, tmp_path):
        write_open(tmp_path / "r")
        recording = Recording.open(tmp_path / "r")
        assert recording.info.status == "interrupted"
        (note,) = recording.notes
        assert "was not finished" in note
        opened = everything(recording)
        RecordingWriter.attach(tmp_path / "r").finish("interrupted")
        recording = Recording.open(tmp_path / "r")
        assert recording.info.status == "interrupted"
        assert everything(recording) == opened
        assert recording.notes == []

    def test_while_it_is_written_and_after(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.append_events(some_events())
            writer.append_power(some_power())
            early = Recording.open(tmp_path / "r")
            assert early.info.status == "recording"
            assert len(Recording.open(tmp_path / "r").events()) == 20
            writer.append_events(some_events(5))
        assert len(early.events()) == 25
        assert plain(early.power()) == [plain(some_power())]
        assert early.info.status == "complete"
        assert early.notes == []

    def test_tables_are_read_once(self, tmp_path):
        recording = Recording.open(write_sealed(tmp_path / "r"))
        assert recording.events() is recording.events()
        assert recording.power() is recording.power()


def damage_message(path, read):
    with pytest.raises(DamagedRecording) as caught:
        read(Recording.open(path))
    assert "--salvage" in caught.value.hint
    return caught.value.message


class TestDamage:
    def test_one_row_group_of_many(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tables, "ROWS_PER_GROUP", 10)
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.put_events(some_events(50))
            writer.put_power(some_power(rows=30))
            part = writer.info.files["events.parquet"][2]
        flip(tmp_path / "r" / "events.parquet", (part.start + part.end) // 2)
        message = damage_message(tmp_path / "r", Recording.events)
        assert "events.parquet is damaged" in message
        assert f"bytes {part.start:,} to {part.end:,}" in message
        assert "40 of its 50 rows can still be read" in message
        recording = Recording.open(tmp_path / "r", salvage=True)
        rest = np.r_[0:20, 30:50]
        assert plain(recording.events()) == plain(some_events(50).take(rest))
        assert len(recording.power()[0]) == 30
        assert recording.notes == [message]

    def test_lost_power_is_a_gap_without_energy(self, tmp_path):
        write_open(tmp_path / "r")
        before = Recording.open(tmp_path / "r").power()[0]
        sums = (tmp_path / "r" / "power" / "package-0.sums").read_text().splitlines()
        flip(tmp_path / "r" / "power" / "package-0.arrows", int(sums[2].split()[1]) - 9)
        message = damage_message(tmp_path / "r", Recording.power)
        assert "package-0.arrows is damaged" in message
        assert "8 of its 12 rows can still be read" in message
        recording = Recording.open(tmp_path / "r", salvage=True)
        trace = recording.power()[0]
        assert plain(trace.edges_ns) == plain(np.delete(before.edges_ns, [5, 6, 7]))
        assert plain(trace.energy_j) == plain(np.r_[before.energy_j[:4], 0, before.energy_j[8:]])
        assert trace.gap[4]
        assert message in recording.notes
        assert len(recording.events()) == 30

    def test_over_lost_shares_the_last_goes_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tables, "ROWS_PER_GROUP", 2)
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.put_shares(ProcessShares.from_columns("x", range(7), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
            path, parts = tmp_path / "r" / "process" / "x.parquet", writer.info.files["process/x.parquet"]
        flip(path, parts[1].start + 9)
        shares = Recording.open(tmp_path / "r", salvage=True).shares()["x"]
        assert plain(shares.edges_ns) == ["0", "1", "4", "5", "6"]
        assert plain(shares.share) == ["0.1", "0.2", "0.5", "0.6"]

    @pytest.mark.parametrize("sealed", [False, True])
    def test_steps_end_at_the_first_loss(self, tmp_path, monkeypatch, sealed):
        """Events name their step by its number: what follows a loss would have the wrong one."""
        monkeypatch.setattr(tables, "ROWS_PER_GROUP", 2)
        writer = RecordingWriter.create(tmp_path / "r", RecordingInfo())
        for part in range(3):
            writer.append_steps(some_steps(2, T0 + 10_000 * part))
        if sealed:
            writer.finish()
            path, part = tmp_path / "r" / "steps.parquet", writer.info.files["steps.parquet"][1]
        else:
            writer.close()
            writer._release()
            path = tmp_path / "r" / "steps.arrows"
            part = tables.Part.parse((tmp_path / "r" / "steps.sums").read_text().splitlines()[2])
        flip(path, part.end - 1)
        recording = Recording.open(tmp_path / "r", salvage=True)
        assert len(recording.steps()) == 2
        assert any("2 of its 6 rows can still be read" in note for note in recording.notes)

    @pytest.mark.parametrize(
        "name", ["events.parquet", "power/package-0.parquet", "program.json", "steps.parquet"]
    )
    def test_a_missing_part(self, tmp_path, name):
        write_sealed(tmp_path / "r")
        before = everything(Recording.open(tmp_path / "r"))
        (tmp_path / "r" / name).unlink()
        assert damage_message(tmp_path / "r", everything) == f"{tmp_path / 'r' / name} is missing."
        after = everything(recording := Recording.open(tmp_path / "r", salvage=True))
        assert [table for table in TABLES if before[table] != after[table]] == [
            name.split("/")[0].split(".")[0]
        ]
        assert recording.notes[0] == f"{tmp_path / 'r' / name} is missing."

    @pytest.mark.parametrize("name", ["events.arrows", "events.sums"])
    def test_half_of_an_open_table_is_missing(self, tmp_path, name):
        write_open(tmp_path / "r")
        (tmp_path / "r" / name).unlink()
        assert f"{name} is missing" in damage_message(tmp_path / "r", Recording.events)
        recording = Recording.open(tmp_path / "r", salvage=True)
        assert len(recording.events()) == 0
        assert len(recording.steps()) == 6

    def test_an_open_table_is_missing_altogether(self, tmp_path):
        write_open(tmp_path / "r")
        for path in (tmp_path / "r").glob("*/package-0.*"):
            path.unlink()
        for path in (tmp_path / "r").glob("events.*"):
            path.unlink()
        assert "events.arrows is missing" in damage_message(tmp_path / "r", Recording.events)
        assert "package-0.arrows is missing" in damage_message(tmp_path / "r", Recording.power)
        recording = Recording.open(tmp_path / "r", salvage=True)
        assert [trace.domain for trace in recording.power()] == [DOMAINS[1]]
        assert len(recording.events()) == 0

    def test_a_domain_without_readings(self, tmp_path):
        RecordingWriter.create(tmp_path / "r", SOME_INFO).finish()
        recording = Recording.open(tmp_path / "r")
        assert recording.power() == []
        assert recording.notes == [f"{tmp_path / 'r'} has no power of package-0."]

    @pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
    def test_recording_json_has_a_backup(self, tmp_path, harm):
        write_sealed(tmp_path / "r")
        before = Recording.open(tmp_path / "r")
        path = tmp_path / "r" / INFO
        if harm == "flip":
            flip(path, path.read_text().index("node1"), 1)
        elif harm == "truncate":
            os.truncate(path, 100)
        else:
            path.unlink()
        assert str(path) in damage_message(tmp_path / "r", everything)
        after = Recording.open(tmp_path / "r", salvage=True)
        assert after.info == before.info
        assert everything(after) == everything(before)
        assert str(path) in after.notes[0]

    @pytest.mark.parametrize("write", [write_open, write_sealed])
    def test_the_tables_survive_both(self, tmp_path, write):
        write(tmp_path / "r")
        before = everything(Recording.open(tmp_path / "r"))
        (tmp_path / "r" / INFO).unlink()
        (tmp_path / "r" / BACKUP).write_text("{")
        after = Recording.open(tmp_path / "r", salvage=True)
        assert everything(after) | {"power": 0} == before | {"power": 0}
        assert sorted(everything(after)["power"], key=repr) == sorted(before["power"], key=repr)
        assert after.info.status == "interrupted"
        assert str(tmp_path / "r" / INFO) in after.notes[0]
        assert str(tmp_path / "r" / BACKUP) in after.notes[1]

    def test_a_table_with_other_columns(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.put_table("events", pa.table({"name": ["a"], "start_ns": [1]}))
        assert "no proper column 'name'" in damage_message(tmp_path / "r", Recording.events)
        assert len(Recording.open(tmp_path / "r", salvage=True).events()) == 0

    def test_a_damaged_table_is_not_sealed(self, tmp_path):
        write_open(tmp_path / "r")
        path = tmp_path / "r" / "events.arrows"
        flip(path, path.stat().st_size - 1)
        with pytest.raises(DamagedRecording, match=r"events\.arrows is damaged"):
            RecordingWriter.attach(tmp_path / "r").finish("interrupted")
        assert path.exists()
        recording = Recording.open(tmp_path / "r", salvage=True)
        assert len(recording.events()) == 25
        assert recording.info.warnings[-1] in recording.notes
        assert (tmp_path / "r" / "steps.parquet").exists()

    def test_unreadable_is_damage(self, tmp_path):
        write_sealed(tmp_path / "r")
        path = tmp_path / "r" / "events.parquet"
        path.unlink()
        path.mkdir()
        assert f"{path} cannot be read" in damage_message(tmp_path / "r", Recording.events)
        shutil.rmtree(path)
