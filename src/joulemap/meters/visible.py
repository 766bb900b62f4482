"""Which GPUs a program sees, and by which numbers.

A program's ``GPU:0`` is the first of those it was given: ``CUDA_VISIBLE_DEVICES=2`` makes it the third of the
machine. The rule is CUDA's, as tried on an H200: a list of numbers or of beginnings of UUIDs, which is cut
off at the first entry that names no GPU; one that names a GPU twice shows none, nor does one that is empty.

``NVIDIA_VISIBLE_DEVICES`` is another matter: the container's runtime reads it before the program starts,
and neither CUDA nor NVML ever sees the other GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulemap.errors import MeterError

MIG_INSTANCE = (
    "The energy counter covers the whole board and cannot be split between MIG instances. Turn MIG off "
    "(nvidia-smi -mig 0), or measure on another GPU."
)


def visible(variable: str, value: str | None, uuids: Sequence[str]) -> list[int]:
    """The machine's numbers of the GPUs that a program sees, in its own order. ``uuids`` are the machine's.

    ``MeterError`` for an instance of a GPU split by MIG, and where the variable leaves no GPU at all.
    """
    if value is None:
        return list(range(len(uuids)))
    seen: list[int] = []
    for entry in (text.strip() for text in value.split(",")):
        if entry.startswith("MIG-"):
            raise MeterError(f"{variable} names {entry}, an instance of a GPU split by MIG.", MIG_INSTANCE)
        number = _number(entry, uuids)
        if number is None:
            break
        if number in seen:
            seen = []
            break
        seen.append(number)
    if uuids and not seen:
        raise MeterError(
            f"The program sees no GPU: {variable} is set to {value!r}.",
            f"Unset it, or name a GPU: {variable}=0.",
        )
    return seen


def _number(entry: str, uuids: Sequence[str]) -> int | None:
    """The GPU that an entry names; None where there is none, or more than one."""
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    fitting = [number for number, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return fitting[0] if entry.startswith("GPU-") and len(fitting) == 1 else None
