"""A monitor beside the program, as its child: started, asked to stop, never waited for in vain.

It is a process of its own, so that the program's interpreter lock does not hold up the sampling, nor the
sampling the program; and in a session of its own, so that Ctrl-C lets it finish. Whatever happens to it,
the program goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.monitor.settings import EVERY_METER, Report, Settings
from joulemap.pipes import is_readable

READY_S, STOP_S = 60.0, 10.0
"""How long a monitor may take to start, and to stop."""

_HINT = "Try again; joulemap doctor says which meters work here."
# Isolated, so that a file beside the program that is named like a module of Python's is not taken for it.
_BOOT = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[-1])['path']; "
    "runpy.run_module('joulemap.monitor', run_name='__main__')"
)

# The monitor multiplies no matrices: threads for that, one a core, would only make its start slow.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class MonitorHandle:
    """A running monitor. Only the process that started it may stop it; forked children leave it alone."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._owner = os.getpid()
        self._heard = b""
        self._report: Report | None = None
        self.domains: Sequence[Domain] = ()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs. A program need not ask: it goes on in any case."""
        return self._process.poll() is None

    def stop(self, timeout_s: float = STOP_S) -> Report:
        """Have it write what it has, end, and say how it went. Never raises; a second call says the same."""
        if os.getpid() != self._owner:
            return Report([])
        if self._report is None:
            with suppress(OSError):  # it is dead already
                os.write(_fd(self._process.stdin), b"q")
            self._report = self._last_words(timeout_s)
            self.end()
        return self._report

    def _last_words(self, timeout_s: float) -> Report:
        said = self._listen(timeout_s)
        if "report" in said:
            return Report.from_content(said["report"])
        if "error" in said:
            return Report([f"The monitor broke off: {said['error']}"])
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S / 10)
        code = self._process.returncode
        how = "did not answer and was ended" if code is None else f"died (exit code {code})"
        return Report([f"The monitor {how}: the power is missing from its last second on."])

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once the first reading is taken; MeterError where none will be."""
        said = self._listen(timeout_s)
        if "ready" not in said:
            raise MeterError(said.get("error", "The monitor did not start."), said.get("hint", _HINT))
        self.domains = [Domain(**domain) for domain in said["ready"]]

    def _listen(self, timeout_s: float) -> dict[str, Any]:
        """The next line; empty where none comes any more."""
        until_s, handle = time.monotonic() + timeout_s, _fd(self._process.stdout)
        while b"\n" not in self._heard:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not is_readable(handle, left_s):
                return {}
            some = os.read(handle, 1 << 16)
            if not some:
                return {}
            self._heard += some
        line, _, self._heard = self._heard.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> None:
        """End it without asking how it went. No process and no descriptor is left behind."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(STOP_S / 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_monitor(
    recording: str | os.PathLike[str],
    *,
    program_pid: int | None = None,
    meters: str = EVERY_METER,
    arguments: Mapping[str, Any] | None = None,
    timeout_s: float = READY_S,
) -> MonitorHandle:
    """Start a monitor that adds power and shares to a recording, and return once it has taken a reading.

    ``program_pid`` is the process whose tree is the program, by default this one. ``meters`` names a
    function, ``module:function``, which is called in the monitor with ``arguments`` and returns the
    meters. MeterError where nothing can be metered.
    """
    settings = Settings(
        recording=os.path.abspath(recording),  # noqa: PTH100 - os.PathLike comes in, text goes out
        parent_pid=os.getpid(),
        program_pid=program_pid or os.getpid(),
        meters=meters,
        arguments=arguments or {},
        path=[os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _BOOT, "joulemap.monitor", settings.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env={**os.environ, **_ONE_THREAD},
        start_new_session=True,
    )
    handle = MonitorHandle(process)
    try:
        handle.wait_until_ready(timeout_s)
    except BaseException:
        handle.end()
        raise
    return handle


def _fd(pipe: IO[bytes] | None) -> int:
    return -1 if pipe is None or pipe.closed else pipe.fileno()
