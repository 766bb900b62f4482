"""Kernels of ours in PyTorch's dispatcher, which see the calls of some operations.

They stand between autograd and the device, at ``BackendSelect``, where most operations have none. To put one
in or take it out while another thread is on its way there makes that thread fail, or crash; so that is done
while all others wait.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from traceback import walk_stack
from types import FrameType
from typing import Any

from joulemap.frameworks.torch.aside import out_of_sight

KEY = "BackendSelect"
PATIENCE_S, LOOK_S, SWITCH_S = 1.0, 0.002, 0.1
"""How long to wait for other threads, how long each must do nothing, and how long it then does not get
Python's lock: to put a hundred kernels in takes 15 ms, and to take them out less than one."""
_STANDARD, _OURS = str(Path(threading.__file__).parent), str(Path(__file__).parent)
_TASKS = Path("/proc/self/task")


class Kernels:
    """Those that were put in."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []

    def put(self, overload: Any, kernel: Callable[..., Any]) -> None:
        """Have a kernel called with the keys and the arguments of every call; ``RuntimeError`` or
        ``TypeError`` where this PyTorch has no such thing."""
        import torch

        space, _, name = overload.name().partition("::")
        library = torch.library.Library(space, "IMPL")
        library.impl(name, out_of_sight(kernel), KEY, with_keyset=True)
        self._libraries.append(library)

    def remove(self) -> bool:
        """Leave the dispatcher as it was; False where other threads compute all the time, and they stay."""
        until_s = monotonic() + PATIENCE_S
        while self._libraries and not self._removed():
            if monotonic() > until_s:
                return False
        return True

    def _removed(self) -> bool:
        with alone() as is_so:
            while is_so and self._libraries:
                self._libraries.pop()._destroy()
        return not self._libraries


@contextmanager
def alone() -> Iterator[bool]:
    """Whether no other thread is in an operation, nor will be for as long as this lasts, since they do not
    get Python's lock."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield _others_wait()
    finally:
        sys.setswitchinterval(before_s)


def _others_wait() -> bool:
    """None of them is in a kernel of ours, and none has run for a while."""
    before = _others()
    if before:
        sleep(LOOK_S)
    return before is not None and (not before or before == _others())


def _others() -> dict[int, Any] | None:
    """Where each of them is, and how much it has run; None where one computes."""
    me, found = threading.get_ident(), {}
    numbers = {one.ident: str(one.native_id) for one in threading.enumerate()}
    for thread, frame in sys._current_frames().items():
        if thread != me:
            tasks = [numbers[thread]] if thread in numbers else _not_among(numbers.values())
            ran = _ran(tasks)
            is_ours = any(one.f_code.co_filename.startswith(_OURS) for one, _ in walk_stack(frame))
            if is_ours or (ran is None and not _is_standard(frame)):
                return None
            found[thread] = id(frame), frame.f_lasti, ran
    return found


def _not_among(known: Iterable[str]) -> list[str]:
    """Threads that Python does not know by a number of the system: somebody's, or of no Python at all."""
    try:
        return sorted({task.name for task in _TASKS.iterdir()} - {*known, str(threading.get_native_id())})
    except OSError:
        return []


def _ran(tasks: Sequence[str]) -> list[str] | None:
    """How often the system has run threads, and for how long; None where one runs now, or nobody knows."""
    try:
        states = [(_TASKS / task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
        said = [(_TASKS / task / "schedstat").read_text() for task in tasks]
    except OSError:
        return None
    return said if said and "R" not in states else None


def _is_standard(frame: FrameType) -> bool:
    """Whether it is in a function of the standard library: of locks and queues, as a rule."""
    name = frame.f_code.co_filename
    return (name.startswith(_STANDARD) and "-packages" not in name) or name.startswith("<frozen")
