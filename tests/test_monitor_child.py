"""The monitor as a child of the program, with real processes that are stopped, killed and starved."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from joulemap.errors import MeterError
from joulemap.monitor.child import start_monitor
from joulemap.recording import Recording, RecordingInfo, RecordingWriter

from .monitor_meters import Feeder, open_descriptors, wait_for
from .recordings import REPOSITORY

METERS = "tests.monitor_meters:file_meters"


@pytest.fixture
def sensors(tmp_path):
    folder = tmp_path / "sensors"
    folder.mkdir()
    return folder


@pytest.fixture
def feeder(sensors):
    feeder = Feeder(sensors / "package-0_uj")
    yield feeder
    feeder.stop()


@pytest.fixture
def writer(tmp_path):
    return RecordingWriter.create(tmp_path / "run.joulemap", RecordingInfo())


@pytest.fixture
def start(writer, sensors):
    """Start monitors; none outlives its test."""
    handles = []

    def start(path=writer.path, folder=sensors):
        handles.append(start_monitor(path, meters=METERS, arguments={"folder": str(folder)}))
        return handles[-1]

    yield start
    for handle in handles:
        with suppress(ProcessLookupError):
            os.kill(handle.pid, signal.SIGCONT)
        handle.stop()


def power(path):
    """The power on disk so far, or None."""
    traces = Recording.open(path).power()
    return traces[0] if traces else None


def batches(path):
    """How often the monitor has written."""
    return sum(len(shares) for shares in Recording.open(path).shares().values())


def notes(path):
    """What it has noted."""
    table = Recording.open(path).table("notes")
    return [] if table is None else table["text"].to_pylist()


def noted(path, words):
    return any(words in note for note in notes(path))


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


def test_power_shares_facts_and_its_own_quality_are_recorded(start, feeder, writer):
    handle = start()
    feeder.start()
    wait_for(lambda: batches(writer.path))
    feeder.stop()
    report = handle.stop()
    writer.finish()
    recording = Recording.open(writer.path)
    assert [domain.name for domain in handle.domains] == ["package-0"]
    assert power(writer.path).total_j == pytest.approx(feeder.fed_j)
    assert list(recording.shares()) == ["package-0"]
    assert set(recording.table("facts")["name"].to_pylist()) == {"CPU:0 load_percent"}
    quality = recording.table("monitor")
    assert sum(quality["reads"].to_pylist()) == report.quality.reads > 0
    assert report.quality.cpu_s > 0
    assert report.anchor.clock == "system clock"
    assert not [note for note in report.notes if "changed" not in note]
    assert handle.stop() == report
    assert not handle.alive


def test_it_starts_no_threads_for_mathematics(start, feeder, monkeypatch):
    """Even where the program wants one a core."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "16")
    environment = Path(f"/proc/{start().pid}/environ").read_bytes().split(b"\0")
    assert b"OPENBLAS_NUM_THREADS=1" in environment


def test_nothing_to_meter_is_an_error_that_leaves_nothing_behind(writer, sensors):
    before = open_descriptors()
    with pytest.raises(MeterError, match="has no counters"):
        start_monitor(writer.path, meters=METERS, arguments={"folder": str(sensors)})
    with pytest.raises(MeterError, match="names no meters"):
        start_monitor(writer.path, meters="nowhere:nothing")
    with pytest.raises(MeterError, match="TypeError"):
        start_monitor(writer.path, meters=METERS, arguments={"wrong": 1})
    assert open_descriptors() == before


def test_wraps_around_under_load(start, writer, sensors):
    feeder = Feeder(sensors / "package-0_uj", start_j=262_142.99)
    handle = start()
    feeder.start()
    wait_for(lambda: feeder.fed_j > 20)
    feeder.stop()
    handle.stop()
    assert power(writer.path).total_j == pytest.approx(feeder.fed_j)


def test_a_stopped_monitor_leaves_a_gap_and_loses_no_energy(start, feeder, writer):
    handle = start()
    feeder.start()
    wait_for(lambda: feeder.fed_j > 10)
    os.kill(handle.pid, signal.SIGSTOP)
    wait_for(lambda: feeder.fed_j > 110)
    os.kill(handle.pid, signal.SIGCONT)
    wait_for(lambda: feeder.fed_j > 130)
    feeder.stop()
    report = handle.stop()
    trace = power(writer.path)
    assert trace.total_j == pytest.approx(feeder.fed_j)
    assert trace.gap.any()
    assert trace.energy_j[trace.gap].max() > 50
    assert report.quality.missed > 100


def test_a_sensor_that_vanishes_and_comes_back(start, feeder, writer):
    handle = start()
    feeder.put(5.0)
    hidden = feeder.path.with_suffix(".away")
    feeder.path.rename(hidden)
    wait_for(lambda: noted(writer.path, "cannot be read"))
    hidden.rename(feeder.path)
    feeder.put(50.0)
    report = handle.stop()
    assert power(writer.path).total_j == pytest.approx(50.0)
    said = "package-0 cannot be read: package-0_uj: No such file or directory. It is tried again."
    assert said in report.notes


def test_a_counter_that_goes_backwards(start, feeder, writer):
    feeder.put(100.0)
    handle = start()
    feeder.put(110.0)
    wait_for(lambda: batches(writer.path))
    feeder.put(20.0)
    wait_for(lambda: noted(writer.path, "went back"))
    feeder.put(25.0)
    handle.stop()
    trace = power(writer.path)
    assert trace.total_j == pytest.approx(15.0)
    assert (trace.energy_j >= 0).all()


def test_a_full_disk_is_waited_for(start, feeder, writer):
    handle = start()
    feeder.start()
    soft, hard = resource.prlimit(handle.pid, resource.RLIMIT_FSIZE)
    wait_for(lambda: batches(writer.path))
    resource.prlimit(handle.pid, resource.RLIMIT_FSIZE, (1024, hard))
    fed_j = feeder.fed_j
    wait_for(lambda: feeder.fed_j > fed_j + 200)
    resource.prlimit(handle.pid, resource.RLIMIT_FSIZE, (soft, hard))
    feeder.stop()
    handle.stop()
    assert power(writer.path).total_j == pytest.approx(feeder.fed_j)
    assert any("largest file allowed" in note and "Written later" in note for note in notes(writer.path))


def test_a_disk_that_stays_full_is_told(start, feeder):
    handle = start()
    resource.prlimit(
        handle.pid, resource.RLIMIT_FSIZE, (0, resource.prlimit(handle.pid, resource.RLIMIT_FSIZE)[1])
    )
    feeder.put(1.0)
    assert any("cannot be written" in note for note in handle.stop().notes)


def test_a_monitor_that_does_not_answer_is_ended(start, feeder):
    handle = start()
    os.kill(handle.pid, signal.SIGSTOP)
    assert "did not answer" in handle.stop(timeout_s=0.1).notes[0]
    assert is_gone(handle.pid)


def many_short_recordings(count, feeder, sensors, tmp_path):
    """Two at a time, each with a monitor of its own; no process and no descriptor is left behind."""

    def once(number):
        with RecordingWriter.create(tmp_path / f"{number}.joulemap", RecordingInfo()) as writer:
            handle = start_monitor(writer.path, meters=METERS, arguments={"folder": str(sensors)})
            handle.stop()
        assert is_gone(handle.pid)
        assert Recording.open(writer.path).info.status == "complete"
        shutil.rmtree(writer.path)

    once("first")
    before, children = open_descriptors(), children_of_this_process()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(once, range(count)))
    assert open_descriptors() <= before
    assert children_of_this_process() <= children


def children_of_this_process():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_program_with_many_open_files_is_metered(start, feeder):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("may not open that many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    handles = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert start().stop().quality is not None
    finally:
        for handle in handles:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_short_recordings_leave_nothing_behind(feeder, sensors, tmp_path):
    many_short_recordings(12, feeder, sensors, tmp_path)


@pytest.mark.long
def test_a_thousand_short_recordings_leave_nothing_behind(feeder, sensors, tmp_path):
    many_short_recordings(1000, feeder, sensors, tmp_path)


def test_the_end_of_the_thread_that_started_it_is_not_the_end_of_the_program(start, feeder, writer):
    handles = []
    thread = threading.Thread(target=lambda: handles.append(start()))
    thread.start()
    thread.join()
    wait_for(lambda: batches(writer.path) >= 2)
    assert handles[0].alive


def test_a_forked_child_leaves_the_monitor_alone(start, feeder):
    handle = start()
    child = os.fork()
    if not child:
        os._exit(len(handle.stop().notes))
    assert os.waitpid(child, 0)[1] == 0
    assert handle.alive


PROGRAM = """
import json, os, sys, time
from joulemap.monitor.child import start_monitor
meters = "tests.monitor_meters:file_meters"
handle = start_monitor(sys.argv[1], meters=meters, arguments={"folder": sys.argv[2]})
worker = os.fork() if sys.argv[3] == "workers" else 0
if worker or sys.argv[3] == "alone":
    print(json.dumps([handle.pid, worker]), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("with_workers", ["alone", "workers"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_monitor_ends_with_the_program_however_it_dies(writer, feeder, sensors, with_workers, how):
    """Workers that were forked hold the program's ends of all pipes; the monitor ends nevertheless."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, writer.path, sensors, with_workers],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    monitor, worker = json.loads(program.stdout.readline())
    try:
        for _ in range(20):
            feeder.step()
        program.send_signal(how)
        program.wait(60)
        wait_for(lambda: is_gone(monitor))
    finally:
        if worker:
            os.kill(worker, signal.SIGKILL)
        program.kill()
        program.wait()
        program.stdout.close()
    assert power(writer.path).total_j == pytest.approx(feeder.fed_j)
