"""Sessions of JAX's profiler: ours are short, and give way to the program's own."""

from __future__ import annotations

import ctypes
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from joulemap.frameworks.adapter import TooEarly, TracerBusy
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.watch import Watch

FILE = "session.xplane.pb"
_HINT = "Metering goes on, and tracing when it has ended; --overhead 0 meters without tracing."


class Profiler:
    """At most one session of ours is open, made past ``jax.profiler``, which does not know of it."""

    def __init__(self, watch: Watch, patches: Patches) -> None:
        from jax._src import profiler

        self._watch, self._jax = watch, profiler
        self._lock = threading.RLock()
        self._make: Callable[..., Any] = profiler._profiler.ProfilerSession
        self._session: Any = None
        self._of_step = False
        self._folder = Path()
        patches.put(profiler._profiler, "ProfilerSession", self._for_the_program)

    @property
    def tracing(self) -> bool:
        """Whether a session for steps is open: then whoever calls a function waits for its result."""
        return self._session is not None and self._of_step

    def start(self, folder: Path) -> None:
        """Open a session. What is still to be computed from before is waited for: it is no part of it."""
        from jax._src import xla_bridge

        with self._lock:
            if self._session is not None or self._jax._profile_state.profile_session is not None:
                raise TracerBusy("JAX's profiler is in use by the program.", _HINT)
            if not xla_bridge.backends_are_initialized():
                raise TooEarly("JAX has not chosen its devices yet, and this would choose them.", _HINT)
            self._of_step = self._watch.steps.is_open()  # or of a slice of time
            if self._of_step:
                wait_for_all()
            self._session, self._folder = self._make(_options(self._jax)), folder

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


def wait_for_all() -> None:
    """Until every array that the program holds is there."""
    import jax

    for array in jax.live_arrays():
        with suppress(Exception):  # it may be donated meanwhile, or hold an error
            array.block_until_ready()


def _options(profiler: Any) -> Any:
    """Without the calls of Python, which would be most of it."""
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    return options
