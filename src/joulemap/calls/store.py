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
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

SLOTS, WORDS = "calls.bin", "calls.jsonl"
SLOT = struct.Struct("<qqqqqiiiHHq")
"""parent, thread, start_ns, argument_bytes, object_bytes, site, api, shapes, outcome, unused, end_ns."""
BEGUN = struct.Struct("<qqqqqiii")
"""What is known when a call begins; the rest of a new slot is zero, which is ``OPEN``."""
ENDED = struct.Struct("<H2xq")
ENDED_AT = SLOT.size - ENDED.size
OPEN, RETURNED, RAISED = 0, 1, 2

PAGE_SLOTS = 1 << 14
_PAGE_BYTES = PAGE_SLOTS * SLOT.size
_PLACES = range(0, _PAGE_BYTES, SLOT.size)
Slot = tuple[int, mmap.mmap, int]
"""The number of a call, and the page and place of its record."""
MOST_CALLS = 1 << 24
"""A gigabyte of them; then no more are kept, and the recording says so."""
MOST_WORDS = 1 << 16
"""Different names or shapes; what comes after has none."""


class Full(Exception):
    """There is no room for another call."""


class Store:
    """The writing end. A page is let go when the last call that began on it has ended."""

    slots: Iterator[Slot] = iter(())
    """The slots of a page that are still free."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._slots = os.open(folder / SLOTS, flags, 0o644)
        self._words = os.open(folder / WORDS, flags | os.O_APPEND, 0o644)
        self._known: dict[str, dict[str, int]] = {"api": {"": 0}, "shapes": {"": 0}}
        self._pages = 0
        self._turning = threading.Lock()

    def next_page(self) -> Slot:
        """A slot where the last page has none left; ``Full`` where the disk has no room for another, or there
        are too many."""
        with self._turning:
            slot = next(self.slots, None)  # another thread may have turned the page
            if slot is None:
                page, first = self._new_page(), self._pages * PAGE_SLOTS
                self._pages += 1
                self.slots = zip(range(first, first + PAGE_SLOTS), repeat(page), _PLACES, strict=False)
                slot = next(self.slots)
            return slot

    def _new_page(self) -> mmap.mmap:
        if self._pages * PAGE_SLOTS >= MOST_CALLS:
            raise Full(f"More than {MOST_CALLS:,} calls were made; the later ones are not recorded.")
        begin = self._pages * _PAGE_BYTES
        try:
            # Room is taken now: writing to a page that the disk has none for would kill the program.
            os.posix_fallocate(self._slots, begin, _PAGE_BYTES)
            return mmap.mmap(self._slots, _PAGE_BYTES, offset=begin)
        except OSError as error:
            raise Full(f"Calls are not recorded any more: {error.strerror}.") from None

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
        self.slots = iter(())
