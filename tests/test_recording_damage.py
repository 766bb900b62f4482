"""What is damaged is named, and the rest of it can be salvaged."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pytest

from joulemap.errors import DamagedRecording
from joulemap.processes import ProcessShares
from joulemap.recording import Recording, RecordingInfo, RecordingWriter, stream
from joulemap.recording.folder import BACKUP, INFO
from joulemap.recording.parts import Part

from .recordings import (
    DOMAINS,
    SOME_INFO,
    T0,
    TABLES,
    everything,
    flip,
    plain,
    some_events,
    some_power,
    some_steps,
    write_open,
    write_sealed,
)


def damage_message(path, read):
    with pytest.raises(DamagedRecording) as caught:
        read(Recording.open(path))
    assert "--salvage" in caught.value.hint
    return caught.value.message


class TestDamage:
    def test_one_row_group_of_many(self, tmp_path, monkeypatch):
        monkeypatch.setattr(stream, "ROWS_PER_GROUP", 10)
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
        monkeypatch.setattr(stream, "ROWS_PER_GROUP", 2)
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
        monkeypatch.setattr(stream, "ROWS_PER_GROUP", 2)
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
            part = Part.parse((tmp_path / "r" / "steps.sums").read_text().splitlines()[2])
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


def test_a_damaged_second_copy_is_noted_while_the_first_still_reads(tmp_path):
    path = write_sealed(tmp_path / "r")
    (path / BACKUP).write_text("{}")
    recording = Recording.open(tmp_path / "r")
    assert any("recording.backup.json" in note and "second copy" in note for note in recording.notes)
