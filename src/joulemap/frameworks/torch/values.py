"""What large operands of a program's operations hold: some bytes of each, for replays.

What an operation draws depends on the bits that change from one value to the next. On an H200 a square of
numbers that came from bfloat16 takes 13 % less than one of any others of the same type, a backward pass of
layer normalisation 10 %, and random values of any distribution are not what a program has. So in one step
every operation passes a mode of the dispatcher, which keeps a few pieces of each large tensor that it is
given, of some of the calls that are alike. The program gets the results that it would have got.
"""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch.caches import Operands
from joulemap.frameworks.torch.inputs import reach
from joulemap.frameworks.torch.repeating import operands
from joulemap.frameworks.torch.rotation import counted, tensors_in

INDEX, BYTES = "values.json", "values.bin"
PIECES, PIECE = 4, 4 * 1024
"""Of each tensor, from all over it, and the bytes of one."""
LOOKS = 7
"""At the 1st, 2nd, 4th, 8th, … of all calls that are alike, so many of them: layers are not alike in that."""
LEAST = 1024 * 1024
"""What has fewer bytes draws little, and is not looked at."""
MOST = 64 * 1024 * 1024
"""Of all tensors together."""
_TIMES = {1 << number for number in range(LOOKS)}
COPY = "copy_"
_COPIES = ("_to_copy", "clone")
"""Which call that inside, where no mode sees it: what they return is what is written."""

Held = tuple[bytes, ...]
"""Pieces of each tensor that an operation is given, one after the other; none of those not looked at."""
Values = dict[tuple[str, Operands], Held]
"""By operation and operands."""


class Taster:
    """Looks at one step, from ``begin`` to ``end``, on devices of one kind."""

    def __init__(self, device: str, failed: Callable[[Exception], object]) -> None:
        self._device, self._failed = device, failed
        self._calls: Counter[tuple[str, Operands]] = Counter()
        self._kept: dict[tuple[str, Operands], list[list[Any]]] = {}
        self._size = 0
        self._mode: Any = None

    def begin(self) -> None:
        """From here on every operation of this thread, and of its backward passes, is looked at."""
        from torch.utils._python_dispatch import TorchDispatchMode

        look = self._look

        class Looking(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                name = func._schema.name.removeprefix("aten::")
                if name not in _COPIES:
                    look(name, (*args, *kwargs.values()))
                    return func(*args, **kwargs)
                result = func(*args, **kwargs)
                look(COPY, (result, args[0]))
                return result

        self._mode = Looking()
        self._mode.__enter__()

    def end(self) -> None:
        """Look no more; a mode that the program has entered since then stays."""
        from torch.utils import _python_dispatch as modes

        mode, self._mode = self._mode, None
        if mode is None:
            return
        above = []
        while modes._len_torch_dispatch_stack() and modes._get_current_dispatch_mode() is not mode:
            above.append(modes._pop_mode())
        if modes._len_torch_dispatch_stack():
            mode.__exit__(None, None, None)
        for one in reversed(above):
            modes._push_mode(one)

    def write(self, folder: Path) -> None:
        """Write what was seen."""
        folder.mkdir(parents=True, exist_ok=True)
        index = []
        with (folder / BYTES).open("wb") as file:
            for (name, given), looks in self._kept.items():
                held = [b"".join(map(_bytes, pieces)) for pieces in zip(*looks, strict=True)]
                if any(held):
                    file.writelines(held)
                    index.append((name, given, [len(one) for one in held]))
        (folder / INDEX).write_text(json.dumps(index, separators=(",", ":")))

    def _look(self, name: str, values: Sequence[Any]) -> None:
        if self._size >= MOST:
            return
        try:
            key = name, operands(values)
            self._calls[key] += 1
            if self._calls[key] in _TIMES:
                pieces = [self._pieces(one) for one in _largest(values)]
                self._kept.setdefault(key, []).append(pieces)
                self._size += sum(PIECES * PIECE for one in pieces if one is not None)
        except Exception as error:  # noqa: BLE001 - the program goes on
            self._size = MOST
            self._failed(error)

    def _pieces(self, tensor: Any) -> Any:
        """Some of a tensor's memory, in one piece; None of what is not looked at."""
        import torch

        if tensor is None or not _is_plain(tensor):
            return None
        size, whole = PIECE // tensor.element_size(), reach(tensor.shape, tensor.stride())
        small = whole * tensor.element_size() < LEAST
        if small or not tensor.is_floating_point() or tensor.device.type != self._device:
            return None
        lies = tensor.detach().as_strided((whole,), (1,))
        return torch.cat([lies[part * whole // PIECES :][:size] for part in range(PIECES)])


def _is_plain(tensor: Any) -> bool:
    """Whether it is memory and nothing else: not of a class of its own, sparse, or inside of a transform."""
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _largest(values: Sequence[Any]) -> list[Any]:
    """The tensors that count, in order; of a list only the largest, and None for the others."""
    found: list[Any] = []
    for value in values:
        tensors = counted(tensors_in(value))
        if isinstance(value, (list, tuple)) and tensors:
            most = max(tensors, key=lambda one: one.numel())
            found += [one if one is most else None for one in tensors]
        else:
            found += tensors
    return found


def _bytes(tensor: Any) -> bytes:
    if tensor is None:
        return b""
    here = tensor.cpu().contiguous()
    return ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())


def read_values(folder: Path) -> Values:
    """What the steps that were looked at held; nothing where nobody looked."""
    found: Values = {}
    for path in sorted(folder.rglob(INDEX)):
        try:
            index, held = json.loads(path.read_text()), path.with_name(BYTES).read_bytes()
        except (OSError, ValueError):  # the program ended meanwhile
            continue
        begin = 0
        for name, given, sizes in index:
            key = name, tuple((tuple(shape), word) for shape, word in given)
            pieces = []
            for size in sizes:
                pieces.append(held[begin : begin + size])
                begin += size
            found.setdefault(key, tuple(pieces))
    return found


def values_of(values: Values, op: str, given: Operands) -> Held:
    """What an operation was given; where it is called by another, which alone was seen, what that was."""
    alike = (held for (_, other), held in values.items() if other == given != ())
    return values.get((op, given)) or next(alike, ())


def fill_in(call: Any, held: Sequence[bytes]) -> None:
    """Have the tensors of a call hold what was seen, over and over; all of a list what its largest does."""
    left = list(held)
    for value in (*call.args, *call.keywords.values()):
        tensors = counted(tensors_in(value))
        pieces, left = left[: len(tensors)], left[len(tensors) :]
        if isinstance(value, (list, tuple)) and any(pieces):
            seen, piece = max(zip(tensors, pieces, strict=True), key=lambda one: len(one[1]))
            pieces = [piece * (one.dtype == seen.dtype) for one in tensors]
        for tensor, piece in zip(tensors, pieces, strict=False):
            if piece:
                _fill(tensor, piece)


def _fill(tensor: Any, piece: bytes) -> None:
    import torch

    whole = tensor.detach().as_strided((reach(tensor.shape, tensor.stride()),), (1,))
    held = torch.frombuffer(bytearray(piece), dtype=tensor.dtype).to(tensor.device)
    times, rest = divmod(whole.numel(), held.numel())
    whole[: whole.numel() - rest].view(times, held.numel()).copy_(held)
    whole[whole.numel() - rest :].copy_(held[:rest])
