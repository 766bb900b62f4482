"""Records of calls on disk, from inside the program: each is there from the moment its call begins.

``calls.bin`` has a slot of 64 bytes for each call, in order of the starts. It is written through shared
memory, so that whatever kills the program, the kernel still has all of it. ``calls.jsonl`` has what slots
refer to by number: sites, names, shapes. Standard library only.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from pathlib import Path
from typing import Any

SLOTS, WORDS = "calls.bin", "calls.jsonl"
SLOT = struct.Struct("<qqqqqiiiHHq")
"""parent, thread, start_ns, argument_bytes, object_bytes, site, api, shapes, outcome, unused, end_ns."""
ENDED = struct.Struct("<HHq")
ENDED_AT = SLOT.size - ENDED.size
OPEN, RETURNED, RAISED = 0, 1, 2

PAGE_BITS = 14
PAGE_SLOTS = 1 << PAGE_BITS
_PAGE_BYTES = PAGE_SLOTS * SLOT.size
MOST_CALLS = 1 << 24
"""A gigabyte of them; then no more are kept, and the recording says so."""
MOST_WORDS = 1 << 16
"""Different names or shapes; what comes after has none."""


class Full(Exception):
    """There is no room for another call."""


class Store:
    """The writing end. A page is let go when the last call that began on it has ended."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._slots = os.open(folder / SLOTS, flags, 0o644)
        self._words = os.open(folder / WORDS, flags | os.O_APPEND, 0o644)
        self._known: dict[str, dict[str, int]] = {"api": {"": 0}, "shapes": {"": 0}}
        self._page: mmap.mmap | None = None
        self._number = -1

    def page(self, number: int) -> mmap.mmap:
        """The page that a slot is on; ``Full`` where the disk has no room for it, or there are too many."""
        if self._page is None or number != self._number:
            if number * PAGE_SLOTS >= MOST_CALLS:
                raise Full(f"More than {MOST_CALLS:,} calls were made; the later ones are not recorded.")
            try:
                # Room is taken now: writing to a page that the disk has none for would kill the program.
                os.posix_fallocate(self._slots, number * _PAGE_BYTES, _PAGE_BYTES)
                self._page = mmap.mmap(self._slots, _PAGE_BYTES, offset=number * _PAGE_BYTES)
            except OSError as error:
                raise Full(f"Calls are not recorded any more: {error.strerror}.") from None
            self._number = number
        return self._page

    def word(self, kind: str, text: str) -> int:
        """The number of a name or of shapes, written down when it is new."""
        known = self._known[kind]
        number = known.get(text)
        if number is None:
            if len(known) >= MOST_WORDS:
                return 0
            number = known[text] = len(known)
            self.put(kind, [number, text])
        return number

    def put(self, what: str, content: Any) -> None:
        """Write a line at once."""
        os.write(self._words, (json.dumps([what, content]) + "\n").encode())

    def close(self) -> None:
        """Let go of the files; pages that calls are still on stay theirs."""
        os.close(self._slots)
        os.close(self._words)
        self._page = None
