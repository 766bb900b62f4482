"""Protobuf's wire format, against messages that are encoded here by the book."""

import random

import numpy as np
import pytest

from joulemap.frameworks import wire
from joulemap.frameworks.wire import Torn
from tests.messages import fixed, length, number, varint


def decoded(messages):
    data = b"head" + b"".join(messages)
    end = len(b"head") + np.cumsum([len(message) for message in messages])
    start = end - [len(message) for message in messages]
    columns = wire.columns(data, start, end)
    found = [[] for _ in messages]
    for row, message in enumerate(columns.message.tolist()):
        field = (int(columns.number[row]), int(columns.value[row]), int(columns.end[row]))
        found[message].append(field)
    return data, found


def test_numbers_of_every_length():
    values = [
        0,
        1,
        127,
        128,
        (1 << 14) - 1,
        1 << 14,
        (1 << 56) - 1,
        1 << 56,
        (1 << 63) - 1,
        1 << 63,
        (1 << 64) - 1,
    ]
    _, found = decoded([number(3, value) for value in values])
    assert [message[0][:2] for message in found] == [(3, wire.signed(value)) for value in values]
    assert [next(wire.fields(number(3, value))).value for value in values] == values


def test_many_messages_at_once_are_the_same_as_one_by_one():
    chance = random.Random(7)
    messages = [_some_message(chance) for _ in range(70_000)]
    data, found = decoded(messages)
    start = len(b"head")
    for message, fields in zip(messages, found, strict=True):
        expected = list(wire.fields(data, start, start + len(message)))
        assert [(number, value) for number, value, _ in fields] == [
            (field.number, wire.signed(field.value)) for field in expected
        ]
        ends = [end for _, _, end in fields]
        assert all(end in (wire.NO_SPAN, field.end) for end, field in zip(ends, expected, strict=True))
        start += len(message)


def _some_message(chance):
    kinds = [
        lambda: number(chance.randint(1, 3000), chance.getrandbits(chance.choice((3, 7, 20, 44, 64)))),
        lambda: length(chance.randint(1, 40), chance.randbytes(chance.choice((0, 1, 5, 200)))),
        lambda: fixed(chance.randint(1, 40), chance.getrandbits(64), 8),
        lambda: fixed(chance.randint(1, 40), chance.getrandbits(32), 4),
    ]
    return b"".join(chance.choice(kinds)() for _ in range(chance.randint(0, 4)))


WHOLE = number(1, 300) + length(2, b"text") + fixed(3, 5, 8)


@pytest.mark.parametrize("cut", [c for c in range(1, len(WHOLE)) if c not in (3, 9)])
def test_what_is_cut_off_is_torn(cut):
    with pytest.raises(Torn):
        list(wire.fields(WHOLE[:cut]))
    with pytest.raises(Torn):
        decoded([WHOLE[:cut]])


@pytest.mark.parametrize("bad", [varint(1 << 3 | 3), varint(0) + b"\1", b"\x08" + b"\xff" * 11])
def test_what_is_no_message_is_torn(bad):
    with pytest.raises(Torn):
        list(wire.fields(bad))
    with pytest.raises(Torn):
        decoded([bad])


def test_nothing_is_nothing():
    assert not len(wire.columns(b"", np.zeros(0, np.int64), np.zeros(0, np.int64)).message)
    assert list(wire.fields(b"")) == []


def test_packed_numbers_and_texts():
    data = length(4, varint(3) + varint(300)) + length(5, "grün".encode())
    packed, text = wire.fields(data)
    assert wire.numbers(data, packed) == [3, 300]
    assert wire.text(data, text) == "grün"
