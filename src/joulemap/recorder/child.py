"""The program as a child process: started, passed its signals, waited for, and its end passed on."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

DOOR = Path(__file__).parent / "door"
_FROM_TERMINAL = 128  # SI_KERNEL: the program got it as well
_PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class Program:
    """A running program. It waits for its settings before its first line runs."""

    def __init__(self, arguments: Sequence[str], output_to_errors: bool = False) -> None:
        self._handle, pipe = os.pipe()
        os.set_inheritable(self._handle, True)
        self._pipe: int | None = pipe
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
        command = [sys.executable, *_flags(), *arguments]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                command,
                self._environment(),
                file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)] if output_to_errors else [],
                setsigmask=self._before,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them; a shell would not
            )
        except BaseException:
            os.close(pipe)
            self._restore_signals()
            raise
        finally:
            os.close(self._handle)

    def _environment(self) -> dict[str, str]:
        path = os.environ.get("PYTHONPATH")
        joined = str(DOOR) if path is None else f"{DOOR}{os.pathsep}{path}"
        return {**os.environ, "PYTHONPATH": joined, "JOULEMAP_HANDLE": str(self._handle)}

    def go(self, settings: bytes) -> None:
        """Let it begin."""
        if self._pipe is not None:
            try:
                os.write(self._pipe, settings)
            except BrokenPipeError:  # it was killed before it began
                pass
            finally:
                os.close(self._pipe)
                self._pipe = None

    def wait(self) -> int:
        """Until it ends: its exit code, or minus the signal that ended it. Signals that were meant for it are
        passed on; the terminal sends Ctrl-C to both of us, so that one is not."""
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._restore_signals()
                return os.waitstatus_to_exitcode(status)
            caught = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
            if caught.si_signo != signal.SIGCHLD and caught.si_code != _FROM_TERMINAL:
                os.kill(self.pid, caught.si_signo)

    def _restore_signals(self) -> None:
        """As they were; what is still pending was meant for the program, which is gone."""
        for number in _PASSED_ON:
            handler = signal.signal(number, signal.SIG_IGN)
            if handler is not None:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _flags() -> list[str]:
    """The options this Python was started with, as in ``python -X dev -m joulemap run``."""
    given = sys.orig_argv[1:]
    ends = (number for number, word in enumerate(given) if word in ("-m", "-c", sys.argv[0]))
    return given[: next(ends, 0)]


def end_like(code: int) -> None:
    """End this process as the program ended: with its exit code, or by its signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), -code)
    sys.exit(code)


def how_it_ended(code: int) -> str:
    """A sentence for a recording whose program did not run its exit handlers."""
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        return f"The program was ended by {name}: what it did in its last two seconds may be missing."
    return (
        f"The program left without its exit handlers (os._exit or exec; exit code {code}): "
        "what it did in its last two seconds may be missing."
    )
