"""Rude visitors at the monitor's socket, and unsafe places for it: the service goes on serving others."""

import os
import signal
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("joulemap.monitor.monitor_pb2", reason="make generates it")

from joulemap.errors import InputError, MeterError  # noqa: E402
from joulemap.monitor import place  # noqa: E402
from joulemap.monitor.client import MonitorClient  # noqa: E402
from joulemap.monitor.service import LARGEST_REQUEST, serving  # noqa: E402

from .monitor_daemon import NOBODY, Daemon, plain_environment, python_for_nobody  # noqa: E402
from .monitor_meters import file_meters, wait_for  # noqa: E402
from .recordings import REPOSITORY  # noqa: E402

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@contextmanager
def undisturbed(daemon, feeder):
    """A client that has a session all the while gets everything, and others are served as well."""
    before_j = feeder.fed_j
    with MonitorClient(daemon.path) as client:
        session = client.start()
        feeder.step()
        yield
        with MonitorClient(daemon.path) as another:
            wait_for(lambda: another.describe().sessions == 1)
        feeder.step()
        session.stop()
        parts = list(session.parts())
    total_j = sum(trace.total_j for part in parts for trace in part.batch.power)
    assert total_j == pytest.approx(feeder.fed_j - before_j)
    assert daemon.process.poll() is None


def connected(daemon):
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(60)
    raw.connect(str(daemon.path))
    return raw


NOISE = np.random.default_rng(0)
RUBBISH = {
    "nothing": b"",
    "a byte": b"\0",
    "noise": NOISE.bytes(100),
    "much noise": NOISE.bytes(1_000_000),
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "noise after a good start": PREFACE + SETTINGS + NOISE.bytes(70_000),
    "a frame longer than it is": PREFACE + b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 1000,
    "headers without end": PREFACE + SETTINGS + b"\0\x10\0\1\0\0\0\0\1" + b"\0" * 4096,
}


def test_rubbish(daemon, feeder):
    for what, content in RUBBISH.items():
        with undisturbed(daemon, feeder), connected(daemon) as raw, suppress(OSError):
            print(what)
            raw.sendall(content)


def test_visitors_who_say_nothing_or_stop_in_the_middle(daemon, feeder):
    """A hundred that say nothing, a hundred that began a request and never end it, some half closed."""
    with undisturbed(daemon, feeder), ExitStack() as stack:
        silent = [stack.enter_context(connected(daemon)) for _ in range(200)]
        for raw in silent[100:]:
            raw.sendall(PREFACE + SETTINGS + b"\0\0\x20\1\4\0\0\0\1")
        for raw in silent[::10]:
            raw.shutdown(socket.SHUT_WR)
        with MonitorClient(daemon.path) as client:
            assert client.describe().domains


def test_requests_that_are_too_large_or_mean_nothing(daemon, feeder):
    refused = [
        (b"\0" * (LARGEST_REQUEST + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\0" * 10_000_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\xff" * 50, grpc.StatusCode.INTERNAL),
    ]
    with undisturbed(daemon, feeder), grpc.insecure_channel(f"unix:{daemon.path}") as channel:
        for content, code in refused:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/joulemap.monitor.v1.Monitor/Start")(content)
            assert caught.value.code() == code
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/joulemap.monitor.v1.Monitor/Nonsense")(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


VISIT = """
import sys
from joulemap.errors import MeterError
from joulemap.monitor.client import MonitorClient
try:
    with MonitorClient(sys.argv[1]) as client:
        session = client.start()
        session.stop()
        print("read", len(list(session.parts())) > 0)
except MeterError as error:
    print(error.message)
"""


def visit_as_nobody(path, *groups):
    """What another user gets, with our own client."""
    done = subprocess.run(
        [python_for_nobody(), "-c", VISIT, path],
        cwd=REPOSITORY,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        user=NOBODY,
        group=NOBODY,
        extra_groups=groups,
    )
    return done.stdout or done.stderr


def test_another_user_is_refused_and_leaves_no_session(daemon, feeder):
    with undisturbed(daemon, feeder):
        assert "Permission denied" in visit_as_nobody(daemon.path)


def test_a_member_of_the_group_is_served_and_others_are_not(folder, feeder):
    python_for_nobody()
    with Daemon(folder, folder / "s", "--group", "daemon") as daemon:
        assert visit_as_nobody(daemon.path, "daemon") == "read True\n"
        assert "Permission denied" in visit_as_nobody(daemon.path)


def test_a_monitor_that_was_killed_leaves_a_socket_that_the_next_one_takes_over(daemon, feeder):
    daemon.stop(signal.SIGKILL)
    assert daemon.path.exists()
    daemon.start()
    with undisturbed(daemon, feeder):
        pass
    assert daemon.stop() == 0
    assert not daemon.path.exists()


@contextmanager
def refused(match):
    with pytest.raises((InputError, MeterError), match=match):
        yield


def test_a_folder_that_others_may_write_to_is_no_place_unless_it_is_sticky(folder, feeder):
    shared = folder / "shared"
    inside = shared / "inside"
    inside.mkdir(parents=True)
    shared.chmod(0o777)
    for path in (shared / "s", inside / "s"):
        with refused(f"Others may write to {shared}"), serving(path, list):
            pass
    shared.chmod(0o1777)
    with serving(inside / "s", lambda: file_meters(folder)):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_another_user_or_of_a_strange_group_is_no_place(folder, feeder):
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    with refused("belongs to another user"), serving(theirs / "s", list):
        pass
    os.chown(theirs, 0, NOBODY)
    theirs.chmod(0o775)
    with refused("Others may write to"), serving(theirs / "s", list):
        pass


def test_links_are_not_followed(folder, feeder):
    """Neither to a file, nor to a socket, nor to nowhere."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "dead"))
    for target in ("package-0_uj", "dead", "nowhere"):
        (folder / "s").symlink_to(folder / target)
        with refused("is no socket"), serving(folder / "s", list):
            pass
        (folder / "s").unlink()
    assert feeder.path.exists()
    assert (folder / "dead").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make sockets of other users")
def test_a_socket_that_another_user_planted_is_replaced_by_our_own(folder, feeder):
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(folder / "s"))
    os.chown(folder / "s", NOBODY, NOBODY)
    with serving(folder / "s", lambda: file_meters(folder)):
        found = (folder / "s").stat()
        assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o600)
        os.chown(folder / "s", NOBODY, -1)
        with refused("Somebody put something else"):
            place.check_ours(folder / "s")


def test_a_daemon_that_is_told_to_end_ends_the_sessions_of_its_clients(daemon, feeder):
    with MonitorClient(daemon.path) as client:
        session = client.start()
        feeder.step()
        parts = session.parts()
        next(parts)
        assert daemon.stop() == 0
        wait_for(lambda: not daemon.path.exists())
        list(parts)
