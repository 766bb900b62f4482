"""Sessions of JAX's profiler: ours are short, and give way to the program's own."""

from __future__ import annotations

import ctypes
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from joulemap.frameworks.adapter import TooEarly, TracerBusy
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.watch import Watch

FILE = "session.xplane.pb"
AGAIN_S = 1.0
"""After how long a session that came too early is tried again."""
_READY_S, _NEVER = 1.0, float("inf")
"""For how long calls then wait for their results, at least."""
_STEPS = 2.0
"""All waiting may take so many steps as long as the last one, where that is more."""
_FEW, _FIRST_S, _MOMENT_S, _LOOK_S = 3, 2.0, 0.05, 0.001
"""How long results are waited for: before the first few sessions, which matter most, and before others."""
_THEIRS = ("profile_session", "session")
"""Where ``jax.profiler`` keeps the program's session: until JAX 0.11, and since 0.12."""
_HINT = "Metering goes on, and tracing when it has ended; --overhead 0 meters without tracing."


class Profiler:
    """At most one session of ours is open, made past ``jax.profiler``, which does not know of it."""

    def __init__(
        self,
        watch: Watch,
        patches: Patches,
        last_s: Callable[[], float],
        programs: Callable[[], int | None],
    ) -> None:
        from jax._src import profiler

        self._watch, self._jax, self._last_s, self._programs = watch, profiler, last_s, programs
        self._lock = threading.RLock()
        self._make: Callable[..., Any] = profiler._profiler.ProfilerSession
        self._session: Any = None
        self._of_step, self._sessions = False, 0
        self._described: int | None = None
        self._describes: int | None = None
        self._ready_from_s = _NEVER
        self.waited_s = 0.0
        self._folder = Path()
        patches.put(profiler._profiler, "ProfilerSession", self._for_the_program)

    @property
    def in_step(self) -> bool:
        """Whether results are to be waited for: a session for steps is open, or is about to be."""
        if self._session is not None:
            return self._of_step
        if self._ready_from_s == _NEVER:
            return False
        since_s = time.monotonic() - self._ready_from_s
        return 0 <= since_s < max(_READY_S, _STEPS * self._last_s())

    def start(self, folder: Path) -> None:
        """Open a session. Not while there is something to be computed from before, which is no part of it:
        then the calls a second later wait for their results, and the next try finds everything done."""
        from jax._src import xla_bridge

        with self._lock:
            self.waited_s = 0.0
            if self._session is not None or self._is_theirs():
                raise TracerBusy("JAX's profiler is in use by the program.", _HINT)
            if not xla_bridge.backends_are_initialized():
                raise TooEarly("JAX has not chosen its devices yet, and this would choose them.", _HINT)
            self._of_step = self._watch.steps.is_open()  # or of a slice of time
            if self._of_step and self._in_flight(self._patience_s()):
                self._ready_from_s = time.monotonic() + AGAIN_S
                raise TooEarly("What was called before is still being computed.", _HINT)
            self._ready_from_s = _NEVER
            self._sessions += self._of_step
            self._describes = self._programs()
            known = self._of_step and self._describes is not None and self._describes == self._described
            self._session, self._folder = self._make(_options(self._jax, programs=not known)), folder

    def _patience_s(self) -> float:
        """How long to wait for results: a program that waits for each has the last one still before it."""
        return max(_FIRST_S, _STEPS * self._last_s()) if self._sessions < _FEW else _MOMENT_S

    def _is_theirs(self) -> bool:
        """Whether the program has a session open."""
        state = vars(self._jax._profile_state)
        return any(state.get(name) is not None for name in _THEIRS)

    def _in_flight(self, patience_s: float) -> bool:
        """Whether what was called before is still being computed after a while; ``waited_s`` says how long
        it took."""
        begin_s = time.monotonic()
        in_flight = _in_flight(patience_s)
        self.waited_s = time.monotonic() - begin_s
        return in_flight

    def stop(self) -> None:
        """Close it, and write what it holds."""
        with self._lock:
            if self._of_step:
                wait_for_all()
            session, self._session = self._session, None
            if session is None:
                raise TracerBusy("The program has opened JAX's profiler in a session of ours.", _HINT)
            try:
                content = session.stop()
            except RuntimeError as error:  # a session was open already, which only shows now
                raise TracerBusy(f"JAX's profiler was in use by somebody else ({error}).", _HINT) from None
            (self._folder / FILE).write_bytes(content)
            self._described = self._describes

    def drop(self) -> None:
        """End a session that is open, without its file."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                del session
                shutil.rmtree(self._folder, ignore_errors=True)

    def leave_to_parent(self) -> None:
        """In a forked child the session is the parent's; ended here too, it would wait for its threads."""
        if self._session is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
            self._session = None
        self._lock = threading.RLock()

    def _for_the_program(self, *args: Any, **kwargs: Any) -> Any:
        """The program makes a session of its own: ours goes first."""
        self._watch.attempt(self.drop)
        return self._make(*args, **kwargs)


def wait_for(results: Any) -> None:
    """Until they are there. An error in them is the program's to find."""
    import jax

    with suppress(Exception):
        jax.block_until_ready(results)


def _in_flight(patience_s: float) -> bool:
    """Whether any array that the program holds is still to be computed after a while."""
    import jax

    until_s = time.monotonic() + patience_s
    for array in jax.live_arrays():
        while not array.is_deleted() and not array.is_ready():
            if time.monotonic() > until_s:
                return True
            time.sleep(_LOOK_S)
    return False


def wait_for_all() -> None:
    """Until every array that the program holds is there."""
    import jax

    for array in jax.live_arrays():
        with suppress(Exception):  # it may be donated meanwhile, or hold an error
            array.block_until_ready()


def _options(profiler: Any, *, programs: bool) -> Any:
    """Without the calls of Python, which would be most of what a session holds; and without the compiled
    programs where an earlier one has them, since to write them takes most of the time that a session does."""
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    if not programs and hasattr(options, "enable_hlo_proto"):
        options.enable_hlo_proto = False
    return options
