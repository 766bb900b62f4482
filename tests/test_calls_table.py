"""The table of calls: what a program leaves on disk, and what becomes of it in the recording."""

from __future__ import annotations

import json

import numpy as np
import pytest

from joulemap.calls import store as store_module
from joulemap.calls.raw import read_calls
from joulemap.calls.store import ENDED, ENDED_AT, PAGE_SLOTS, SLOT, Full, Store
from joulemap.calls.table import Calls, Sites
from joulemap.errors import InputError
from joulemap.recorder.finish import finish
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.recording.folder import RAW

SITE = [7, "train.py", 3, 5, 3, 12, "tf.add", "main"]


def sites() -> Sites:
    return Sites.from_columns(
        site=[7, 9],
        file="train.py",
        line=[3, 4],
        column=[5, 1],
        end_line=[3, 4],
        end_column=[12, 9],
        text=["tf.add", "tf.mul"],
        function="main",
    )


def calls(**changes) -> Calls:
    columns = {
        "call": [0, 1],
        "parent": [-1, 0],
        "site": [9, 7],
        "api": ["tensorflow.add", "tensorflow.multiply"],
        "thread": [1, 1],
        "start_ns": [100, 110],
        "end_ns": [200, 150],
    }
    return Calls.from_columns(sites(), **{**columns, **changes})


def test_calls_come_back_from_a_recording_as_they_were_put(tmp_path):
    with RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()) as writer:
        writer.put_calls(calls(shapes=["[]", '[[[2],"float32"]]'], outcome=["returned", "raised"]))
    read = Recording.open(tmp_path / "r.joulemap").calls()
    assert read is not None
    assert list(read.api) == ["tensorflow.add", "tensorflow.multiply"]
    assert list(read.outcome) == ["returned", "raised"]
    assert list(read.shapes) == ["[]", '[[[2],"float32"]]']
    assert read.argument_bytes.tolist() == [-1, -1]
    assert read.parent.tolist() == [-1, 0]
    assert list(read.sites.text[read.sites.rows(read.site)]) == ["tf.mul", "tf.add"]
    assert list(read.gate_outcome) == ["", ""]


def test_a_recording_without_calls_has_none(tmp_path):
    with RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()):
        pass
    assert Recording.open(tmp_path / "r.joulemap").calls() is None


@pytest.mark.parametrize(
    "changes",
    [{"end_ns": [200, 90]}, {"site": [9, 8]}, {"thread": [1]}, {"outcome": ["returned", "lost"]}],
    ids=["ends before it starts", "unknown site", "short column", "unknown outcome"],
)
def test_columns_that_cannot_be_right_are_refused(changes):
    with pytest.raises(InputError):
        calls(**changes)


def slot_of(store: Store, number: int):
    """The slot of a call, with those before it taken."""
    call, page, offset = next(store.slots, None) or store.next_page()
    while call < number:
        call, page, offset = next(store.slots, None) or store.next_page()
    assert call == number
    return page, offset


def put(store: Store, number: int, *, parent: int = -1, start_ns: int = 1000, api: str = "tensorflow.add"):
    page, offset = slot_of(store, number)
    names = store.word("api", api), store.word("shapes", "")
    SLOT.pack_into(page, offset, parent, 1, start_ns, 64, -1, 7, *names, 0, 0, 0)
    return page, offset


def end(slot, end_ns: int, outcome: int) -> None:
    page, offset = slot
    ENDED.pack_into(page, offset + ENDED_AT, outcome, end_ns)


def test_slots_become_calls_and_what_never_ended_is_open(tmp_path):
    store = Store(tmp_path)
    store.put("site", SITE)
    outer = put(store, 0)
    put(store, 1, parent=0, start_ns=1100, api="tensorflow.multiply")
    inner = put(store, 2, parent=0, start_ns=1200)
    end(inner, 1300, 1)
    end(outer, 1500, 2)
    store.put("gate", [0, 900, "timed out", 1600])
    store.close()
    read = read_calls(tmp_path, ended_ns=9000)
    assert read is not None
    assert list(read.outcome) == ["raised", "open", "returned"]
    assert read.end_ns.tolist() == [1500, 9000, 1300]
    assert list(read.api) == ["tensorflow.add", "tensorflow.multiply", "tensorflow.add"]
    assert list(read.gate_outcome) == ["timed out", "", ""]
    assert read.gate_start_ns.tolist() == [900, 0, 0]
    assert read.tail_end_ns.tolist() == [1600, 0, 0]


def test_a_slot_that_was_taken_and_not_written_is_no_call(tmp_path):
    store = Store(tmp_path)
    store.put("site", SITE)
    put(store, 0)
    put(store, 3, start_ns=2000)
    read = read_calls(tmp_path, ended_ns=9000)
    assert read is not None
    assert read.call.tolist() == [0, 3]


def test_a_line_that_was_cut_off_loses_its_site_and_nothing_else(tmp_path):
    store = Store(tmp_path)
    store.put("site", SITE)
    put(store, 0)
    page, offset = put(store, 1)
    SLOT.pack_into(page, offset, -1, 1, 1000, 0, 0, 8, 0, 0, 0, 0, 0)
    with (tmp_path / "calls.jsonl").open("a") as words:
        words.write(json.dumps(["site", [8, "train.py"]])[:-5])
    read = read_calls(tmp_path, ended_ns=9000)
    assert read is not None
    assert read.site.tolist() == [7]


def test_calls_go_on_over_pages_and_older_ones_can_still_end(tmp_path):
    store = Store(tmp_path)
    store.put("site", SITE)
    first = put(store, 0)
    for number in (PAGE_SLOTS - 1, PAGE_SLOTS, 2 * PAGE_SLOTS):
        put(store, number, start_ns=1000 + number)
    end(first, 99_999, 1)
    read = read_calls(tmp_path, ended_ns=10**6)
    assert read is not None
    assert read.call.tolist() == [0, PAGE_SLOTS - 1, PAGE_SLOTS, 2 * PAGE_SLOTS]
    assert read.end_ns[0] == 99_999


def test_there_is_an_end_to_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_CALLS", 3 * PAGE_SLOTS)
    with pytest.raises(Full, match="later ones are not recorded"):
        slot_of(Store(tmp_path), 3 * PAGE_SLOTS)


def test_finishing_a_recording_puts_the_calls_into_it(tmp_path):
    writer = RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo())
    raw = tmp_path / "r.joulemap" / RAW
    raw.mkdir()
    store = Store(raw)
    store.put("site", SITE)
    end(put(store, 0), 1500, 1)
    store.close()
    finish(writer, 10_000)
    read = Recording.open(tmp_path / "r.joulemap").calls()
    assert read is not None
    assert read.start_ns.tolist() == [1000]
    assert np.asarray(read.argument_bytes).tolist() == [64]
    assert not raw.exists()
