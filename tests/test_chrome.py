import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.errors import InputError
from joulemap.frameworks import chrome
from joulemap.frameworks.chrome import ChromeTrace, nanoseconds

DATA = Path(__file__).parent / "data"
EVENTS = [
    {"ph": "X", "name": f"op {i}", "ts": i, "dur": 2, "args": {"note": 'a, ]}[{ " é'}} for i in range(20)
]

words = st.text(max_size=8)
numbers = st.integers(-(2**60), 2**60)
event_lists = st.lists(
    st.dictionaries(words, st.one_of(words, numbers, st.lists(numbers, max_size=3), st.none()), max_size=4),
    min_size=1,
    max_size=8,
)


def write(path, text, packed=False):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def read(path):
    trace = ChromeTrace(path)
    return list(trace.events()), trace


def refusal(path):
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in caught.value.message
    return caught.value


@pytest.mark.parametrize("packed", [False, True])
def test_both_forms_are_read_whatever_the_name_says(tmp_path, packed):
    wrapped = {"schemaVersion": 1, "traceEvents": EVENTS, "baseTimeNanoseconds": 17, "traceName": "t"}
    found, trace = read(write(tmp_path / "object.txt", json.dumps(wrapped, indent=2), packed))
    assert found == EVENTS
    assert trace.header == {"schemaVersion": 1, "baseTimeNanoseconds": 17, "traceName": "t"}
    assert not trace.torn
    found, trace = read(write(tmp_path / "array", json.dumps(EVENTS), packed))
    assert found == EVENTS
    assert not trace.torn


def test_an_array_may_leave_its_end_open(tmp_path):
    text = json.dumps(EVENTS)
    for tail in ("", ",", ",\n"):
        found, trace = read(write(tmp_path / "open.json", text[:-1] + tail))
        assert found == EVENTS
        assert not trace.torn


def test_a_file_from_a_crash_is_read_up_to_its_last_whole_event(tmp_path):
    text = json.dumps({"traceEvents": EVENTS})
    found, trace = read(write(tmp_path / "torn.json", text[: text.index("op 7") + 2]))
    assert found == EVENTS[:7]
    assert trace.torn


@settings(max_examples=60)
@given(events=event_lists, chunk=st.integers(1, 40), bare=st.booleans(), indent=st.sampled_from([None, 1]))
def test_no_window_size_changes_what_is_read(tmp_path_factory, events, chunk, bare, indent):
    wrapped = {"first": 12.5, "traceEvents": events, "last": -1234567}
    path = tmp_path_factory.mktemp("chunks") / "trace.json"
    write(path, json.dumps(events if bare else wrapped, indent=indent, ensure_ascii=False), packed=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome, "_CHUNK_BYTES", chunk)
        found, trace = read(path)
    assert found == events
    assert trace.header == ({} if bare else {"first": "12.5", "last": -1234567})


@settings(max_examples=60)
@given(events=event_lists, data=st.data())
def test_every_cut_gives_the_events_before_it_or_a_reason(tmp_path_factory, events, data):
    text = json.dumps({"traceEvents": events}).encode()
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    path.write_bytes(text[: data.draw(st.integers(0, len(text)))])
    try:
        found, _ = read(path)
    except InputError:
        return
    assert found == events[: len(found)]


@given(st.integers(0, 2 * 10**18))
def test_times_keep_their_nanoseconds(t_ns):
    assert nanoseconds(f"{t_ns // 1000}.{t_ns % 1000:03d}") == t_ns
    assert nanoseconds(t_ns) == 1000 * t_ns


def test_times_in_other_spellings():
    assert nanoseconds("1.5") == 1500
    assert nanoseconds("2.0004") == 2000
    assert nanoseconds("1.25e3") == 1_250_000
    assert nanoseconds("-3.25") == -3250


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"PK\x03\x04rest", "ZIP"),
        (b"PAR1....", "Parquet"),
        (b"t_ns,domain\n1,GPU", "not JSON"),
        (b"\x0a\x0bxplane", "not JSON"),
        (b"{}", "no trace events"),
        (b"[]", "no trace events"),
        (b"[1, 2, 3]", "no trace events"),
        (b'{"schemaVersion": 1, "events": []}', "only events, schemaVersion"),
        (b'{"traceEvents": [{"ph": "X"} oops {"ph": "X"}], "a": 1}', "not JSON"),
        (b'{"traceEvents" = []}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(tmp_path, content, said):
    error = refusal(write(tmp_path / "bad.json", content))
    assert said in error.message
    assert error.hint


def test_a_broken_archive_is_refused_with_what_to_do(tmp_path):
    whole = gzip.compress(json.dumps(EVENTS * 50).encode())
    error = refusal(write(tmp_path / "cut.json.gz", whole[: len(whole) // 2]))
    assert "cut short" in error.message
    assert "zcat cut.json.gz" in error.hint
    damaged = whole[:40] + bytes(20) + whole[60:]
    assert "damaged" in refusal(write(tmp_path / "damaged.json.gz", damaged)).message


def test_a_missing_file_is_refused(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "nowhere.json").message
    assert "cannot be read" in refusal(tmp_path).message


def test_progress_grows_to_one():
    seen = []
    list(ChromeTrace(DATA / "h200-step.json.gz", seen.append).events())
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
