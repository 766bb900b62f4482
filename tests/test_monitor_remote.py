"""Reading from a monitor in another process: everything it measures, nothing made up while it is away."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("joulemap.monitor.monitor_pb2", reason="make generates it")

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters import Probe, remote
from joulemap.meters.available import every_meter, open_meters
from joulemap.meters.remote import RemoteChannel, RemoteMeter
from joulemap.monitor.child import start_monitor
from joulemap.monitor.client import MonitorClient, _offset_ns
from joulemap.monitor.sampler import Sampler
from joulemap.monitor.waiter import PipeWaiter
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

from .monitor_daemon import NOBODY, Daemon, plain_environment, python_for_nobody
from .monitor_meters import Feeder, FunctionChannel, FunctionMeter, open_descriptors, wait_for
from .recordings import REPOSITORY


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A machine that is busy may take long to answer, and is there all the same."""
    for name in ("PROBE_S", "START_S", "SETTLE_S"):
        monkeypatch.setattr(remote, name, 60.0)


@contextmanager
def sampled(meter):
    """A sampler that runs in a thread; its batches, and its notes once it has ended."""
    batches, waiter = [], PipeWaiter()
    sampler = Sampler([meter])
    sampler.prime()
    thread = threading.Thread(target=sampler.run, args=(waiter, batches.append))
    thread.start()
    try:
        yield batches
    finally:
        waiter.stop()
        thread.join(60)
        waiter.close()


def joined(batches):
    """The whole trace; its parts chain."""
    parts = [part for batch in batches for part in batch.power]
    for before, after in pairwise(parts):
        assert before.edges_ns[-1] == after.edges_ns[0]
    edges = np.concatenate([parts[0].edges_ns[:1], *(part.edges_ns[1:] for part in parts)])
    energy_j, gap = (np.concatenate([getattr(part, name) for part in parts]) for name in ("energy_j", "gap"))
    return PowerTrace(parts[0].domain, edges, energy_j, gap)


def notes(batches):
    return [note.text for batch in batches for note in batch.notes]


def test_it_keeps_the_resolution_and_loses_nothing_at_the_end(folder, feeder, daemon):
    """What the monitor reads every 4 ms arrives with all its edges, ten times a second, to the last joule."""
    meter = RemoteMeter(daemon.path)
    assert meter.probe() == Probe(True, f"The monitor at {daemon.path} reads package-0.")
    with sampled(meter) as batches:
        feeder.start()
        wait_for(lambda: sum(len(part) for batch in list(batches) for part in batch.power) > 30)
        assert wait_for(meter.facts) == {"CPU:0 load_percent": 12.5}
        feeder.stop()
    trace = joined(batches)
    assert trace.total_j == pytest.approx(feeder.fed_j)
    assert np.median(np.diff(trace.edges_ns)) < remote.PART_EVERY_S * NS_PER_S / 2
    with MonitorClient(daemon.path) as client:
        wait_for(lambda: client.describe().sessions == 0)


def test_a_monitor_that_is_started_again_is_found_again(folder, feeder, daemon):
    """The energy in between is unknown: there is a gap without energy, and it is noted."""
    with sampled(RemoteMeter(daemon.path)) as batches:
        feeder.put(10.0)
        wait_for(lambda: sum(part.total_j for batch in list(batches) for part in batch.power) > 9)
        daemon.stop(signal.SIGKILL)
        wait_for(lambda: any("cannot be read" in note for note in notes(list(batches))))
        feeder.put(1000.0)
        daemon.start()
        wait_for(lambda: any("can be read again" in note for note in notes(list(batches))))
        feeder.put(1007.0)
        with MonitorClient(daemon.path) as client:
            wait_for(lambda: client.describe().sessions == 1)
        feeder.put(1011.0)
        wait_for(lambda: sum(part.total_j for batch in list(batches) for part in batch.power) > 13)
    trace = joined(batches)
    assert 14 - 1e-6 <= trace.total_j <= 21 + 1e-6, "nothing of what happened while it was away"
    assert trace.gap.any()
    assert trace.energy_j[trace.gap].sum() == 0
    assert any("is unknown" in note for note in notes(batches))


def test_a_monitor_ends_whichever_of_its_threads_a_signal_comes_to(daemon):
    """gRPC has threads of its own, and Python's handlers run in the main one."""
    pid = daemon.process.pid
    others = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir() if one.name != str(pid)]
    assert others
    assert ctypes.CDLL(None).tgkill(pid, others[0], signal.SIGTERM) == 0
    assert daemon.process.wait(60) == 0


def test_a_domain_that_the_monitor_lost_is_said(folder, feeder, daemon):
    other = Feeder(folder / "package-1_uj")
    daemon.stop()
    daemon.start()
    first, second = RemoteMeter(daemon.path).open()
    daemon.stop()
    other.path.unlink()
    daemon.start()

    def lost():
        try:
            second.read()
        except MeterError as error:
            return "any more" in error.message and error.message

    assert wait_for(lost) == f"The monitor at {daemon.path} does not measure package-1 any more."
    first.read()
    first.close()
    second.close()


def test_a_meter_whose_monitor_is_gone_ends_all_the_same(folder, feeder, daemon):
    before = threading.active_count()
    with sampled(RemoteMeter(daemon.path)) as batches:
        feeder.step()
        daemon.stop(signal.SIGKILL)
    assert not batches[-1].power or batches[-1].power[0].total_j >= 0
    wait_for(lambda: threading.active_count() <= before)


def test_a_monitor_that_hangs_is_noted_and_does_not_hold_up_the_end(folder, feeder, daemon, monkeypatch):
    monkeypatch.setattr(remote, "SETTLE_S", 0.2)
    with sampled(RemoteMeter(daemon.path)) as batches:
        feeder.put(5.0)
        wait_for(lambda: sum(part.total_j for batch in list(batches) for part in batch.power) > 4)
        daemon.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: any("has not changed for" in note for note in notes(list(batches))))
    daemon.process.send_signal(signal.SIGCONT)
    assert joined(batches).total_j == pytest.approx(5.0)


def test_opening_and_closing_leaves_nothing_behind(folder, feeder, daemon):
    def once():
        for channel in RemoteMeter(daemon.path).open():
            channel.settle()
            channel.close()

    once()
    threads, descriptors = threading.active_count(), open_descriptors()
    for _ in range(20):
        once()
    wait_for(lambda: threading.active_count() <= threads)
    wait_for(lambda: open_descriptors() <= descriptors + 2)


class NoFeed:
    """Nothing is wrong, and nothing comes by itself."""

    def error_of(self, domain):
        return None


def readings(channel):
    found = []
    while channel.next_ns(0) == 1:
        value = channel.read()
        found.append((channel.stamp_ns(0, 0), value))
    return found


def test_an_interval_that_the_monitor_does_not_know_is_unknown_here_too():
    domain = Domain("package-0", "CPU:0")
    channel = RemoteChannel(domain, NoFeed(), 0)
    channel.put(PowerTrace(domain, [10, 20, 30, 40], [1.0, 0.0, 2.0], np.array([False, True, False])), 5)
    (_, start_j), (_, first_j), (_, unknown_j), (_, last_j) = found = readings(channel)
    assert [t_ns for t_ns, _ in found] == [15, 25, 35, 45]
    assert first_j - start_j == pytest.approx(1.0)
    assert unknown_j < first_j, "a total that goes back"
    assert last_j - unknown_j == pytest.approx(2.0)


def test_parts_that_do_not_chain_have_something_unknown_between_them():
    domain = Domain("package-0", "CPU:0")
    channel = RemoteChannel(domain, NoFeed(), 0)
    channel.put(PowerTrace(domain, [10, 20], [1.0]), 0)
    channel.put(PowerTrace(domain, [20, 30], [1.0]), 0)
    channel.put(PowerTrace(domain, [50, 60], [1.0]), 0)
    found = readings(channel)
    assert [t_ns for t_ns, _ in found] == [10, 20, 30, 50, 60]
    assert np.sign(np.diff([value for _, value in found])).tolist() == [1, 1, -1, 1]


def test_clocks_that_agree_are_left_alone():
    assert _offset_ns(100, 103, 110) == 0
    assert _offset_ns(100, 40, 110) == 60
    assert _offset_ns(100, 140, 110) == -30


def test_it_says_why_it_does_not_work(folder, feeder, monkeypatch):
    meter = RemoteMeter(folder / "s")
    assert "No monitor serves" in meter.probe().reason
    (folder / "s").touch()
    assert not meter.probe().available
    with pytest.raises(MeterError):
        meter.open()
    monkeypatch.setenv("JOULEMAP_MONITOR", str(folder / "elsewhere"))
    assert RemoteMeter().probe().reason == f"No monitor serves {folder / 'elsewhere'}."


def test_a_socket_that_nobody_answers_at_is_given_up_soon(folder, monkeypatch):
    monkeypatch.setattr(remote, "PROBE_S", 0.2)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(folder / "s"))
        mute.listen()
        assert not RemoteMeter(folder / "s").probe().available


def test_the_monitor_of_this_process_is_not_read_from(folder, monkeypatch):
    monkeypatch.setenv("JOULEMAP_MONITOR", str(folder / "s"))
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(folder / "s"))
        ours.listen()
        assert "is this process" in RemoteMeter().probe().reason


def test_the_monitor_of_another_user_is_read_from_only_where_it_was_named(folder, feeder, monkeypatch):
    python, theirs = python_for_nobody(), folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    feeder.path.chmod(0o644)
    with Daemon(folder, theirs / "s", python=python, user=NOBODY) as daemon:
        monkeypatch.setattr(remote, "SYSTEM_SOCKET", daemon.path)
        assert "belongs to another user (65534)" in RemoteMeter().probe().reason
        monkeypatch.setenv("JOULEMAP_MONITOR", str(daemon.path))
        assert RemoteMeter().probe().available


def test_estimates_are_not_fetched_from_elsewhere(folder, feeder, daemon, monkeypatch):
    domain = Domain("package-0", "CPU:0", provenance="estimated")
    description = type("Description", (), {"domains": [domain]})
    monkeypatch.setattr(MonitorClient, "describe", lambda *_: description)
    assert "only estimates" in RemoteMeter(daemon.path).probe().reason


def constant(name, device, meter):
    return FunctionMeter([FunctionChannel(lambda: 1.0, Domain(name, device))], meter)


def test_its_place_on_the_ladder(folder, feeder, daemon):
    names = [meter.name for meter in every_meter()]
    assert names.index("perf") < names.index("remote") < names.index("estimate")
    for rung in ("rapl", "perf"):
        with open_meters([constant("package-0", "CPU:0", rung), RemoteMeter(daemon.path)]) as opened:
            assert opened.left_out["remote"].reason == "Not needed: RAPL is read directly."
    with open_meters([constant("GPU-7", "GPU:0", "nvml"), RemoteMeter(daemon.path)]) as opened:
        assert [channel.domain.name for channel in opened.channels] == ["GPU-7", "package-0"]


def test_devices_that_are_read_here_are_not_fetched_by_another_number(folder, feeder, daemon):
    board = constant("board", "CPU:0", "hwmon")
    meter = RemoteMeter(daemon.path)
    with open_meters([board, meter]) as opened:
        assert [channel.domain.name for channel in opened.channels] == ["board"]
        assert meter.facts() == {}


UNPRIVILEGED = """
import json, sys
from pathlib import Path
from joulemap.monitor.child import start_monitor
from joulemap.recording import RecordingInfo, RecordingWriter
with RecordingWriter.create(sys.argv[1], RecordingInfo()) as writer:
    handle = start_monitor(writer.path)
    print(*(domain.name for domain in handle.domains), flush=True)
    sys.stdin.readline()
    print(json.dumps(list(handle.stop().notes)), flush=True)
"""


def test_an_unprivileged_program_is_measured_without_any_configuration(folder, monkeypatch):
    """Root's monitor reads files as those of RAPL, which the program may not read; it names nothing but,
    for this test, where the monitor is."""
    if any(meter.probe().available for meter in every_meter() if meter.name in ("rapl", "perf", "hwmon")):
        pytest.skip("the CPUs of this machine can be measured without a monitor")
    python, private, theirs = python_for_nobody(), folder / "private", folder / "theirs"
    private.mkdir(mode=0o700)
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    feeder = Feeder(private / "package-0_uj")
    feeder.path.chmod(0o400)
    with Daemon(private, folder / "s", "--group", "daemon") as daemon:
        program = subprocess.Popen(
            [python, "-c", UNPRIVILEGED, theirs / "run.joulemap"],
            cwd=REPOSITORY,
            env={**plain_environment(), "JOULEMAP_MONITOR": str(daemon.path), "HOME": str(theirs)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=NOBODY,
            group=NOBODY,
            extra_groups=["daemon"],
        )
        with program:
            assert program.stdout.readline() == "package-0\n"
            feeder.put(42.0)
            print(file=program.stdin, flush=True)
            said = json.loads(program.stdout.readline())
            assert not [note for note in said if "has not changed" not in note]  # it may be kept waiting
    (trace,) = Recording.open(theirs / "run.joulemap").power()
    assert trace.total_j == pytest.approx(42.0)
    assert trace.domain.provenance == "measured"


def test_grpc_is_not_needed_to_import_the_package():
    code = "import sys, joulemap.meters.remote, joulemap.monitor.child; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert remote.own_socket().name == "monitor.sock"


def test_a_recording_of_what_a_monitor_measures_is_complete(folder, feeder, daemon, tmp_path, monkeypatch):
    """The short way: a program that starts, uses some energy and ends at once."""
    monkeypatch.setenv("JOULEMAP_MONITOR", str(daemon.path))
    with RecordingWriter.create(tmp_path / "run.joulemap", RecordingInfo()) as writer:
        handle = start_monitor(writer.path, meters="tests.monitor_meters:remote_meters")
        feeder.put(3.0)
        handle.stop()
    (trace,) = Recording.open(writer.path).power()
    assert trace.total_j == pytest.approx(3.0)
