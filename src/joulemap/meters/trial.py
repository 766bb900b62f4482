"""Probing a meter by opening it: the one answer that cannot be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from joulemap.errors import MeterError
from joulemap.meters.meter import Channel, Probe


def probe_by_opening(
    open_meter: Callable[[], Sequence[Channel]],
    found: str,
    refused: Callable[[], Sequence[MeterError]] = tuple,
) -> Probe:
    """Open and close a meter. ``found`` says what was there, with ``{names}`` or ``{sensors}``; ``refused``
    are devices that were left out, known once it was opened."""
    try:
        channels = open_meter()
    except MeterError as error:
        return Probe(False, error.message, error.hint)
    names = ", ".join(channel.domain.name for channel in channels)
    sensors = ", ".join(f"{channel.domain.name} by {channel.domain.sensor}" for channel in channels)
    for channel in channels:
        channel.close()
    errors = refused()
    reason = " ".join([found.format(names=names, sensors=sensors), *(error.message for error in errors)])
    return Probe(True, reason, errors[0].hint if errors else "")
