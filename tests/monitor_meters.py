"""Small meters for tests: counters in files, as RAPL has them, and numbers from a function."""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters import Probe
from joulemap.meters.rapl import RaplMeter
from joulemap.meters.remote import RemoteMeter
from joulemap.meters.schedule import Every

WRAPS_AT_J = 262_143.0


@dataclass
class FileChannel:
    """A file with microjoules, opened anew for each reading, so that it may vanish and come back."""

    path: Path
    domain: Domain
    wraps_at_j: float | None = WRAPS_AT_J
    quantity: str = "energy_j"
    schedule: Every = field(default_factory=lambda: Every(0.004))

    def read(self):
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise MeterError(f"{self.path.name}: {error.strerror}.", "Look at the sensor.") from error
        try:
            return int(os.pread(handle, 32, 0)) / 1e6
        except ValueError as error:
            raise MeterError(f"{self.path.name} holds no number.") from error
        finally:
            os.close(handle)

    def close(self):
        pass


@dataclass
class FileMeter:
    """Every ``*_uj`` file of a folder is a domain of its own."""

    folder: Path
    name: str = "files"

    def probe(self):
        return Probe(True, "files")

    def open(self):
        paths = sorted(self.folder.glob("*_uj"))
        if not paths:
            raise MeterError(f"{self.folder} has no counters.")
        return [
            FileChannel(path, Domain(name, f"CPU:{number}", sensor="file", update_period_s=0.001))
            for number, path in enumerate(paths)
            for name in [path.name.removesuffix("_uj")]
        ]

    def facts(self):
        return {"CPU:0 load_percent": 12.5}


def file_meters(folder):
    """What the monitor process calls to get its meters."""
    return [FileMeter(Path(folder))]


@dataclass
class FunctionChannel:
    """Reads whatever a function returns; it may raise."""

    function: object
    domain: Domain
    quantity: str = "energy_j"
    wraps_at_j: float | None = None
    schedule: object = field(default_factory=lambda: Every(0.01))
    closed: bool = False

    def read(self):
        return self.function()

    def close(self):
        self.closed = True


@dataclass
class FunctionMeter:
    channels: list
    name: str = "function"

    def probe(self):
        return Probe(True, "a function")

    def open(self):
        return self.channels

    def facts(self):
        return {}


def open_descriptors():
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Feeder:
    """Counts in a file as a sensor would, until it is stopped: 100 W, an update a millisecond."""

    def __init__(self, path, start_j=0.0, wraps_at_j=WRAPS_AT_J, power_w=100.0):
        self.path, self.start_j, self.wraps_at_j, self.power_w = path, start_j, wraps_at_j, power_w
        self.fed_j = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self.put(start_j)

    def put(self, energy_j):
        text = f"{round(energy_j % self.wraps_at_j * 1e6):015d}\n".encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT)
        os.pwrite(handle, text, 0)
        os.close(handle)

    def _feed(self):
        while not self._stop.wait(0.001):
            self.step()

    def step(self):
        self.fed_j += self.power_w * 0.001
        self.put(self.start_j + self.fed_j)

    def start(self):
        self._thread.start()

    def stop(self):
        """From now on the counter stands still; what was counted is in ``fed_j``."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


def wait_for(condition, seconds=60.0):
    """Until it holds; what it returned."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)
    return found


def meters_from_environment():
    """For a monitor that is started on the command line."""
    return file_meters(os.environ["SENSORS"])


def remote_meters():
    """Those of the monitor that the environment names."""
    return [RemoteMeter()]


def rapl_meters(root):
    """RAPL's own meter on a tree of files; it keeps their descriptors."""
    return [RaplMeter(Path(root))]
