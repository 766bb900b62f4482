"""``joulemap.monitor.v1`` on a Unix socket: the meters of this machine, for programs that may not read them.

Who may connect is decided by the permissions of the socket: its owner, and a group where one is named. gRPC
does not say who has connected, so there is no second check; place.py sees to it that the first one holds.
"""

from __future__ import annotations

import grp
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc

from joulemap import __version__
from joulemap.errors import InputError, MeterError
from joulemap.meters.meter import Meter
from joulemap.monitor import monitor_pb2 as pb
from joulemap.monitor import monitor_pb2_grpc
from joulemap.monitor.hub import MOST_SESSIONS, Hub, Session
from joulemap.monitor.place import check_ours, make_way
from joulemap.monitor.wire import domain_message, part_message

LARGEST_REQUEST = 1 << 16
"""Bytes. Requests are small; whatever is larger is refused unread."""

_GRACE_S = 2.0
_SWITCH_S = 0.0005  # threads that serve must not hold up the one that samples


class MonitorService:
    """What the methods of the service do."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def Describe(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return pb.DescribeReply(
            version=__version__, domains=map(domain_message, self._hub.domains), sessions=len(self._hub)
        )

    def Start(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        try:
            session = self._hub.start(request.program_pid, request.part_every_s)
        except MeterError as error:
            _refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        domains = map(domain_message, session.domains)
        return pb.StartReply(session=session.name, domains=domains, t_ns=session.start_ns)

    def Stop(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        session = self._hub.stop(request.session)
        if session is None:
            _refuse(context, grpc.StatusCode.NOT_FOUND, "there is no such session")
        return pb.StopReply(t_ns=session.until_ns)

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        session = self._hub.get(request.session)
        if session is None:
            _refuse(context, grpc.StatusCode.NOT_FOUND, "there is no such session")
        if not session.take_over():
            _refuse(context, grpc.StatusCode.ALREADY_EXISTS, "the session has a reader")
        return self._parts(session, context)

    def _parts(self, session: Session, context: grpc.ServicerContext) -> Iterator[Any]:
        # A reader that is gone will not come back: nobody else may read the rest.
        context.add_callback(lambda: self._hub.stop_soon(session.name))
        for delivery in session.parts():
            yield part_message(delivery)


def _refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError  # abort raises


@contextmanager
def serving(path: Path, meters: Callable[[], Sequence[Meter]], group: str | None = None) -> Iterator[Hub]:
    """Serve on a socket until the block is left; sessions that are open then are ended."""
    make_way(path)
    hub = Hub(meters)
    sys.setswitchinterval(_SWITCH_S)
    server = grpc.server(
        ThreadPoolExecutor(2 * MOST_SESSIONS),
        options=[("grpc.max_receive_message_length", LARGEST_REQUEST), ("grpc.so_reuseport", 0)],
    )
    monitor_pb2_grpc.add_MonitorServicer_to_server(MonitorService(hub), server)
    _bind(server, path, _group_id(group))
    server.start()
    try:
        yield hub
    finally:
        hub.close()
        server.stop(_GRACE_S).wait()
        path.unlink(missing_ok=True)


def _bind(server: grpc.Server, path: Path, group_id: int | None) -> None:
    """The socket belongs to its owner alone from the first moment on; a group is let in afterwards."""
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
        check_ours(path)
        if group_id is not None:
            os.chown(path, -1, group_id)
            path.chmod(0o660)
    except (RuntimeError, OSError) as error:
        raise MeterError(f"{path} cannot be served: {error}.", "Choose another path.") from error
    finally:
        os.umask(before)


def _group_id(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        hint = f"Make it: groupadd --system {group}; then add users: usermod -aG {group} NAME."
        raise InputError(f"There is no group {group!r}.", hint) from None
