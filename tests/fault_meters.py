"""The meters of a monitor whose faults are tested: counters in files, and power samples beside them."""

from pathlib import Path

from joulemap.devices import Domain
from joulemap.meters.schedule import Every

from .monitor_meters import FileMeter, FunctionChannel, FunctionMeter

BOARD = Domain("board", "board", sensor="50 W", update_period_s=0.01)


def two_families(folder):
    """What the monitor process calls to get its meters."""
    board = FunctionChannel(lambda: 50.0, BOARD, "power_w", schedule=Every(0.01))
    return [FileMeter(Path(folder)), FunctionMeter([board], "board")]
