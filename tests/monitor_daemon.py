"""A ``joulemap monitor`` in a process of its own, for tests of those who read from it."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from .environment import uncovered
from .recordings import REPOSITORY

NOBODY = 65534
FILES = "tests.monitor_meters:meters_from_environment"


@contextmanager
def open_folder():
    """Short enough for a socket, and open to other users."""
    with tempfile.TemporaryDirectory(prefix="jm-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


class Daemon:
    """Serves the counters of a folder at a socket; started, killed and started again."""

    def __init__(self, folder, path, *arguments, python=sys.executable, user=None):
        self.path = path
        self._command = [python, "-m", "joulemap", "monitor", "--socket", path, "--meters", FILES, *arguments]
        self._env = {**plain_environment(), "SENSORS": str(folder)}
        self._user = user
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            self._command, cwd=REPOSITORY, env=self._env, stdout=subprocess.PIPE, text=True, user=self._user
        )
        if not self.process.stdout.readline().startswith("Serving "):
            raise AssertionError(f"It did not start: exit code {self.stop(signal.SIGKILL)}.")
        return self

    def stop(self, how=signal.SIGTERM):
        """Its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        elif not self.process.stdout.closed:
            self.process.stdout.close()


def plain_environment():
    """Without what measures coverage in subprocesses: another user could not write its files."""
    return {**uncovered(), "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])}


@cache
def python_for_nobody():
    """A Python that another user may run, with what we have installed; the test is skipped without one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    here = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, here):
        try:
            done = subprocess.run(
                [python, "-c", "import joulemap.monitor.service"],
                env=plain_environment(),
                cwd="/",
                user=NOBODY,
                capture_output=True,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return pytest.skip("no Python here that another user may run")
