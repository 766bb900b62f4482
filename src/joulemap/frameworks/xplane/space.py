"""XPlane files (``*.xplane.pb``): what TensorFlow's and JAX's profilers write.

A file is a *space* of *planes* (the host, each GPU, the profiler's own notes). A plane has *lines* (threads,
streams) of *events*. An event is a few numbers that refer to its plane's table of names, and *stats*, which
are keys with values. The format is ``xplane.proto`` of the TSL profiler; it is read with ``wire`` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from joulemap.errors import InputError
from joulemap.frameworks import wire
from joulemap.frameworks.wire import Torn
from joulemap.frameworks.xplane.events import Events, read_events
from joulemap.frameworks.xplane.plane import Plane

HOST, GPU, METADATA = "/host:CPU", "/device:GPU:", "/host:metadata"
_ENVIRONMENT, _START = "Task Environment", "profile_start_time"
_PLANE = 1
_PLANE_TAG, _PLANE_BEGINS = b"\x0a", (b"\x08", b"\x12", b"\x1a")
_SHORTER = "Profile fewer steps at a time: a profile of more than 2 GB is not written."


@dataclass(frozen=True, eq=False)
class Space:
    """One file: its planes with their events, and when the profile began (epoch ns)."""

    path: Path
    start_ns: int
    planes: tuple[Plane, ...]
    events: dict[str, Events]
    """The events of the host and of the GPUs, by the name of their plane."""


def is_space(head: bytes) -> bool:
    """Whether a file that begins so may be an XPlane file: a plane, which begins with its number or name."""
    try:
        _, start = wire.varint(head, 1, len(head))
    except Torn:
        return False
    return head[:1] == _PLANE_TAG and head[start : start + 1] in _PLANE_BEGINS


def read_space(path: Path, progress: Callable[[float], None] | None = None) -> Space:
    """Read a file. ``progress`` is called with the share that has been read."""
    data = _content(path)
    try:
        planes = tuple(
            Plane(data, field.value, field.end) for field in wire.fields(data) if field.number == _PLANE
        )
        start_ns = _start_ns(planes)
        size = sum(line.end - line.value for plane in planes for line in plane.lines)
        advance = None if progress is None else _Advance(progress, size)
        events = {
            plane.name: read_events(plane, start_ns, advance)
            for plane in planes
            if plane.name == HOST or plane.name.startswith(GPU)
        }
    except Torn as error:
        raise damaged(path, error) from error
    if not planes:
        raise InputError(f"{path} holds no profile.", "Give the .xplane.pb file that the profiler wrote.")
    return Space(path, start_ns, planes, events)


def damaged(path: Path, error: Torn) -> InputError:
    """What to say of a file that is not whole."""
    return InputError(
        f"{path} is no whole XPlane file: {error}.",
        "Copy it again, or record again and let the profiler stop before the program ends.",
    )


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    if not data:
        raise InputError(f"{path} is empty.", _SHORTER)
    return data


def _start_ns(planes: tuple[Plane, ...]) -> int:
    for plane in planes:
        if plane.name == _ENVIRONMENT:
            return int(plane.stats.get(_START, 0))
    return 0


class _Advance:
    """Turns bytes read into the share of all."""

    def __init__(self, progress: Callable[[float], None], size: int) -> None:
        self._progress, self._size, self._done = progress, max(size, 1), 0

    def __call__(self, size: int) -> None:
        self._done += size
        self._progress(self._done / self._size)
