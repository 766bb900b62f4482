"""Reading from a running ``joulemap monitor``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import grpc

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.monitor import monitor_pb2 as pb
from joulemap.monitor import monitor_pb2_grpc
from joulemap.monitor.wire import Delivery, domain_from, part_from

CALL_S = 20.0
_OPTIONS = [("grpc.max_receive_message_length", -1)]
_HINT = "Start one with joulemap monitor; its socket must be readable and writable for you."


@dataclass(frozen=True, slots=True)
class Description:
    """What a monitor offers."""

    version: str
    domains: Sequence[Domain]
    sessions: int


class MonitorClient:
    """A connection to a monitor. Everything it cannot do is a MeterError."""

    def __init__(self, socket: str | os.PathLike[str]) -> None:
        self._path = Path(socket)
        self._channel = grpc.insecure_channel(f"unix:{self._path}", options=_OPTIONS)
        self._monitor = monitor_pb2_grpc.MonitorStub(self._channel)

    def describe(self, timeout_s: float = CALL_S) -> Description:
        """What can be metered there."""
        with self._asking():
            reply = self._monitor.Describe(pb.DescribeRequest(), timeout=timeout_s)
        return Description(reply.version, [domain_from(message) for message in reply.domains], reply.sessions)

    def start(
        self, program_pid: int = 0, part_every_s: float = 0.0, timeout_s: float = CALL_S
    ) -> RemoteSession:
        """Open a session; with a program, its shares come along."""
        request = pb.StartRequest(program_pid=program_pid, part_every_s=part_every_s)
        before_ns = time.time_ns()
        with self._asking():
            reply = self._monitor.Start(request, timeout=timeout_s)
        offset_ns = _offset_ns(before_ns, reply.t_ns, time.time_ns())
        domains = [domain_from(message) for message in reply.domains]
        return RemoteSession(self, reply.session, domains, reply.t_ns, offset_ns)

    def stop(self, session: str, timeout_s: float = CALL_S) -> int:
        """End a session; until when it was metered."""
        with self._asking():
            reply = self._monitor.Stop(pb.StopRequest(session=session), timeout=timeout_s)
        return int(reply.t_ns)

    def read(self, session: str, domains: Sequence[Domain]) -> Iterator[Delivery]:
        """The parts of a session as they come, until it is stopped and all are there."""
        by_name = {domain.name: domain for domain in domains}
        with self._asking():
            for message in self._monitor.Read(pb.ReadRequest(session=session)):
                yield part_from(message, by_name)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise MeterError(f"The monitor at {self._path} says: {error.details()}.", _HINT) from error
        except ValueError as error:  # what gRPC raises where the connection was closed before
            raise MeterError(f"The connection to the monitor at {self._path} is closed.", _HINT) from error

    def close(self) -> None:
        """Hang up; sessions that are being read end."""
        self._channel.close()

    def __enter__(self) -> MonitorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class RemoteSession:
    """A session of our own at a monitor."""

    client: MonitorClient
    name: str
    domains: Sequence[Domain]
    start_ns: int
    """On the monitor's clock: the system clock as it was when its sampling began."""
    offset_ns: int
    """What to add to the monitor's times where the system clock was set since; zero where they agree."""

    def parts(self) -> Iterator[Delivery]:
        """See :meth:`MonitorClient.read`."""
        return self.client.read(self.name, self.domains)

    def stop(self, timeout_s: float = CALL_S) -> int:
        """See :meth:`MonitorClient.stop`."""
        return self.client.stop(self.name, timeout_s)

    def stop_if_there(self, timeout_s: float) -> None:
        """Stop it, unless the monitor is gone or hangs."""
        with suppress(MeterError):
            self.stop(timeout_s)


def _offset_ns(before_ns: int, theirs_ns: int, after_ns: int) -> int:
    """How far our clock is ahead of theirs, at least, when theirs was read between two readings of ours."""
    return min(max(theirs_ns, before_ns), after_ns) - theirs_ns
