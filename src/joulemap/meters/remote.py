"""Meters of a running ``joulemap monitor``: for programs that may not read the sensors themselves.

The monitor delivers intervals a tenth of a second late, all of them. A channel hands them over one reading
at a time, each with the time it is of, so that nothing of the resolution is lost on the way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.meter import Probe, Quantity
from joulemap.units import NS_PER_S

if TYPE_CHECKING:
    from joulemap.monitor.client import MonitorClient, RemoteSession
    from joulemap.monitor.wire import Delivery

PART_EVERY_S = 0.1
SAME_CLOCK_NS = 50_000_000
_REMEDY = "Start one with joulemap monitor, and be a member of its group."


class RemoteMeter:
    """Everything that the monitor behind a socket can read."""

    name = "remote"

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._facts: Mapping[str, float] = {}

    def probe(self) -> Probe:
        """Ask the monitor what it has."""
        if not self._socket.exists():
            return Probe(False, f"No monitor serves {self._socket}.", _REMEDY)
        try:
            with _connected(self._socket) as client:
                names = ", ".join(domain.name for domain in client.describe().domains)
        except MeterError as error:
            return Probe(False, error.message, error.hint or _REMEDY)
        return Probe(True, f"The monitor at {self._socket} reads {names}.")

    def open(self) -> Sequence[RemoteChannel]:
        """Start a session. It ends when the last channel is closed."""
        client = _connected(self._socket)
        try:
            session = client.start(part_every_s=PART_EVERY_S)
        except MeterError:
            client.close()
            raise
        return _Feed(client, session, self._keep_facts).channels

    def _keep_facts(self, facts: Mapping[str, float]) -> None:
        self._facts = {**self._facts, **facts}

    def facts(self) -> Mapping[str, float]:
        """What the monitor last said."""
        return self._facts


class RemoteChannel:
    """One domain, as a running total. It is its own schedule: it has something to read when parts arrive."""

    quantity: Quantity = "energy_j"
    wraps_at_j: float | None = None

    def __init__(self, domain: Domain, feed: _Feed) -> None:
        self.domain = domain
        self._feed = feed
        self._waiting: deque[tuple[int, float]] = deque()
        self._stamp_ns = 0
        self._total_j = self._sum_j = 0.0
        self.closed = False

    @property
    def schedule(self) -> RemoteChannel:
        return self

    def put(self, edges_ns: Sequence[int], energy_j: Sequence[float]) -> None:
        """Intervals from the monitor, in the thread that reads them."""
        for t_ns, joules in zip(edges_ns, energy_j, strict=True):
            self._sum_j += joules
            self._waiting.append((t_ns, self._sum_j))

    def read(self) -> float:
        """The total at the next edge that has arrived; the last one again where none has."""
        if self._waiting:
            self._stamp_ns, self._total_j = self._waiting.popleft()
        elif self._feed.error is not None:
            raise self._feed.error
        return self._total_j

    def next_ns(self, now_ns: int) -> int:
        """At once while edges are waiting, else when the next part may be there."""
        return now_ns + (1 if self._waiting else round(PART_EVERY_S / 2 * NS_PER_S))

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """Nothing is learnt from it."""

    def stamp_ns(self, before_ns: int, after_ns: int) -> int:
        """The time that the last reading is of."""
        return self._stamp_ns or before_ns

    def close(self) -> None:
        """End the session with the last of its channels."""
        self.closed = True
        self._feed.channel_closed()


class _Feed:
    """Reads a session in a thread and deals its parts out to the channels."""

    def __init__(
        self, client: MonitorClient, session: RemoteSession, keep_facts: Callable[[Mapping[str, float]], None]
    ) -> None:
        self._client, self._session = client, session
        self._keep_facts = keep_facts
        # The monitor's clock is the system clock as it was when sampling began; ours may have been set since.
        ahead_ns = time.time_ns() - session.start_ns
        self._offset_ns = ahead_ns if abs(ahead_ns) > SAME_CLOCK_NS else 0
        self.error: MeterError | None = None
        self.channels = [RemoteChannel(domain, self) for domain in session.domains]
        self._by_name = {channel.domain.name: channel for channel in self.channels}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        gone = MeterError("The monitor has ended the session.", _REMEDY)
        try:
            for delivery in self._session.parts():
                self._deal(delivery)
        except MeterError as error:
            gone = error
        self.error = gone

    def _deal(self, delivery: Delivery) -> None:
        for trace in delivery.batch.power:
            edges_ns = (trace.edges_ns[1:] + self._offset_ns).tolist()
            self._by_name[trace.domain.name].put(edges_ns, trace.energy_j.tolist())
        self._keep_facts({fact.name: fact.value for fact in delivery.batch.facts})

    def channel_closed(self) -> None:
        if all(channel.closed for channel in self.channels):
            self._client.close()
            self._thread.join()


def _connected(socket: Path) -> MonitorClient:
    """gRPC is an extra: it is needed only here."""
    try:
        from joulemap.monitor.client import MonitorClient
    except ImportError as error:
        raise MeterError(f"gRPC is missing: {error}.", "pip install 'joulemap[monitor]'") from error
    return MonitorClient(socket)
