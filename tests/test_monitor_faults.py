"""A monitor of two families of meters, as a real process, when the machine plays tricks on it."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress

import numpy as np
import pytest

from joulemap.monitor.child import start_monitor
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.units import NS_PER_S

from .fault_meters import BOARD
from .monitor_meters import Feeder, wait_for

METERS = "tests.fault_meters:two_families"
STOPPED_S = 5
HOUR_S = 3600

STEPPED_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    const char *sign = getenv("STEPPED_CLOCK");
    if (clock == CLOCK_REALTIME && sign && access(sign, F_OK) == 0)
        now->tv_sec += atol(getenv("STEPPED_BY_S"));
    return code;
}
"""


@pytest.fixture
def feeder(tmp_path):
    (tmp_path / "sensors").mkdir()
    feeder = Feeder(tmp_path / "sensors" / "package-0_uj")
    yield feeder
    feeder.stop()


@pytest.fixture
def start(feeder):
    """Start a monitor that adds to a recording; it does not outlive its test."""
    handles = []

    def start(path):
        writer = RecordingWriter.create(path, RecordingInfo())
        arguments = {"folder": str(feeder.path.parent)}
        handles.append(start_monitor(writer.path, meters=METERS, arguments=arguments))
        return handles[-1]

    yield start
    for handle in handles:
        handle.stop()


def traces(path):
    """The power on disk by domain."""
    return {trace.domain.name: trace for trace in Recording.open(path).power()}


def rows(path, table):
    found = Recording.open(path).table(table)
    return 0 if found is None else found.num_rows


def batches(path):
    """How often the monitor has written."""
    return max((len(shares) for shares in Recording.open(path).shares().values()), default=0)


def test_stopped_for_five_seconds(start, feeder, tmp_path):
    """The gap is visible in both; the counter's energy is all there, and of power samples none is made up."""
    path = tmp_path / "run.joulemap"
    handle = start(path)
    feeder.start()
    wait_for(lambda: batches(path) >= 1)
    os.kill(handle.pid, signal.SIGSTOP)
    stopped_ns = time.time_ns()
    time.sleep(STOPPED_S)
    continued_ns = time.time_ns()
    os.kill(handle.pid, signal.SIGCONT)
    wait_for(lambda: batches(path) >= 3)
    feeder.stop()
    report = handle.stop()
    counter, board = traces(path)["package-0"], traces(path)["board"]
    assert counter.total_j == pytest.approx(feeder.fed_j)
    for trace in (counter, board):
        inside = (trace.edges_ns > stopped_ns + NS_PER_S // 2) & (trace.edges_ns < continued_ns)
        assert not inside.any()
        assert trace.gap[np.searchsorted(trace.edges_ns, continued_ns) - 1]
    assert counter.energy_j[counter.gap].sum() > 0
    assert board.energy_j[board.gap].sum() == 0
    seen_s = (board.edges_ns[-1] - board.edges_ns[0]) / 1e9 - board.gap_s
    assert board.total_j == pytest.approx(50 * seen_s)
    assert report.quality.missed >= STOPPED_S * 200


@pytest.fixture
def stepped_clock(tmp_path, monkeypatch):
    """A system clock that is stepped once a file is there, for processes that are started from here."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, to step the system clock of one process only")
    source, library, sign = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "step now"
    source.write_text(STEPPED_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("STEPPED_CLOCK", str(sign))
    return sign


@pytest.mark.parametrize("way", [1, -1])
def test_the_clock_is_stepped_by_an_hour(start, feeder, stepped_clock, monkeypatch, tmp_path, way):
    monkeypatch.setenv("STEPPED_BY_S", str(way * HOUR_S))
    path = tmp_path / "run.joulemap"
    handle = start(path)
    feeder.start()
    wait_for(lambda: batches(path) >= 1)
    stepped_clock.touch()
    wait_for(lambda: batches(path) >= 3)
    feeder.stop()
    report = handle.stop()
    (note,) = [note for note in report.notes if "clock" in note]
    assert f"set {'forward' if way > 0 else 'back'} by 1 h" in note
    for trace in traces(path).values():
        assert (trace.edges_ns[-1] - trace.edges_ns[0]) / 1e9 < HOUR_S / 2
        assert np.diff(trace.edges_ns).min() > 0
    assert traces(path)["package-0"].total_j == pytest.approx(feeder.fed_j)
    stepped_s = (report.anchor.theirs_end_ns - report.anchor.ours_end_ns) / 1e9
    assert stepped_s == pytest.approx(way * HOUR_S, abs=1)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own that is soon full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(path):
    """Until there is no room any more."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 4096):
            pass


def test_a_disk_that_is_full_for_a_while_loses_nothing(start, feeder, small_disk):
    path, filler = small_disk / "run.joulemap", small_disk / "filler"
    handle = start(path)
    feeder.start()
    wait_for(lambda: batches(path) >= 1)
    fill(filler)
    written, fed_j = batches(path), feeder.fed_j
    wait_for(lambda: feeder.fed_j > fed_j + 250)
    assert batches(path) <= written + 1
    filler.unlink()
    wait_for(lambda: batches(path) > written + 2)
    feeder.stop()
    report = handle.stop()
    counter, board = traces(path)["package-0"], traces(path)["board"]
    assert counter.total_j == pytest.approx(feeder.fed_j)
    due = (board.edges_ns[-1] - board.edges_ns[0]) / (BOARD.update_period_s * NS_PER_S)
    assert due - len(board) <= report.quality.missed + 50  # a part that was lost would have had a hundred
    notes = Recording.open(path).table("notes")["text"].to_pylist()
    assert any("the disk is full" in note and "Written later" in note for note in notes)
    assert not [note for note in report.notes if "cannot be written" in note]


def test_killed_it_has_lost_no_more_than_the_last_second_of_anything(start, feeder, tmp_path):
    """Facts and the monitor's own figures are written as often as power is: one part behind at most."""
    path = tmp_path / "run.joulemap"
    handle = start(path)
    feeder.start()
    wait_for(lambda: batches(path) >= 2 and rows(path, "facts") >= 1)
    os.kill(handle.pid, signal.SIGKILL)
    handle.stop()
    assert rows(path, "monitor") >= batches(path) - 1 >= 1
    assert rows(path, "facts") >= 1
    figures = Recording.open(path).table("monitor")
    assert {"missed", "late_p50_s", "late_p99_s", "cpu_s"} <= set(figures.column_names)
    before_the_last_ns = Recording.open(path).shares()["package-0"].edges_ns[-2]
    assert figures["t_ns"][-1].as_py() >= before_the_last_ns
    assert traces(path)["package-0"].edges_ns[-1] > before_the_last_ns
