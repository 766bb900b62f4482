"""Damage of every kind, at every byte: the right data, or an error that names the file."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.errors import DamagedRecording, NewerRecording, RecordingError
from joulemap.recording import Recording, RecordingWriter, tables
from joulemap.recording.files import beside
from joulemap.recording.folder import INFO
from joulemap.recording.sealed import write_sealed as write_parquet
from joulemap.recording.stream import TableAppender

from .recordings import SOME_INFO, SOME_PROGRAM, TABLES, everything, write_open, write_sealed

PARTS = 3


# Every byte of an open table


@pytest.fixture
def open_table(tmp_path):
    """The stem of a small open table, its bytes, its sums, and its rows after each part."""
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), ["a", "b"])
    table, stem, rows = pa.table({"name": words, "row": [0, 1, 2]}), tmp_path / "events", []
    appender = TableAppender(stem, table.schema)
    for part in range(PARTS):
        appender.append(table.set_column(1, "row", pa.array([3 * part, 3 * part + 1, 3 * part + 2])))
        rows.append(tables.read(stem, None).table.to_pylist())
    appender.close()
    return stem, beside(stem, ".arrows").read_bytes(), beside(stem, ".sums").read_bytes(), rows


def found(stem):
    contents = tables.read(stem, None)
    return contents, contents.table.to_pylist() if contents.table is not None else []


def test_data_cut_at_every_byte(open_table):
    """Shorter than was promised: damage; what precedes the cut can still be read."""
    stem, data, sums, rows = open_table
    path = beside(stem, ".arrows")
    ends = [int(line.split()[1]) for line in sums.decode().splitlines()[1:]]
    for size in range(len(data) - 1, -1, -1):
        os.truncate(path, size)
        contents, table = found(stem)
        assert f"{path} is damaged: it has {size:,} bytes" in contents.damage
        whole = sum(end <= size for end in ends)
        assert table == (rows[whole - 1] if whole else [])
        assert f"{len(table)} of its 9 rows" in contents.damage


def test_sums_cut_at_every_byte(open_table):
    """What a writer killed between the data and its promise leaves behind: no damage, and a note."""
    stem, _, sums, rows = open_table
    path = beside(stem, ".sums")
    for size in range(len(sums) - 1, -1, -1):
        os.truncate(path, size)
        contents, table = found(stem)
        assert contents.damage == ""
        assert str(beside(stem, ".arrows")) in contents.cut_off
        whole = sums[:size].count(b"\n") - 1
        assert table == (rows[whole - 1] if whole > 0 else [])


def test_killed_at_every_byte(open_table):
    """All states that a killed writer can leave: a prefix of the data, then of the promise for it."""
    stem, data, sums, rows = open_table
    arrows, path = beside(stem, ".arrows"), beside(stem, ".sums")
    lines = sums.splitlines(keepends=True)
    promised = len(lines[0])
    start = int(lines[0].split()[1])
    for part, line in enumerate(lines[1:]):
        end = int(line.split()[1])
        states = [(size, promised) for size in range(start, end)]
        states += [(end, promised + size) for size in range(len(line))]
        for data_size, sums_size in states:
            arrows.write_bytes(data[:data_size])
            path.write_bytes(sums[:sums_size])
            contents, table = found(stem)
            assert contents.damage == ""
            assert table == (rows[part - 1] if part else [])
        start, promised = end, promised + len(line)


@pytest.mark.parametrize("suffix", [".arrows", ".sums"])
def test_every_byte_flipped(open_table, suffix):
    stem, data, sums, rows = open_table
    path, content = beside(stem, suffix), data if suffix == ".arrows" else sums
    masks = np.random.default_rng(3).integers(1, 256, len(content)).tolist()
    for position, mask in enumerate(masks):
        flipped = bytearray(content)
        flipped[position] ^= mask
        path.write_bytes(flipped)
        contents, table = found(stem)
        assert str(stem) in contents.damage, position
        kept = {row["row"] // 3 for row in table}
        assert table == [row for row in rows[-1] if row["row"] // 3 in kept], position
        broken_line = suffix == ".sums" and content[position] == ord("\n")  # takes its neighbour with it
        assert len(kept) >= PARTS - 1 - broken_line or not table, position


def test_lines_twice_or_out_of_order_count_once(open_table):
    stem, _, sums, rows = open_table
    lines = sums.splitlines(keepends=True)
    for order in ([0, 1, 2, 2, 3], [0, 1, 2, 3, 1], [0, 2, 1, 3], [0, 1, 3], [0, 0, 1, 2, 3]):
        beside(stem, ".sums").write_bytes(b"".join(lines[number] for number in order))
        contents, table = found(stem)
        assert contents.damage
        assert all(table.count(row) == rows[-1].count(row) for row in table)


# Every byte of a sealed table, and of recording.json


def test_every_byte_of_a_sealed_table(tmp_path):
    table, stem = pa.table({"energy_j": [1.0, 2.0], "gap": [True, False]}), tmp_path / "power"
    parts = write_parquet(stem, table.schema, [table.slice(0, 1), table.slice(1, 1)])
    path = beside(stem, ".parquet")
    content = path.read_bytes()
    for position in range(len(content)):
        for damaged in (harmed(content, "flip", position, 0x21), content[:position]):
            path.write_bytes(damaged)
            contents = tables.read(stem, parts)
            assert f"{path} is damaged" in contents.damage
            if contents.table is not None:
                assert contents.table.to_pylist() in ([row] for row in table.to_pylist())
    path.write_bytes(content + b"more")
    contents = tables.read(stem, parts)
    assert "is damaged" in contents.damage
    assert contents.table == table


def test_every_byte_of_recording_json(tmp_path):
    folder = tmp_path / "r"
    with RecordingWriter.create(folder, SOME_INFO) as writer:
        writer.put_program(SOME_PROGRAM)
    expected, path = Recording.open(folder).info, folder / INFO
    content = path.read_bytes()
    for position in range(len(content)):
        for damaged in (harmed(content, "flip", position, 0x04), content[:position]):
            path.write_bytes(damaged)
            error = open_error(folder)
            assert error is None or str(path) in error.message
            assert error or Recording.open(folder).info == expected
            assert Recording.open(folder, salvage=True).info == expected


def open_error(folder):
    try:
        Recording.open(folder)
    except (DamagedRecording, NewerRecording) as error:
        return error
    return None


# Any harm to any file of a recording


@st.composite
def harms(draw):
    """What to do, to which file, at which byte (both modulo what there is), and how much of it."""
    kind = draw(st.sampled_from(["flip", "flip", "truncate", "zero", "append", "remove", "swap"]))
    return kind, draw(st.integers(0, 99)), draw(st.integers(0, 99_999)), draw(st.integers(1, 255))


def harmed(content, kind, where, mask):
    """The bytes after the harm."""
    if not content:
        return bytes([mask])
    position = where % len(content)
    if kind == "flip":
        return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]
    if kind == "zero":
        return content[:position] + bytes(min(mask, len(content) - position)) + content[position + mask :]
    if kind == "swap":
        return content[position:] + content[:position]
    return content[:position] if kind == "truncate" else content + bytes([mask] * mask)


def harm(folder, kind, which, where, mask):
    """Do it, and return the file that suffered."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[which % len(files)]
    if kind == "remove":
        path.unlink()
    else:
        path.write_bytes(harmed(path.read_bytes(), kind, where, mask))
    return path


def table_of(path, folder):
    """Which of the tables a file belongs to; none for recording.json."""
    name = path.relative_to(folder).parts[0].split(".")[0]
    return {"process": "shares", "recording": None}.get(name, name)


def names_it(message, path):
    """The file itself, or the other half of an open table."""
    return str(path.with_suffix("")) in message


class Original:
    """A recording before any harm, and what it holds."""

    def __init__(self, path):
        self.path = path
        self.content = everything(Recording.open(path))
        self.is_open = (path / "events.arrows").exists()


@pytest.fixture(scope="module", params=[write_open, write_sealed])
def original(request, tmp_path_factory):
    return Original(request.param(tmp_path_factory.mktemp("original") / "r"))


@settings(max_examples=120, deadline=None)
@given(harm_done=harms())
def test_any_harm(original, tmp_path_factory, harm_done):
    check_harm(original, tmp_path_factory.mktemp("harmed") / "r", [harm_done])


@settings(max_examples=60, deadline=None)
@given(harms_done=st.lists(harms(), min_size=2, max_size=5))
def test_many_harms(original, tmp_path_factory, harms_done):
    check_harm(original, tmp_path_factory.mktemp("harmed") / "r", harms_done)


def check_harm(original, folder, harms_done):
    shutil.copytree(original.path, folder)
    paths = [harm(folder, *one) for one in harms_done]
    check_strict(original, folder, paths)
    check_salvage(original, folder, paths)
    shutil.rmtree(folder)


def read_everything(folder, salvage):
    """The content and the notes, or the error."""
    try:
        recording = Recording.open(folder, salvage)
        return everything(recording), recording.notes, None
    except RecordingError as error:
        return None, [], error


def check_strict(original, folder, paths):
    content, notes, error = read_everything(folder, salvage=False)
    if error is not None:
        assert isinstance(error, (DamagedRecording, NewerRecording))
        assert any(names_it(error.message, path) for path in paths), error
        assert error.hint
        return
    for name in TABLES:
        if content[name] != original.content[name]:
            # Only an open table may be shorter than it was, and only where that looks like a kill.
            assert original.is_open
            assert any(path.suffix == ".sums" for path in paths if table_of(path, folder) == name)
            assert any(" cut off" in note or "holds nothing yet" in note for note in notes)


def check_salvage(original, folder, paths):
    content, notes, error = read_everything(folder, salvage=True)
    harmed_tables = {table_of(path, folder) for path in paths}
    if error is not None:
        assert isinstance(error, NewerRecording)
        assert None in harmed_tables
        return
    both_gone = sum(table_of(path, folder) is None for path in paths) > 1
    for name in TABLES:
        if name not in harmed_tables and not both_gone:
            assert content[name] == original.content[name]
    assert notes or content == original.content
