"""Small meters for tests: counters in files, as RAPL has them, and numbers from a function."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters import Probe
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
            FileChannel(path, Domain(path.stem, f"CPU:{number}", sensor="file", update_period_s=0.001))
            for number, path in enumerate(paths)
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
