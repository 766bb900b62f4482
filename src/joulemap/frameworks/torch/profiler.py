"""Sessions of PyTorch's profiler: ours are short, and give way to the program's own."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from joulemap.frameworks.adapter import TooEarly, TracerBusy
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.aside import aside, unseen
from joulemap.frameworks.torch.calls import Calls
from joulemap.frameworks.torch.dataflow import Dataflow
from joulemap.frameworks.torch.extract import write_events
from joulemap.frameworks.torch.kinds import MOST
from joulemap.frameworks.torch.quiet import OF_KINETO, OF_MEMORY, Silence, without
from joulemap.frameworks.torch.residue import Residue
from joulemap.frameworks.torch.rotation import cache_bytes
from joulemap.frameworks.torch.touches import write_touches
from joulemap.frameworks.watch import Watch

_OTHERS = "others"
_NO_SLICES = " tells a session of one thread alone, and slices of time of none."
_MARK = "Mark the program's steps with joulemap.step(), or take a newer PyTorch."
_LEFT = " leaves it to the thread that opened a session to end it, and that does something else."
_HINT = "Metering goes on, and tracing when it has ended; --overhead 0 meters without tracing."


class Profiler:
    """At most one session of ours is open. Sessions of the program's are noticed where torch opens them.

    In older versions of torch a session is ``bound`` to the thread that opens it: it has that thread's
    operations alone, and nobody else can end it. One that somebody else should have ended is left to that
    thread, which ends it when it comes by.
    """

    def __init__(self, watch: Watch, calls: Calls, patches: Patches) -> None:
        from torch.autograd import profiler

        self._watch, self._calls = watch, calls
        self._torch: Any = profiler
        self._lock = threading.RLock()
        self._starting = self._theirs = False
        self._session: Any = None
        self.bound = _all_threads() is None
        self._opener = 0
        self._is_left = False
        self._on_gpu = self._looks = False
        self._counts: str | None = None
        self._cached = "", 0
        self.waited_s = 0.0
        self.touching: set[str] = set()
        self._folder = Path()
        self._sessions: Counter[str] = Counter()
        self._disable: Callable[[], Any] = profiler._disable_profiler
        self._residue = Residue(watch, patches)
        self._silence: Callable[[], AbstractContextManager[None]] | None = None
        for name in ("_prepare_profiler", "_enable_profiler"):
            patches.put(profiler, name, self._first(getattr(profiler, name)))
        patches.put(profiler, "_disable_profiler", unseen(self._for_the_program))

    def start(self, folder: Path) -> None:
        """Open a session. What a GPU has still to do from before is waited for: it is no part of it."""
        with self._lock:
            self.waited_s = 0.0
            self.refuse_if_busy()
            label = self._watch.steps.open_label()  # none of a slice of time
            if self.bound and not label and _in_a_thread_of_ours():
                raise TracerBusy(_version() + _NO_SLICES, _MARK)
            if label not in self._sessions and len(self._sessions) >= MOST:
                label = _OTHERS  # a program may give each step a label of its own
            if not self._watch.steps.is_open() and gpus.to_come():
                raise TooEarly("A first session without a GPU would be the last that could have one.", _HINT)
            thorough = _is_power_of_four(self._sessions[label] + 1)
            self._open(folder, record_shapes=thorough, experimental_config=_all_threads())
            try:
                self._calls.names.learn()
            except BaseException:  # a module that cannot be asked for its parts, or a signal's handler
                self.drop()
                raise
            self._sessions[label] += 1
            self._counts = label
            self._calls.flow = Dataflow() if thorough else None
            self._calls.tracing = True

    def compiles(self) -> None:
        """The step that is traced is no example of others: the next session is as thorough as this one."""
        if self._session is not None and self._counts:
            self._sessions[self._counts] -= 1
            self._counts = None

    def look(self, folder: Path) -> bool:
        """Open a session that tells where tensors lie, and no more; False without a GPU that has a cache.
        What is allocated is only told of one thread, and those of its backward passes."""
        import torch

        with self._lock:
            self._cached = _cached()
            if not all(self._cached):
                return False
            self.refuse_if_busy()
            before = torch.empty(1, device="cpu")
            self._open(folder, record_shapes=True, profile_memory=True)
            self._looks = True
            with suppress(OSError), without(OF_MEMORY):  # torch says that of one block in a thousand
                del before
            return True

    def refuse_if_busy(self) -> None:
        """``TracerBusy`` where a session is open, whoever's it is."""
        import torch

        self._end_what_is_left()
        if self._is_left:
            raise TracerBusy(_version() + _LEFT, _HINT)
        if self._session is not None or self._theirs or torch.autograd._profiler_enabled():
            raise TracerBusy("PyTorch's profiler is in use by the program.", _HINT)

    def _open(self, folder: Path, **asked: Any) -> None:
        self._on_gpu = gpus.in_use()
        if self._on_gpu:
            self._wait()
            self._residue.session_begins()
        self._session = self._entered(**asked)
        self._folder, self._opener = folder, threading.get_ident()

    def _wait(self) -> None:
        """Until GPUs have done what they were given; ``waited_s`` says how long that took."""
        begin_s = time.perf_counter()
        gpus.wait()
        self.waited_s = time.perf_counter() - begin_s

    def _entered(self, **asked: Any) -> Any:
        self._starting = True
        try:
            session = self._torch.profile(
                use_kineto=True, use_device="cuda" if self._on_gpu else None, **asked
            )
            with self._first_of_all():
                session._prepare_trace()
            with self._quietly():
                session._start_trace()
        finally:
            self._starting = False
        return session

    def settle(self) -> None:
        """A step ends: in a session it has ended when the GPU has. After one, the tracer is gone by now."""
        if self._session is not None and self._on_gpu:
            gpus.wait()
        elif self._session is None:
            self._residue.step_ended()
        self._end_what_is_left()

    def stop(self) -> None:
        """Close it, and write its events down."""
        with self._lock:
            if self._session is None:
                raise TracerBusy("The program has opened PyTorch's profiler in a session of ours.", _HINT)
            if self._leave_to_opener():
                raise TracerBusy(_version() + _LEFT, _HINT)
            if self._looks:
                with _uncollected():
                    tree = self._ended().experimental_event_tree()
                    self.touching = write_touches(tree, self._folder, *self._cached)
                return
            flow, results = self._calls.flow, self._ended()
            classes, tree = self._calls.names.classes(), results.experimental_event_tree
            with _uncollected():
                write_events(results.events(), self._folder, classes, flow, tree)

    def drop(self) -> None:
        """End a session that is open, without its events."""
        with self._lock:
            if self._session is not None:
                if not self._leave_to_opener():
                    self._ended()
                shutil.rmtree(self._folder, ignore_errors=True)
            self._residue.clear()

    def _leave_to_opener(self) -> bool:
        """Whether only another thread can end the session, which it will when it comes by."""
        if not self.bound or threading.get_ident() == self._opener:
            return False
        self._calls.tracing, self._calls.flow, self._is_left = False, None, True
        return True

    def _end_what_is_left(self) -> None:
        if self._is_left and threading.get_ident() == self._opener:
            with self._lock:
                self._ended()

    def leave_to_parent(self) -> None:
        """In a forked child the session is the parent's; the profiler's threads are there."""
        self._session, self._is_left = None, False
        self._lock = threading.RLock()

    def _ended(self) -> Any:
        """The results of the session, which is over; never parsed by torch, which takes 60 µs an event."""
        self._calls.tracing, self._calls.flow = False, None
        self._session, self._looks, self._counts, self._is_left = None, False, None, False
        with self._quietly():
            if self._on_gpu:
                gpus.wait()
            results = self._disable()
            self._torch._run_on_profiler_stop()
            if self._on_gpu:
                self._residue.session_ended()
        return results

    def _first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``original``, and before it ours goes, where the program is the one who calls."""

        attempt = aside(self._watch)

        def opens(*args: Any, **kwargs: Any) -> Any:
            if not self._starting:
                attempt(self.drop)
                self._theirs = True
            return original(*args, **kwargs)

        return unseen(opens)

    def _for_the_program(self, *args: Any, **kwargs: Any) -> Any:
        self._theirs = False
        return self._disable(*args, **kwargs)

    def _first_of_all(self) -> AbstractContextManager[None]:
        here = threading.get_ident() == threading.main_thread().ident
        return nullcontext() if self._sessions or here else without(OF_KINETO)

    def _quietly(self) -> AbstractContextManager[None]:
        if self._silence is None:
            self._silence = self._watch.attempt(Silence) or nullcontext
        return self._silence()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage meanwhile: for thousands of lists that soon go by themselves, Python would
    look through all that the program holds, which may take as long as all the rest."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _cached() -> tuple[str, int]:
    """The kind of device whose cache matters, and the bytes of that; none without a GPU."""
    import torch

    if not gpus.in_use():
        return "", 0
    return "cuda", cache_bytes(torch.device("cuda", torch.cuda.current_device()))


def _is_power_of_four(number: int) -> bool:
    """Shapes and dataflow make a session twice as dear and seldom change: of each kind of step the 1st, 4th,
    16th, … has them."""
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1


def _in_a_thread_of_ours() -> bool:
    """Those of the program's that have no step open are known to Python, and our slicer's is not."""
    return threading.get_ident() not in {one.ident for one in threading.enumerate()}


def _version() -> str:
    import torch

    return f"PyTorch {torch.__version__}"


def _all_threads() -> Any:
    """So that a session of any thread has the operations of all, where torch knows how."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # an older torch
        return None
