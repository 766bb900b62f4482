"""Protobuf messages by hand, and XPlane files made of them."""

from pathlib import Path


def varint(value):
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def number(field, value):
    return varint(field << 3) + varint(value)


def length(field, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def fixed(field, bits, size):
    return varint(field << 3 | (1 if size == 8 else 5)) + bits.to_bytes(size, "little")


class Plane:
    """An XPlane, put together event by event. Times are in ns from the profile's start."""

    def __init__(self, name):
        self.name = name
        self._lines, self._names, self._keys, self._stats = {}, {}, {}, b""
        self._described = {}

    def stat(self, key, value):
        self._stats += length(6, self._stat(key, value))
        return self

    def describe(self, name, **stats):
        """Stats that hold for all events of a name."""
        self._described[name] = b"".join(length(5, self._stat(key, value)) for key, value in stats.items())
        return self

    def event(self, line, name, start_ns, end_ns, display="", **stats):
        numbers = self._names.setdefault((name, display), len(self._names) + 1)
        content = number(1, numbers) + number(2, start_ns * 1000) + number(3, (end_ns - start_ns) * 1000)
        content += b"".join(length(4, self._stat(key, value)) for key, value in stats.items())
        self._lines.setdefault(line, []).append(content)
        return self

    def op(self, line, node, op, start_ns, end_ns):
        return self.event(line, f"{node}:{op}", start_ns, end_ns, display=op)

    def _stat(self, key, value):
        head = number(1, self._keys.setdefault(key, len(self._keys) + 1))
        if isinstance(value, bytes):
            return head + length(6, value)
        return head + (number(4, value) if isinstance(value, int) else length(5, value))

    def encoded(self):
        lines = b"".join(
            length(
                3, number(1, i + 1) + length(2, line) + number(3, 0) + b"".join(length(4, e) for e in events)
            )
            for i, (line, events) in enumerate(self._lines.items())
        )
        names = b""
        for name in self._described:
            self._names.setdefault((name, ""), len(self._names) + 1)
        for (name, display), i in self._names.items():
            entry = number(1, i) + length(2, name) + length(4, display) + self._described.get(name, b"")
            names += length(4, number(1, i) + length(2, entry))
        keys = b"".join(
            length(5, number(1, i) + length(2, number(1, i) + length(2, key)))
            for key, i in self._keys.items()
        )
        return length(2, self.name) + lines + names + keys + self._stats


def space(*planes, start_ns=1_794_700_000_000_000_000):
    """A file's content: the planes, and the profiler's note of when it began."""
    environment = Plane("Task Environment").stat("profile_start_time", start_ns)
    return b"".join(length(1, plane.encoded()) for plane in (*planes, environment))


def write_space(path: Path, *planes, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(space(*planes, **options))
    return path


# Compiled programs, as in hlo.proto


def instruction(name, opcode, number_, op_name="", op_type="", operands=(), called=()):
    metadata = length(1, op_type) + length(2, op_name)
    return (
        length(1, name)
        + length(2, opcode)
        + length(7, metadata)
        + number(35, number_)
        + length(36, b"".join(map(varint, operands)))
        + length(38, b"".join(map(varint, called)))
    )


def computation(number_, root, *instructions):
    return b"".join(length(2, one) for one in instructions) + number(5, number_) + number(6, root)


def module(*computations, name="jit_step", program_id=42):
    inner = length(1, name) + b"".join(length(3, one) for one in computations) + number(5, program_id)
    return length(1, inner)
