"""``RunMetadata`` of ``tf.compat.v1`` sessions (``FULL_TRACE``), binary or as text: one step of a graph.

It holds what ``timeline.Timeline`` draws, so it is handed on as the events that a timeline would have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from joulemap.errors import InputError
from joulemap.frameworks import textproto, wire
from joulemap.frameworks.chrome import Event
from joulemap.frameworks.tensorflow.timeline import COMPUTE
from joulemap.frameworks.wire import Field, Torn

_STEP_STATS, _DEVICES = 1, 1
_DEVICE_NAME, _NODES = 1, 2
_TEXTS = {1: "node_name", 8: "timeline_label"}
_NUMBERS = {2: "all_start_micros", 5: "all_end_rel_micros", 13: "all_start_nanos", 16: "all_end_rel_nanos"}
_LABEL = re.compile(r".* = (?P<op>.*)\((?P<inputs>.*)\)$")
_GPU_TRACE = ("/stream:", "/memcpy")
_NS_PER_US = 1000


class _Ran(NamedTuple):
    """One execution of a node: on which device, and its fields as text."""

    device: str
    fields: dict[str, str]


def is_binary(head: bytes) -> bool:
    """Whether a file that begins so may be a ``RunMetadata``: step, devices and a name, one in the other."""
    try:
        for _ in range(2):
            if head[:1] != b"\x0a":
                return False
            _, start = wire.varint(head, 1, len(head))
            head = head[start:]
    except Torn:
        return False
    return head[:1] == b"\x0a"


def is_text(head: bytes) -> bool:
    """Whether a file that begins so may be a ``RunMetadata`` as text."""
    return head.lstrip().startswith(b"step_stats")


def metadata_events(path: Path) -> Iterator[Event]:
    """The events that a timeline of this step would have."""
    try:
        content = path.read_bytes()
        ran = list(_from_text(content) if is_text(content[:100]) else _from_binary(content))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (Torn, ValueError, SyntaxError) as error:
        raise InputError(f"{path} is no whole RunMetadata: {error}.", "Copy it again.") from error
    for device in dict.fromkeys(one.device for one in ran):
        yield {"ph": "M", "name": "process_name", "pid": device, "args": {"name": device + COMPUTE}}
    yield from map(_event, ran)


def _from_binary(content: bytes) -> Iterator[_Ran]:
    steps = (field for field in wire.fields(content) if field.number == _STEP_STATS)
    devices = (part for step in steps for part in wire.fields(content, step.value, step.end))
    for device in devices:
        if device.number == _DEVICES:
            parts = list(wire.fields(content, device.value, device.end))
            name = next((wire.text(content, part) for part in parts if part.number == _DEVICE_NAME), "")
            yield from (_Ran(name, _fields(content, part)) for part in parts if part.number == _NODES)


def _fields(content: bytes, node: Field) -> dict[str, str]:
    found = {}
    for part in wire.fields(content, node.value, node.end):
        if part.number in _TEXTS:
            found[_TEXTS[part.number]] = wire.text(content, part)
        elif part.number in _NUMBERS:
            found[_NUMBERS[part.number]] = str(wire.signed(part.value))
    return found


def _from_text(content: bytes) -> Iterator[_Ran]:
    steps = textproto.parse(content.decode()).get("step_stats", [])
    devices = [device for step in steps for device in textproto.messages(step, "dev_stats")]
    for device in devices:
        name = textproto.text(device, "device")
        for node in textproto.messages(device, "node_stats"):
            wanted = (*_TEXTS.values(), *_NUMBERS.values())
            yield _Ran(name, {key: textproto.text(node, key) for key in wanted if key in node})


def _event(ran: _Ran) -> Event:
    fields = ran.fields
    name, op, inputs = fields.get("node_name", ""), "unknown", ""
    if any(mark in ran.device for mark in _GPU_TRACE):
        name, _, op = name.partition(":")
    elif label := _LABEL.match(fields.get("timeline_label", "")):
        op, inputs = label["op"], label["inputs"]
    args = {f"input{i}": one for i, one in enumerate(filter(None, inputs.split(", ")))}
    start_ns, length_ns = _ns(fields, "all_start"), _ns(fields, "all_end_rel")
    return {
        "ph": "X",
        "name": op,
        "pid": ran.device,
        "ts": f"{start_ns // _NS_PER_US}.{start_ns % _NS_PER_US:03d}",
        "dur": f"{length_ns // _NS_PER_US}.{length_ns % _NS_PER_US:03d}",
        "args": {"name": name, "op": op or "unknown", **args},
    }


def _ns(fields: dict[str, str], what: str) -> int:
    """Nanoseconds where they were kept, else microseconds."""
    return int(fields.get(f"{what}_nanos", 0)) or int(fields.get(f"{what}_micros", 0)) * _NS_PER_US
