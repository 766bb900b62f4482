"""What large operands of a program's operations hold: some bytes of each, for replays.

What an operation draws depends on the bits that change from one value to the next. On an H200 a square of
numbers that came from bfloat16 takes 13 % less than one of any others of the same type, a backward pass of
layer normalisation 10 %, and random values of any distribution are not what a program has. So in one step
kernels of ours stand in the dispatcher between autograd and the device, as where operations are repeated, and
keep a piece of each large tensor that passes, of some of the calls that are alike. (A mode of the dispatcher
would see the same, but while there is one, autograd takes other ways for some operations.) What graphs of
``torch.compile`` call is seen in their generated code.

Calls that are alike differ: a product of one shape reads normalised numbers in one place, and in the next
what attention made, whose neighbouring rows are much the same. Layers repeat such a pattern of two to four
calls, and every other call, or every fourth, is of one kind. So calls are looked at that follow each other,
in a few places.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.again import Refused, Thread
from joulemap.frameworks.torch.caches import Operands
from joulemap.frameworks.torch.inputs import reach
from joulemap.frameworks.torch.kernels import Kernels
from joulemap.frameworks.torch.launched import PREFIX, RESULT, Launch, parameters, source_of
from joulemap.frameworks.torch.repeating import below, operands, overloads
from joulemap.frameworks.torch.rotation import counted, tensors_in
from joulemap.frameworks.torch.stand_ins import generated_modules, kernels_of, put_kernel, put_libraries

INDEX, BYTES = "values.json", "values.bin"
PIECE, LEAST_PIECE = 32 * 1024, 1024
"""Bytes of one tensor, in one piece, so that neighbours stay neighbours; and how few they may become."""
RUN, RUNS = 4, 2
"""Of the calls that are alike, so many in a row are looked at, and so many such rows, by chance."""
_ORDER = 5
"""With which rows that are chosen lie apart, and not at the beginning alone, however many there are."""
PLACES = 2**0.5
"""From one call to the next, where a piece comes from, round and round."""
_OF_OPTIMIZERS = ("_foreach_", "_fused_")
LEAST = 1024 * 1024
"""What has fewer bytes draws little, and is not looked at."""
MOST = 64 * 1024 * 1024
"""Of all tensors together: where it is more, every piece is halved, and those that come are as small."""

Held = tuple[bytes, ...]
"""Pieces of each tensor that an operation is given, one after the other; none of those not looked at."""
Key = tuple[str, Operands]
"""An operation and what it is given; a kernel of inductor's own has the file of its code in its name."""
Values = dict[Key, Held]


class Alike:
    """Some of the calls that are alike: pieces of each tensor, by the number of the call; ``size`` is how
    many bytes all of them are."""

    def __init__(self) -> None:
        self._calls = 0
        self._runs: list[int] = []
        self.kept: dict[int, list[Any]] = {}
        self.size = 0

    def look(self, large: Sequence[Any], bytes_each: int) -> None:
        """At one more call, if it is chosen."""
        number = self._calls
        self._calls += 1
        run, place = divmod(number, RUN)
        if place == 0:
            self._runs = sorted([*self._runs, run], key=_chance)[:RUNS]
        if run in self._runs:
            where = number * PLACES + 0.5
            self.kept[number] = [None if one is None else _piece(one, where, bytes_each) for one in large]
            self.kept = {one: some for one, some in self.kept.items() if one // RUN in self._runs}
            self.size = _size(self.kept.values())

    def halve(self) -> None:
        """Keep half of each piece."""
        for pieces in self.kept.values():
            pieces[:] = [None if one is None else one[: (one.numel() + 1) // 2].clone() for one in pieces]
        self.size = _size(self.kept.values())


def _chance(run: int) -> int:
    """A number that is another one for every run, and the same in every program."""
    return hash((run, _ORDER))


def _size(kept: Iterable[Iterable[Any]]) -> int:
    pieces = (one for some in kept for one in some if one is not None)
    return sum(one.numel() * one.element_size() for one in pieces)


class Taster:
    """Looks at some operations on devices of one kind, from ``begin`` to ``end``; not where ``hidden``."""

    def __init__(
        self, device: str, hidden: Callable[[], object], failed: Callable[[Exception], object]
    ) -> None:
        self._device, self._hidden, self._failed = device, hidden, failed
        self._kept: dict[Key, Alike] = {}
        self._piece, self._size = PIECE, 0
        self._looks, self._lock = True, Lock()
        self._thread = Thread()
        self._kernels, self._patches = Kernels(), Patches()

    def begin(self, ops: Iterable[str]) -> None:
        """Take part in the dispatch of these operations, and in what generated code calls; what optimizers
        and that write into is seen as it was."""
        for module in generated_modules():
            put_libraries(self._patches, module, self._library)
            for kernel, results in _kernels_of(module):
                named = _in_code(PREFIX + kernel, module.__file__)
                put_kernel(self._patches, module, kernel, partial(self._launched, named, results))
        for op in sorted(one for one in ops if not one.startswith(PREFIX)):
            name = op.removeprefix("aten::")
            with suppress(Refused):
                for overload in overloads(op, writing=name.startswith(_OF_OPTIMIZERS)):
                    with suppress(RuntimeError, TypeError):  # an older torch does not hand out the keys
                        self._kernels.put(overload, self._kernel(name, overload))

    def _kernel(self, op: str, overload: Any) -> Callable[..., Any]:
        ready, thread, look = below(overload), self._thread, self._look

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if not thread.inside:
                thread.inside = True
                try:
                    look(op, (*args, *kwargs.values()))
                finally:
                    thread.inside = False
            return ready(keys, args, kwargs)()

        return kernel

    def _library(self, op: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What finds memory for its result itself passes the dispatcher."""
        if "out" in named:
            self._look(op, (*args, *named.values()), [named["out"]])
        return function(*args, **named)

    def _launched(self, name: str, places: Sequence[int], launch: Launch) -> Any:
        results = [one for place, one in enumerate(launch.operands) if place in places]
        self._look(name, launch.operands, results)
        return launch.kernel(*launch.operands, **launch.named)

    def end(self) -> None:
        """Look no more, and leave the dispatcher and generated code as they were."""
        self._looks = False
        self._patches.restore()
        if not self._kernels.remove():
            self._failed(TimeoutError("other threads compute all the time, so that kernels of ours stay"))

    def write(self, folder: Path) -> None:
        """Write what was seen."""
        folder.mkdir(parents=True, exist_ok=True)
        index = []
        with (folder / BYTES).open("wb") as file:
            for (name, given), alike in self._kept.items():
                held = [b"".join(map(_bytes, pieces)) for pieces in zip(*alike.kept.values(), strict=True)]
                file.writelines(held)
                index.append((name, given, [len(one) for one in held]))
        (folder / INDEX).write_text(json.dumps(index, separators=(",", ":")))

    def _look(self, name: str, values: Sequence[Any], results: Sequence[Any] = ()) -> None:
        """Memory for ``results`` is yet to be written, and holds what somebody else has left there."""
        from torch._C import DisableTorchFunctionSubclass as Unheard

        try:
            if not self._looks or self._hidden():
                return
            with Unheard():  # of classes of the program's own
                unwritten = set(map(id, results))
                wanted = (None if id(one) in unwritten else one for one in _largest(values))
                large = [one if self._is_large(one) else None for one in wanted]
                if any(one is not None for one in large):
                    with self._lock:
                        self._keep((name, operands(values)), large)
        except Exception as error:  # noqa: BLE001 - the program goes on
            self._looks = False
            self._failed(error)

    def _keep(self, key: Key, large: Sequence[Any]) -> None:
        alike = self._kept.setdefault(key, Alike())
        before = alike.size
        alike.look(large, self._piece)
        self._size += alike.size - before
        while self._size > MOST and self._piece > LEAST_PIECE:
            self._piece //= 2
            for one in self._kept.values():
                one.halve()
            self._size = sum(one.size for one in self._kept.values())
        self._looks &= self._size <= MOST

    def _is_large(self, tensor: Any) -> bool:
        """Whether it is memory and nothing else, here, and much of it."""
        import torch

        if tensor is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if tensor.layout is not torch.strided or tensor._is_zerotensor() or tensor.is_neg():
            return False
        here = tensor.device.type == self._device and tensor.is_floating_point()
        return here and reach(tensor.shape, tensor.stride()) * int(tensor.element_size()) >= LEAST


def _kernels_of(module: Any) -> list[tuple[str, list[int]]]:
    """The kernels in generated code of which it is known what they are given: which of that is memory for
    their results."""
    try:
        code = Path(module.__file__).read_text()
    except OSError:  # it was deleted
        return []
    found = []
    for kernel in kernels_of(module):
        names = parameters(source_of(code, kernel))
        if names:
            results = [place for place, name in enumerate(names) if RESULT.fullmatch(name)]
            found.append((kernel, results))
    return found


def _piece(tensor: Any, place: float, most: int) -> Any:
    """Some of a tensor's memory, from ``place`` of the way through it (as often round as it likes): whole
    lines, where these are short, ``most`` bytes."""
    size, whole = most // tensor.element_size(), reach(tensor.shape, tensor.stride())
    wide = [stride for stride, count in zip(tensor.stride(), tensor.shape, strict=True) if count > 1 < stride]
    line = min(wide, default=1)
    line = line if line <= size else 1
    size -= size % line
    begin = int(place % 1 * (whole - size) / line) * line
    return tensor.detach().as_strided((whole,), (1,))[begin : begin + size].clone()


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


def held_by_kernel(values: Values, op: str, files: Iterable[str]) -> Held:
    """What a kernel of inductor's own was given, in any of these files; nothing where nobody looked."""
    known = {_in_code(op, file) for file in files}
    return next((held for (name, _), held in values.items() if name in known), ())


def _in_code(op: str, file: str) -> str:
    return f"{op} in {file}"


def held_by(values: Values, op: str, given: Operands) -> Held:
    """What an operation was given; of one that was not looked at, what others hold in tensors like these."""
    own = values.get((op, given))
    if own is not None:
        return own
    every = chain.from_iterable(zip(other, held, strict=True) for (_, other), held in values.items())
    alike = {one: pieces for one, pieces in every if pieces}
    return tuple(alike.get(one, b"") if one[1] else b"" for one in given)


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
            if piece and tensor.is_floating_point():
                _fill(tensor, piece)


def _fill(tensor: Any, piece: bytes) -> None:
    import torch

    whole = tensor.detach().as_strided((reach(tensor.shape, tensor.stride()),), (1,))
    held = torch.frombuffer(bytearray(piece), dtype=tensor.dtype).to(tensor.device)
    times, rest = divmod(whole.numel(), held.numel())
    whole[: whole.numel() - rest].view(times, held.numel()).copy_(held)
    whole[whole.numel() - rest :].copy_(held[:rest])
