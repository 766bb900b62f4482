"""Meters of a running ``joulemap monitor``: for programs that may not read the sensors themselves.

The monitor delivers intervals a tenth of a second late, all of them. A channel hands them over one reading
at a time, each with the time it is of, so that nothing of the resolution is lost on the way. Where the
monitor goes away it is looked for again; the energy in between is unknown, and none is made up.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.listener import START_ONE, Listener
from joulemap.meters.meter import Probe, Quantity
from joulemap.units import NS_PER_S

if TYPE_CHECKING:
    from joulemap.monitor.client import MonitorClient, RemoteSession
    from joulemap.monitor.wire import Delivery
    from joulemap.traces import PowerTrace

SYSTEM_SOCKET = Path("/run/joulemap/monitor.sock")
VARIABLE = "JOULEMAP_MONITOR"
"""Names the socket of the monitor to read from."""

PART_EVERY_S = 0.1
RETRY_S = 0.5
PROBE_S, START_S, SETTLE_S, CLOSE_S = 2.0, 5.0, 4.0, 1.0
"""How long a monitor may take to answer; one that hangs must not hold up the end of a program for long."""
_START_J = 1.0


def own_socket() -> Path:
    """Where the monitor of this user serves: for root, that of the whole system."""
    if os.geteuid() == 0:
        return SYSTEM_SOCKET
    return Path(os.environ.get("XDG_RUNTIME_DIR") or Path.home() / ".cache") / "joulemap" / "monitor.sock"


def _usual_place() -> Path:
    places = [SYSTEM_SOCKET, own_socket()]
    return next((place for place in places if place.exists()), SYSTEM_SOCKET)


class RemoteMeter:
    """Everything that the monitor behind a socket measures. What it estimates can be estimated here, too.

    Without a socket it is the one that ``JOULEMAP_MONITOR`` names, or else that of the system or of the user;
    there it must be root's or our own.
    """

    name = "remote"

    def __init__(self, socket: Path | None = None) -> None:
        self._socket = socket
        self._feed: _Feed | None = None

    def probe(self) -> Probe:
        """Ask the monitor what it measures."""
        try:
            path = self._checked_place()
            with _connected(path) as client:
                names = [domain.name for domain in _measured(client.describe(PROBE_S).domains)]
        except MeterError as error:
            return Probe(False, error.message, error.hint or START_ONE)
        if not names:
            return Probe(False, f"The monitor at {path} measures nothing: it only estimates.")
        return Probe(True, f"The monitor at {path} reads {', '.join(names)}.")

    def open(self) -> Sequence[RemoteChannel]:
        """Start a session. It ends when the last channel is closed."""
        self._feed = _Feed(self._checked_place())
        return self._feed.channels

    def _checked_place(self) -> Path:
        """The socket, where somebody listens who may be trusted."""
        if self._socket is not None:
            Listener.of(self._socket)
            return self._socket
        named = os.environ.get(VARIABLE)
        path = Path(named) if named else _usual_place()
        Listener.of(path).check(path, anyones=bool(named))
        return path

    def facts(self) -> Mapping[str, float]:
        """What the monitor last said of the kinds of devices that are read from it."""
        if self._feed is None:
            return {}
        kinds = {
            channel.domain.device.partition(":")[0] for channel in self._feed.channels if not channel.closed
        }
        facts = self._feed.facts.items()
        return {name: value for name, value in facts if name.split()[0].partition(":")[0] in kinds}


class RemoteChannel:
    """One domain, as a running total. It is its own schedule: it has something to read when parts arrive.

    A total that goes back says that energy before it is unknown: the monitor was away, or did not know.
    """

    quantity: Quantity = "energy_j"
    wraps_at_j: float | None = None

    def __init__(self, domain: Domain, feed: _Feed, start_ns: int) -> None:
        self.domain = domain
        self._feed = feed
        self._waiting: deque[tuple[int, float]] = deque()
        self._edge_ns: int | None = None
        self._stamp_ns = start_ns
        self._total_j = self._sum_j = _START_J
        self.closed = False

    @property
    def schedule(self) -> RemoteChannel:
        return self

    def put(self, trace: PowerTrace, offset_ns: int) -> None:
        """Intervals from the monitor, in the thread that receives them."""
        edges_ns = (trace.edges_ns + offset_ns).tolist()
        if edges_ns[0] != self._edge_ns:
            self._begin(edges_ns[0])
        unknown = (trace.gap & (trace.energy_j == 0)).tolist()
        for t_ns, joules, nothing in zip(edges_ns[1:], trace.energy_j.tolist(), unknown, strict=True):
            self._sum_j = self._sum_j / 2 if nothing else self._sum_j + joules
            self._waiting.append((t_ns, self._sum_j))
        self._edge_ns = edges_ns[-1]

    def _begin(self, t_ns: int) -> None:
        """The first interval, or the first after others were lost."""
        if self._edge_ns is not None:
            self._sum_j /= 2
        self._waiting.append((t_ns, self._sum_j))

    def read(self) -> float:
        """The total at the next edge that has arrived; the last one again where none has."""
        if self._waiting:
            self._stamp_ns, self._total_j = self._waiting.popleft()
            return self._total_j
        error = self._feed.error_of(self.domain)
        if error is not None:
            raise error
        return self._total_j

    def next_ns(self, now_ns: int) -> int:
        """At once while edges are waiting, else when the next part may be there."""
        return now_ns + (1 if self._waiting else round(PART_EVERY_S / 2 * NS_PER_S))

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """Nothing is learnt from it."""

    def stamp_ns(self, before_ns: int, after_ns: int) -> int:
        """The time that the last reading is of."""
        return self._stamp_ns

    def settle(self) -> int:
        """Stop the session, take what it still delivers, and say how many readings that makes."""
        self._feed.finish()
        return len(self._waiting)

    def close(self) -> None:
        """End the session with the last of its channels."""
        self.closed = True
        self._feed.channel_closed()


class _Feed:
    """Reads a session in a thread and deals its parts out to the channels; a new one where it breaks off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._gone: MeterError | None = None
        self.facts: dict[str, float] = {}
        self._client, self._session = _started(path)
        domains = _measured(self._session.domains)
        self.channels = [RemoteChannel(domain, self, self._our_start_ns()) for domain in domains]
        self._by_name = {channel.domain.name: channel for channel in self.channels}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def error_of(self, domain: Domain) -> MeterError | None:
        """Why nothing comes of a domain; None where it should."""
        if self._gone is None and domain not in self._session.domains:
            return MeterError(f"The monitor at {self._path} does not measure {domain.name} any more.")
        return self._gone

    def _our_start_ns(self) -> int:
        return self._session.start_ns + self._session.offset_ns

    def _read(self) -> None:
        while not self._over.is_set():
            gone = MeterError(f"The monitor at {self._path} has ended the session.", START_ONE)
            try:
                for delivery in self._session.parts():
                    self._deal(delivery)
            except MeterError as error:
                gone = error
            self._gone = gone
            self._client.close()
            self._look_for_it_again()
        self._client.close()

    def _deal(self, delivery: Delivery) -> None:
        for trace in delivery.batch.power:
            channel = self._by_name.get(trace.domain.name)
            if channel is not None:
                channel.put(trace, self._session.offset_ns)
        # Replaced, never changed: another thread may be going through it.
        self.facts = {**self.facts, **{fact.name: fact.value for fact in delivery.batch.facts}}

    def _look_for_it_again(self) -> None:
        while self._gone is not None and not self._over.wait(RETRY_S):
            self._gone = self._try_again()

    def _try_again(self) -> MeterError | None:
        try:
            self._client, self._session = _started(self._path)
        except MeterError as error:
            return error
        return None

    def finish(self) -> None:
        """Stop the session; what it delivers until its end is waited for."""
        if self._over.is_set():
            return
        self._over.set()
        until_s = time.monotonic() + SETTLE_S
        self._session.stop_if_there(SETTLE_S)
        self._thread.join(max(until_s - time.monotonic(), 0.0))

    def channel_closed(self) -> None:
        if all(channel.closed for channel in self.channels):
            self._over.set()
            self._client.close()
            self._thread.join(CLOSE_S)


def _measured(domains: Sequence[Domain]) -> list[Domain]:
    return [domain for domain in domains if domain.provenance == "measured"]


def _started(path: Path) -> tuple[MonitorClient, RemoteSession]:
    client = _connected(path)
    try:
        return client, client.start(part_every_s=PART_EVERY_S, timeout_s=START_S)
    except MeterError:
        client.close()
        raise


def _connected(path: Path) -> MonitorClient:
    """gRPC is an extra: it is needed only here."""
    try:
        from joulemap.monitor.client import MonitorClient
    except ImportError as error:
        raise MeterError(f"gRPC is missing: {error}.", "pip install 'joulemap[monitor]'") from error
    return MonitorClient(path)
