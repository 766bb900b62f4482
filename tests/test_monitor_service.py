"""The monitor as a service: several clients, rude clients, clients in other languages, and other users."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise

import numpy as np
import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("joulemap.monitor.monitor_pb2", reason="make generates it")

from joulemap.errors import InputError, MeterError  # noqa: E402
from joulemap.monitor import hub as hubs  # noqa: E402
from joulemap.monitor.client import MonitorClient  # noqa: E402
from joulemap.monitor.service import serving  # noqa: E402

from .monitor_meters import file_meters, open_descriptors, wait_for  # noqa: E402
from .recordings import REPOSITORY  # noqa: E402

PROTO = REPOSITORY / "src/joulemap/monitor/monitor.proto"


@pytest.fixture
def served(folder, feeder):
    """A running service and its hub."""
    with serving(folder / "s", lambda: file_meters(folder)) as hub:
        yield hub


@pytest.fixture
def client(folder, served):
    with MonitorClient(folder / "s") as client:
        yield client


def total_j(deliveries):
    return sum(trace.total_j for delivery in deliveries for trace in delivery.batch.power)


def read_in_thread(session):
    """The parts of a session, in a list that grows, and the thread that reads."""
    parts = []

    def read():
        with suppress(MeterError):  # hung up
            parts.extend(session.parts())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return parts, thread


def test_it_says_what_it_has(client, served):
    said = client.describe()
    assert said.domains == served.domains
    assert said.domains[0].update_period_s == 0.001
    assert said.sessions == 0


def test_a_session_delivers_everything_from_start_to_stop(client, feeder):
    session = client.start(program_pid=os.getpid())
    parts, thread = read_in_thread(session)
    for _ in range(20):
        feeder.step()
    wait_for(lambda: any(part.batch.facts for part in list(parts)))
    until_ns = session.stop()
    thread.join(60)
    assert total_j(parts) == pytest.approx(feeder.fed_j)
    assert parts[-1].batch.t_ns == until_ns
    assert parts[-1].shares[0].domain == "package-0"
    edges = [trace.edges_ns for part in parts for trace in part.batch.power]
    assert all(np.all(np.diff(part) > 0) for part in edges)


def test_who_stops_first_may_read_afterwards(client, feeder):
    session = client.start()
    feeder.step()
    session.stop()
    assert total_j(session.parts()) == pytest.approx(0.1)
    with pytest.raises(MeterError, match="no such session"):
        list(session.parts())


def test_sessions_of_several_clients_do_not_see_each_other(folder, client, feeder, served):
    with MonitorClient(folder / "s") as other:
        first, second = client.start(), other.start(part_every_s=0.05)
        (some, reader), (more, reader_2) = read_in_thread(first), read_in_thread(second)
        feeder.step()
        assert client.describe().sessions == 2
        second.stop()
        reader_2.join(60)
        feeder.step()
        first.stop()
        reader.join(60)
    assert total_j(more) == pytest.approx(0.1)
    assert total_j(some) == pytest.approx(0.2)
    wait_for(lambda: len(served) == 0)


def test_a_reader_that_hangs_up_ends_its_session_only(folder, client, served, feeder):
    kept = client.start()
    with MonitorClient(folder / "s") as other:
        read_in_thread(other.start())
        wait_for(lambda: len(served) == 2)
        wait_for(lambda: all(session.taken for n, session in served._sessions.items() if n != kept.name))
    wait_for(lambda: len(served) == 1)
    feeder.step()
    kept.stop()
    assert total_j(kept.parts()) == pytest.approx(0.1)


def test_a_session_has_one_reader(client, served):
    session = client.start()
    read_in_thread(session)
    wait_for(lambda: all(session.taken for session in served._sessions.values()))
    with pytest.raises(MeterError, match="has a reader"):
        list(session.parts())


def test_what_is_not_there_is_refused(client, folder):
    with pytest.raises(MeterError, match="no such session"):
        client.stop("nothing")
    with (
        MonitorClient(folder / "nowhere") as nobody,
        pytest.raises(MeterError, match=r"The monitor at .* says"),
    ):
        nobody.describe()


def test_too_many_sessions_are_refused(client, monkeypatch):
    monkeypatch.setattr(hubs, "MOST_SESSIONS", 2)
    client.start()
    client.start()
    with pytest.raises(MeterError, match="sessions are open"):
        client.start()


def test_a_session_that_nobody_reads_is_ended(client, served, monkeypatch):
    monkeypatch.setattr(hubs, "UNREAD_S", 0.0)
    client.start(part_every_s=0.05)
    wait_for(lambda: len(served) == 0)


def test_parts_that_nobody_reads_are_made_one_with_all_their_energy(client, feeder, served, monkeypatch):
    """The intervals still chain, and the hole in what is known of time is marked."""
    monkeypatch.setattr(hubs, "MOST_WAITING", 3)
    session = client.start(program_pid=os.getpid(), part_every_s=0.05)
    (mine,) = served._sessions.values()
    feeder.start()
    wait_for(lambda: mine._thinned > 3)
    feeder.stop()
    session.stop()
    first, *others = session.parts()
    assert "parts were made one" in first.batch.notes[-1].text
    assert first.batch.power[0].gap.tolist() == [True]
    traces = [trace for part in [first, *others] for trace in part.batch.power]
    for before, after in pairwise(traces):
        assert before.edges_ns[-1] == after.edges_ns[0]
    assert sum(trace.total_j for trace in traces) == pytest.approx(feeder.fed_j)
    shares = [share for part in [first, *others] for share in part.shares]
    for before, after in pairwise(shares):
        assert before.edges_ns[-1] == after.edges_ns[0]


def test_a_session_gets_nothing_of_the_time_before_it(folder, client, feeder, served):
    """Another session has the loop running, and what was read for it is due when the second starts."""
    client.start()
    for _ in range(5):
        feeder.step()
        time.sleep(0.02)
    second = client.start()
    feeder.put(50.0)
    second.stop()
    parts = list(second.parts())
    starts = [int(trace.edges_ns[1]) for part in parts for trace in part.batch.power]
    assert min(starts) > second.start_ns
    assert total_j(parts) < 49.95


def test_meters_that_vanish_are_said(client, feeder):
    feeder.path.unlink()
    with pytest.raises(MeterError, match="Nothing can be metered"):
        client.start()


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_short_sessions_leave_nothing_behind(folder, client, feeder, served, count):
    def once():
        session = client.start()
        feeder.step()
        session.stop()
        return total_j(session.parts())

    once()
    threads, descriptors = threading.active_count(), open_descriptors()
    for _ in range(count):
        assert once() == pytest.approx(0.1)
    wait_for(lambda: threading.active_count() <= threads + 2 * hubs.MOST_SESSIONS)
    wait_for(lambda: open_descriptors() <= descriptors + 2)
    wait_for(lambda: len(served) == 0)


def test_a_client_made_from_the_proto_alone(folder, served, feeder, monkeypatch):
    """Another program generates its own code from the .proto and needs nothing else of ours."""
    tools = pytest.importorskip("grpc_tools.protoc")
    package = folder / "theirs"
    package.mkdir()
    (package / "energy.proto").write_text(PROTO.read_text())
    script = (
        "import sys; sys.path.insert(0, '.')\n"
        "import grpc, energy_pb2 as pb, energy_pb2_grpc as service\n"
        "monitor = service.MonitorStub(grpc.insecure_channel('unix:' + sys.argv[1]))\n"
        "session = monitor.Start(pb.StartRequest()).session\n"
        "open(sys.argv[2], 'w').write('000000005000000\\n')\n"
        "monitor.Stop(pb.StopRequest(session=session))\n"
        "parts = list(monitor.Read(pb.ReadRequest(session=session)))\n"
        "print(sum(sum(power.energy_j) for part in parts for power in part.power))\n"
        "assert 'joulemap' not in sys.modules\n"
    )
    arguments = [f"-I{package}", f"--python_out={package}", f"--grpc_python_out={package}", "energy.proto"]
    subprocess.run([sys.executable, "-m", tools.__name__, *arguments], check=True, cwd=package)
    command = [sys.executable, "-c", script, str(folder / "s"), str(feeder.path)]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=120)
    assert done.stdout == "5.0\n", done.stderr


def test_the_socket_is_the_owners_alone(folder, served):
    assert (folder / "s").stat().st_mode & 0o777 == 0o600


def connects_as_another_user(path, *groups):
    """What happens to another user, who is in these groups, at the socket."""
    script = (
        "import grp, os, socket, sys\n"
        "os.setgroups([grp.getgrnam(name).gr_gid for name in sys.argv[2:]])\n"
        "os.setgid(65534)\n"
        "os.setuid(65534)\n"
        "socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
    )
    # Without site packages: what measures coverage there could not write as another user.
    command = [sys.executable, "-S", "-c", script, str(path), *groups]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(folder, served):
    assert "PermissionError" in connects_as_another_user(folder / "s")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_group_is_let_in(folder, feeder):
    with serving(folder / "s", lambda: file_meters(folder), "daemon"):
        assert (folder / "s").stat().st_mode & 0o777 == 0o660
        assert connects_as_another_user(folder / "s", "daemon") == ""
        assert "PermissionError" in connects_as_another_user(folder / "s")


def test_places_that_cannot_be_served(folder, feeder, served):
    @contextmanager
    def refused(match, path, group=None):
        with pytest.raises((InputError, MeterError), match=match), serving(path, list, group):
            pass
        yield

    with refused("serves .* already", folder / "s"):
        assert (folder / "s").exists()
    with refused("is no socket", feeder.path):
        assert feeder.path.exists()
    with refused("too long", folder / ("x" * 200)):
        pass
    with refused("cannot be served", feeder.path / "s"):
        pass
    with (
        pytest.raises(InputError, match="no group 'nobodies'"),
        serving(folder / "t", lambda: file_meters(folder), "nobodies"),
    ):
        pass


def test_the_socket_of_a_killed_monitor_is_taken_over(folder, feeder):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "s"))
    with serving(folder / "s", lambda: file_meters(folder)), MonitorClient(folder / "s") as client:
        assert client.describe().domains
    assert not (folder / "s").exists()


def test_the_command_serves_until_it_is_told_to_end(folder, feeder):
    meters = "tests.monitor_meters:meters_from_environment"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "joulemap", "monitor", "--socket", str(folder / "s"), "--meters", meters],
        cwd=REPOSITORY,
        env={**os.environ, "SENSORS": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert daemon.stdout.readline() == f"Serving package-0 at {folder / 's'}.\n"
        with MonitorClient(folder / "s") as client:
            session = client.start()
            feeder.step()
            session.stop()
            assert total_j(session.parts()) == pytest.approx(0.1)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()
    assert not (folder / "s").exists()


INTERRUPTED = """
import os, signal, sys
from contextlib import contextmanager
from types import SimpleNamespace
from joulemap.commands import monitor
from joulemap.monitor import service

@contextmanager
def serving(*_):
    sys.settrace(look)
    yield SimpleNamespace(domains=[])
    sys.settrace(None)

def look(frame, event, _):
    global seen
    seen += event == "line" and frame.f_code.co_name == "wait"
    if seen == place:
        seen += 1
        os.kill(os.getpid(), signal.SIGTERM)
    return look

service.serving = serving
for place in (1, 2, 3):
    seen = 0
    monitor.command.callback(None, None, None)
print("ended")
"""


def test_it_ends_where_the_signal_comes_while_it_begins_to_wait():
    """What it waits for must not have a lock that the thread holds to which the signal comes."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.endswith("ended\n"), done.stderr
