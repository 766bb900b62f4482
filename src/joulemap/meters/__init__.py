"""Meters, one vendor a file, behind one Protocol (``meter.py``)."""

from joulemap.meters.meter import Channel, Meter, Probe, Quantity, Schedule

__all__ = ["Channel", "Meter", "Probe", "Quantity", "Schedule"]
