"""A meter that shows what the program itself writes down: energy with a known truth."""

import os
import time
from pathlib import Path

from joulemap.devices import Domain
from joulemap.meters import Probe

from .monitor_meters import FileChannel

VARIABLE = "JOULEMAP_TEST_COUNTER"

IDLE_W = 0.01
"""So little that it does not matter how long a program is kept waiting."""


class WrittenChannel(FileChannel):
    """What is in the file, and a little all the time: a counter that never moves is taken for a dead one."""

    def read(self):
        return super().read() + IDLE_W * time.monotonic()


class WrittenMeter:
    """A counter in a file, of a device that belongs to the program altogether."""

    name = "written"

    def probe(self):
        return Probe(True, "a file")

    def open(self):
        domain = Domain("GPU:0", "GPU:0", sensor="file", update_period_s=0.005)
        return [WrittenChannel(Path(os.environ[VARIABLE]), domain)]

    def facts(self):
        return {}


def meters():
    """As ``JOULEMAP_METERS`` names them."""
    return [WrittenMeter()]
