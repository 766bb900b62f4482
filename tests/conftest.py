"""What several tests of the monitor stand on: a sensor that can be fed, and a daemon that serves it."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .monitor_daemon import Daemon, open_folder
from .monitor_meters import Feeder

pytest.register_assert_rewrite("tests.same_programs")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # how long an example takes says something about the machine only


def pytest_configure() -> None:
    """A background job of a shell ignores Ctrl-C, and so would all programs that the tests start from it.
    Threads that spin while they wait for each other take the cores from all other tests. And Triton, which
    comes with PyTorch for GPUs, crashes where it is imported after TensorFlow."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with suppress(ImportError):
        importlib.import_module("triton")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket, and open to other users."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def feeder(folder: Path) -> Iterator[Feeder]:
    """A counter in a file, which moves when it is told to."""
    feeder = Feeder(folder / "package-0_uj")
    yield feeder
    feeder.stop()


@pytest.fixture
def daemon(folder: Path, feeder: Feeder) -> Iterator[Daemon]:
    """``joulemap monitor``, serving that counter."""
    with Daemon(folder, folder / "s") as daemon:
        yield daemon
