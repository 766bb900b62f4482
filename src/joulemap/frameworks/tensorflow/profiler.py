"""Sessions of TensorFlow's profiler: ours are short, and give way to the program's own."""

from __future__ import annotations

import ctypes
import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from joulemap.frameworks.adapter import TracerBusy
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.tensorflow.quiet import Silence
from joulemap.frameworks.tensorflow.watch import Watch

FORMAT = 1
_HINT = "Metering goes on, and tracing when it has ended; --overhead 0 meters without tracing."


class Profiler:
    """At most one session of ours is open, made past ``tf.profiler``, which does not know of it."""

    def __init__(self, watch: Watch, patches: Patches) -> None:
        from tensorflow.python.profiler.internal import _pywrap_profiler

        self._watch = watch
        self._lock = threading.RLock()
        self._make: Callable[[], Any] = _pywrap_profiler.ProfilerSession
        self._session: Any = None
        self._folder = Path()
        self._start_ns = 0
        self._silence: Callable[[], AbstractContextManager[None]] | None = None
        patches.put(_pywrap_profiler, "ProfilerSession", self._for_the_program)

    def start(self, folder: Path) -> None:
        """Open a session; its files will be in ``folder``."""
        from tensorflow.python.framework import errors
        from tensorflow.python.profiler import profiler_v2

        with self._lock, self._quietly():
            if self._session is not None or profiler_v2._profiler is not None:
                raise TracerBusy("TensorFlow's profiler is in use by the program.", _HINT)
            session = self._make()
            try:
                session.start(str(folder), {})
            except (errors.AlreadyExistsError, errors.UnavailableError):
                raise TracerBusy("TensorFlow's profiler is in use by somebody else.", _HINT) from None
            self._session, self._folder, self._start_ns = session, folder, time.time_ns()
            self._watch.ranges.open = True

    def stop(self) -> None:
        """Close it; its files are complete then."""
        with self._lock, self._quietly():
            session = self._taken()
            if session is None:
                raise TracerBusy("The program has opened TensorFlow's profiler in a session of ours.", _HINT)
            stop_ns = time.time_ns()
            session.export_to_tb()
            content = {"format": FORMAT, "start_ns": self._start_ns, "stop_ns": stop_ns}
            (self._folder / "session.json").write_text(json.dumps(content), encoding="utf-8")

    def drop(self) -> None:
        """End a session that is open, without its files."""
        with self._lock, self._quietly():
            session = self._taken()
            if session is not None:
                del session
                shutil.rmtree(self._folder, ignore_errors=True)

    def leave_to_parent(self) -> None:
        """In a forked child the session is the parent's; ended here too, it would be heard. So it is not."""
        if self._session is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
            self._session = None

    def _taken(self) -> Any:
        session, self._session = self._session, None
        self._watch.ranges.open = False
        return session

    def _for_the_program(self) -> Any:
        """The program makes a session of its own: ours goes first."""
        self._watch.attempt(self.drop)
        return self._make()

    def _quietly(self) -> AbstractContextManager[None]:
        if self._silence is None:
            self._silence = self._watch.attempt(_silence) or nullcontext
        return self._silence()


def _silence() -> Silence:
    from tensorflow.python.platform import sysconfig

    [library] = Path(sysconfig.get_lib()).glob("libtensorflow_framework.*")
    return Silence(library)
