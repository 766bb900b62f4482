"""What goes into a recording comes out again."""

import dataclasses
import json
import tracemalloc

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.errors import NewerRecording, RecordingError
from joulemap.processes import ProcessShares
from joulemap.program import Program
from joulemap.recording import Recording, RecordingInfo, RecordingWriter, stream
from joulemap.recording.columns import shares_from
from joulemap.recording.folder import BACKUP, INFO, file_name
from joulemap.traces import PowerTrace

from .recordings import (
    DOMAINS,
    SOME_INFO,
    SOME_PROGRAM,
    T0,
    everything,
    plain,
    some_events,
    some_power,
    some_shares,
    some_steps,
    write_open,
    write_sealed,
)


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

    @pytest.mark.parametrize("how", ["append", "put"])
    def test_without_signatures(self, tmp_path, how):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            getattr(writer, f"{how}_events")(dataclasses.replace(some_events(), signature=None))
        assert Recording.open(tmp_path / "r").events().signature is None
        assert "signature" not in pq.read_schema(tmp_path / "r" / "events.parquet").names

    def test_shares_of_before_anything_was_known_of_what_loads_data(self, tmp_path):
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            writer.put_shares(some_shares())
        (path,) = (tmp_path / "r" / "process").iterdir()
        before = pq.read_table(path).drop_columns(["loading"])
        assert shares_from(before).loading.tolist() == [0.0] * 5
        assert shares_from(before).share.tolist() == some_shares().share.tolist()

    def test_many_parts_are_one_trace(self, tmp_path):
        whole = some_events(1000)
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            for row in range(0, 1000, 10):
                writer.append_events(whole.take(slice(row, row + 10)))
            before = plain(Recording.open(tmp_path / "r").events())
        assert plain(whole) == before == plain(Recording.open(tmp_path / "r").events())

    @pytest.mark.parametrize("how", ["append", "put"])
    def test_many_row_groups_are_one_trace(self, tmp_path, how, monkeypatch):
        monkeypatch.setattr(stream, "ROWS_PER_GROUP", 7)
        with RecordingWriter.create(tmp_path / "r", RecordingInfo()) as writer:
            getattr(writer, f"{how}_events")(some_events(100))
            getattr(writer, f"{how}_power")(some_power(rows=50))
            opened = everything(Recording.open(tmp_path / "r"))
        assert pq.ParquetFile(tmp_path / "r" / "events.parquet").num_row_groups == 15
        assert opened == everything(Recording.open(tmp_path / "r"))
        assert opened["events"] == plain(some_events(100))
        assert opened["power"] == [plain(some_power(rows=50))]

    @settings(max_examples=10, deadline=None)
    @given(st.lists(st.text(), min_size=1, max_size=20))
    def test_any_text(self, tmp_path_factory, words):
        path = tmp_path_factory.mktemp("text") / "r"
        with RecordingWriter.create(path, RecordingInfo(command=words)) as writer:
            writer.put_events(some_events(50, names=words))
        assert plain(Recording.open(path).events()) == plain(some_events(50, names=words))
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
        labels = {"name", "device", "lane", "kind", "op", "phase", "signature"}
        assert labels | {"start_ns", "end_ns", "step"} == set(events.column_names)

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
