"""Protobuf's text format, as far as profiles are written in it: fields with numbers, strings and messages."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple, TypeAlias

from joulemap.frameworks.wire import Torn

Value: TypeAlias = "str | Message"
Message: TypeAlias = "dict[str, list[Value]]"

_BLANK = r"(?:\s|\#[^\n]*\n)*"
_NAME = re.compile(_BLANK + r"(?P<name>\w+)" + _BLANK + r":?" + _BLANK)
_OPENS = re.compile(r"[{<]")
_CLOSES = re.compile(_BLANK + r"[}>]" + _BLANK + r"[;,]?")
_VALUE = re.compile(r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>[^\s{}<>;,"']+)""")
_NEXT = re.compile(_BLANK + r"[;,]?")
_DEEPEST = 100


class _Read(NamedTuple):
    message: Message
    end: int


def parse(text: str) -> Message:
    """Every field's values in order, strings without their quotes; ``Torn`` for what is not whole."""
    read = _message(text, 0, 0)
    if text[read.end :].strip():
        raise Torn(f"there is something else at character {read.end}")
    return read.message


def _message(text: str, start: int, depth: int) -> _Read:
    if depth > _DEEPEST:
        raise Torn("messages are nested too deeply")
    message: Message = {}
    while name := _NAME.match(text, start):
        if opens := _OPENS.match(text, name.end()):
            value: Value
            value, start = _message(text, opens.end(), depth + 1)
            start = _expect(_CLOSES, text, start)
        else:
            value, start = _scalar(text, name.end())
        message.setdefault(name["name"], []).append(value)
    return _Read(message, start)


def _scalar(text: str, start: int) -> tuple[str, int]:
    found = _VALUE.match(text, start)
    if found is None:
        raise Torn(f"a value is missing at character {start}")
    value = found["word"] or str(ast.literal_eval(found["text"]))
    return value, _expect(_NEXT, text, found.end())


def _expect(what: re.Pattern[str], text: str, start: int) -> int:
    found = what.match(text, start)
    if found is None:
        raise Torn(f"a message does not end at character {start}")
    return found.end()


def messages(message: Value, name: str) -> list[Message]:
    """The inner messages of one name."""
    if isinstance(message, str):
        return []
    return [value for value in message.get(name, []) if not isinstance(value, str)]


def text(message: Message, name: str) -> str:
    """The last value of a field that is no message, as text; empty without."""
    values = [value for value in message.get(name, []) if isinstance(value, str)]
    return values[-1] if values else ""
