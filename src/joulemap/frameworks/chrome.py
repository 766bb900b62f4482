"""Reads Chrome trace JSON as a stream: one event at a time, never the whole file.

A trace of a minute is a few hundred megabytes of JSON. Events are handed out as they are decoded and
not kept; what a framework needs of them, it keeps in columns.

Both forms of the format are read, plain or gzipped: an object with ``traceEvents`` among other keys in
any order, and a bare array, whose closing bracket may be missing.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from joulemap.errors import InputError

Event: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[float], None]

_CHUNK_BYTES = 1 << 22
_LARGEST_VALUE_CHARS = 1 << 26
_LONGEST_LITERAL = len("-Infinity")
_GZIP = b"\x1f\x8b"
_BLANK = re.compile(r"[\s,]*")
_OTHER_FORMATS = {
    b"<": ("an HTML or XML page", "Probably the page around the file was saved: download the raw file."),
    b"PK": ("a ZIP archive", "Unpack it and import the JSON file inside."),
    b"PAR1": ("a Parquet file", "That looks like the power log: it belongs to --power."),
    b"\x28\xb5\x2f\xfd": ("a zstd archive", "Unpack it with zstd -d; gzip is read as it is."),
    b"\xfd7zXZ": ("an xz archive", "Unpack it with xz -d; gzip is read as it is."),
}
_WANTED = "Chrome trace JSON comes from torch.profiler's export_chrome_trace or TensorFlow's timeline."


BROKEN = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""What taking fields out of an event raises when they are missing or of another type."""

LAST_NS = 4 * 10**18
"""No event is later: the year 2096."""


class ChromeTrace:
    """One trace file. ``header`` (the keys beside the events) is complete once the events were read.

    Numbers with a decimal point are handed out as the text they are: a time in microseconds since 1970
    with its nanoseconds does not fit a float. ``nanoseconds`` reads them.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.torn = False
        self._bare = False
        self._progress = progress

    def events(self) -> Iterator[Event]:
        """Every event of the file, decoded one by one; refuses what is not a trace."""
        count = 0
        try:
            with self.path.open("rb") as file:
                for event in self._decode(_Text(file, self._progress)):
                    count += 1
                    yield event
        except _Cut as cut:
            self.torn = not (cut.between_values and self._bare)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        except (EOFError, zlib.error) as error:
            raise InputError(
                f"{self.path} is a gzip file that is cut short or damaged, after {count} events.",
                f"Copy it again; or keep what is there: zcat {self.path.name} > part.json, and import that.",
            ) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.path} is not JSON: {error}, after {count} events.", _WANTED) from error
        if not count:
            raise InputError(f"{self.path} holds no trace events{self._keys()}.", _WANTED)

    def _decode(self, text: _Text) -> Iterator[Event]:
        mark = text.next_mark()
        self._bare = mark == "["
        if self._bare:
            return text.items()
        if mark == "{":
            return self._members(text)
        raise self._other_format(text.head)

    def _members(self, text: _Text) -> Iterator[Event]:
        """The object form: events are handed out, other members kept as the header."""
        text.skip("{")
        while text.next_mark() != "}":
            key = text.value()
            text.skip(":")
            if key == "traceEvents" and text.next_mark() == "[":
                yield from text.items()
            else:
                self.header[str(key)] = text.value()

    def _keys(self) -> str:
        return f", only {', '.join(sorted(self.header)[:8])}" if self.header else ""

    def _other_format(self, head: bytes) -> InputError:
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not start:
            return InputError(f"{self.path} is empty.", "Was the profiler stopped and the trace exported?")
        for magic, (what, hint) in _OTHER_FORMATS.items():
            if start.startswith(magic):
                return InputError(f"{self.path} is {what}, not a trace.", hint)
        shown = start[:24].decode("utf-8", "replace")
        return InputError(f"{self.path} is not JSON: it starts with {shown!r}.", _WANTED)


def arguments(event: Event) -> dict[str, Any]:
    """An event's ``args``, empty where there are none."""
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def nanoseconds(microseconds: int | str) -> int:
    """A time in µs, as decoded by ``ChromeTrace``, in whole ns without passing through a float."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    if "e" in microseconds or "E" in microseconds:
        return round(float(microseconds) * 1000)
    whole, _, fraction = microseconds.partition(".")
    return int(whole + (fraction + "000")[:3])


class _Cut(Exception):
    """The text ends before the list of events does: inside a value, or between two, as the format allows."""

    def __init__(self, between_values: bool) -> None:
        super().__init__()
        self.between_values = between_values


class _Text:
    """A window on the decoded text that moves forward as values are taken."""

    def __init__(self, file: IO[bytes], progress: Progress | None) -> None:
        self._file = file
        self._size = max(Path(file.name).stat().st_size, 1)
        self._progress = progress
        packed = file.read(2) == _GZIP
        file.seek(0)
        self._stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        # Control characters inside names occur in the wild, hence not strict.
        self._decode = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        self._text, self._at, self._ended = "", 0, False
        self.head = b""

    def items(self) -> Iterator[Event]:
        """The objects of an array, up to its closing bracket."""
        self.skip("[")
        while self.next_mark() != "]":
            item = self._take()
            if isinstance(item, dict):
                yield item
        self.skip("]")

    def next_mark(self) -> str:
        """The next character that is neither blank nor a comma, not yet taken."""
        while True:
            self._at = cast("re.Match[str]", _BLANK.match(self._text, self._at)).end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                if not self.head.strip():
                    return ""
                raise _Cut(between_values=True)

    def skip(self, mark: str) -> None:
        """Take one character that must be there."""
        if self.next_mark() != mark:
            raise ValueError(f"{mark!r} expected, {self._text[self._at : self._at + 12]!r} found")
        self._at += 1

    def value(self) -> object:
        """Take the next JSON value."""
        self.next_mark()
        return self._take()

    def _take(self) -> object:
        """Take the value that starts here."""
        while (taken := self._attempt()) is None:
            pass
        found, self._at = taken
        return found

    def _attempt(self) -> tuple[object, int] | None:
        """The value at hand and where it ends; None when the window had to grow and it is worth retrying."""
        try:
            found, end = self._decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._read_on(error)
            return None
        # A number at the edge of the window may go on beyond it: "1" of "1.5", or of "1e+9".
        at_the_edge = not isinstance(found, (dict, list)) and len(self._text) - end < len(".e+")
        if at_the_edge and self._more():
            return None
        return found, end

    def _read_on(self, error: json.JSONDecodeError) -> None:
        """Get more text for a value that does not end inside the window, or say why there is none."""
        if len(error.doc) - self._at < _LARGEST_VALUE_CHARS and self._more():
            return
        at_the_end = len(error.doc) - error.pos <= _LONGEST_LITERAL
        if self._ended and (at_the_end or error.msg.startswith("Unterminated string")):
            raise _Cut(between_values=False)
        near = error.doc[max(error.pos - 20, 0) : error.pos + 20]
        raise ValueError(f"{error.msg} near {near!r}") from error

    def _more(self) -> bool:
        """Move the window: drop what was taken, append what comes next; False at the end of the file."""
        if self._ended:
            return False
        chunk = self._stream.read(_CHUNK_BYTES)
        self.head = self.head or chunk[:64]
        if chunk:
            self._text, self._at = self._text[self._at :] + self._utf8.decode(chunk), 0
        else:
            self._text += self._utf8.decode(b"", final=True)
            self._ended = True
        if self._progress:
            self._progress(1.0 if self._ended else min(self._file.tell() / self._size, 1.0))
        return bool(chunk)
