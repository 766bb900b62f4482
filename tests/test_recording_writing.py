"""Who may write a recording, what and when; the rest is refused in words that help."""

import subprocess
import sys

import pyarrow as pa
import pytest

from joulemap.errors import InputError, RecordingError
from joulemap.recording import Recording, RecordingAppender, RecordingInfo, RecordingWriter
from joulemap.recording.folder import INFO

from .recordings import (
    DOMAINS,
    REPOSITORY,
    T0,
    flip,
    plain,
    some_events,
    some_power,
    some_steps,
    write_open,
    write_sealed,
)


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
            "from tests.recordings import some_power\n"
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
from tests.recordings import some_events
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
