"""``joulemap monitor``: the metering process on its own, for programs that may not read the sensors."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from joulemap.errors import MeterError
from joulemap.meters.remote import own_socket

_LOOK_S = 3600.0


@click.command("monitor")
@click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="Where to serve.")
@click.option("--group", metavar="NAME", help="Let the members of this group connect, too.")
@click.option("--meters", metavar="MODULE:FUNCTION", help="Serve the meters that this function returns.")
def command(socket: Path | None, group: str | None, meters: str | None) -> None:
    """Serve this machine's energy meters on a Unix socket, until it is interrupted.

    \b
    joulemap monitor                       for yourself
    sudo joulemap monitor --group joulemap for the members of a group, who need no rights of their own
    """
    from joulemap.monitor.settings import EVERY_METER, meters_from
    from joulemap.monitor.waiter import PipeWaiter

    try:
        from joulemap.monitor.service import serving
    except ImportError as error:
        raise MeterError(
            f"The monitor's service is not installed: {error}.",
            "pip install 'joulemap[monitor]'; in a checkout, make install.",
        ) from error
    path = (socket or own_socket()).absolute()
    over = PipeWaiter()  # an event's lock may be held by the very thread that a signal comes to
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.stop())
    over.wake_for_signals()
    with serving(path, lambda: meters_from(meters or EVERY_METER, {}), group) as hub:
        click.echo(f"Serving {', '.join(domain.name for domain in hub.domains)} at {path}.")
        while not over.stopped:
            over.wait(_LOOK_S)
