"""Faults while a program is being recorded, with real processes: rights that go, sensors that fail, kills."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from joulemap.recording import Recording
from joulemap.units import NS_PER_S

from .monitor_daemon import NOBODY, plain_environment, python_for_nobody
from .monitor_meters import wait_for
from .recordings import REPOSITORY
from .sysfs import rapl_zone

FILES, RAPL = "tests.monitor_meters:file_meters", "tests.monitor_meters:rapl_meters"

PROGRAM = """
import json, sys, threading
from joulemap.monitor.child import start_monitor
from joulemap.recording import RecordingInfo, RecordingWriter
settings = json.loads(sys.argv[1])
with RecordingWriter.create(settings.pop("recording"), RecordingInfo()) as writer:
    busy = settings.pop("busy")
    handle = start_monitor(writer.path, **settings)
    print(handle.pid, flush=True)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    done = 0
    while not over.is_set() if busy else not over.wait():
        done += 1
    report = handle.stop()
    writer.update(warnings=[*report.notes])
print(json.dumps({"done": done, "notes": list(report.notes)}), flush=True)
"""


class Program:
    """A program with a monitor beside it, which goes on until it is told to end."""

    def __init__(self, recording, meters, busy=False, python=sys.executable, user=None, **arguments):
        settings = {"recording": recording, "meters": meters, "arguments": arguments, "busy": busy}
        self.recording = Path(recording)
        self.process = subprocess.Popen(
            [python, "-c", PROGRAM, json.dumps(settings, default=str)],
            cwd=REPOSITORY,
            env=plain_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=user,
        )
        self.monitor = int(self.process.stdout.readline())

    def end(self):
        """What it says at its end."""
        print(file=self.process.stdin, flush=True)
        said = json.loads(self.process.stdout.readline())
        self.process.wait(60)
        return said

    def power(self):
        found = Recording.open(self.recording).power()
        return found[0] if found else None

    def parts(self):
        """How often the monitor has written."""
        return sum(len(shares) for shares in Recording.open(self.recording).shares().values())

    def notes_since(self, t_ns):
        """What was noted of later times, in one text."""
        table = Recording.open(self.recording).table("notes")
        rows = [] if table is None else table.to_pylist()
        return "\n".join(row["text"] for row in rows if row["t_ns"] > t_ns)

    def heard(self, words):
        return wait_for(lambda: words in self.notes_since(0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        wait_for(lambda: not Path(f"/proc/{self.monitor}").exists())


@pytest.fixture
def rapl(folder):
    """A tree like that of the kernel; its counter can be moved by the microjoule."""
    return rapl_zone(folder, "intel-rapl:0", "package-0", 1_000_000)


@contextmanager
def program_without_rights(place, meters, **arguments):
    """As another user, who may read what is open to everyone."""
    python, theirs = python_for_nobody(), place / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    with Program(theirs / "run.joulemap", meters, python=python, user=NOBODY, **arguments) as program:
        yield program


def write_over(path, energy_uj):
    """As a counter moves: in place, under whoever has it open."""
    handle = os.open(path, os.O_WRONLY)
    os.pwrite(handle, f"{energy_uj:015d}\n".encode(), 0)
    os.close(handle)


def test_permission_lost_and_given_back_where_the_file_is_opened_each_time(folder, feeder):
    """A note, and another when it is over; the counter knows what flowed meanwhile."""
    feeder.path.chmod(0o644)
    with program_without_rights(folder, FILES, folder=folder) as program:
        feeder.start()
        wait_for(program.parts)
        feeder.path.chmod(0)
        program.heard("Permission denied")
        lost_j = feeder.fed_j
        wait_for(lambda: feeder.fed_j > lost_j + 50)
        feeder.path.chmod(0o644)
        program.heard("can be read again")
        feeder.stop()
        said = program.end()
        trace = program.power()
    assert len([note for note in said["notes"] if "Permission denied" in note]) == 1
    assert trace.gap.any()
    assert trace.total_j == pytest.approx(feeder.fed_j)


def test_permission_lost_is_no_matter_where_the_descriptor_is_kept(folder, rapl):
    """Rights are checked when a file is opened; RAPL's meter opens it once."""
    with program_without_rights(folder, RAPL, root=folder) as program:
        write_over(rapl, 3_000_000)
        rapl.chmod(0)
        wait_for(lambda: program.parts() >= 2)
        write_over(rapl, 6_000_000)
        said = program.end()
        trace = program.power()
    assert not [note for note in said["notes"] if "cannot be read" in note]
    assert trace.total_j == pytest.approx(5.0)


def test_permission_lost_before_a_kept_descriptor_must_be_opened_again(folder, rapl):
    """The driver is loaded anew, and its files are root's at first."""
    with program_without_rights(folder, RAPL, root=folder) as program:
        write_over(rapl, 3_000_000)
        rapl.unlink()
        program.heard("it was removed")
        rapl.touch(mode=0)
        write_over(rapl, 4_000_000)
        parts = program.parts()
        wait_for(lambda: program.parts() > parts)
        rapl.chmod(0o644)
        program.heard("can be read again")
        said = program.end()
        trace = program.power()
    assert len([note for note in said["notes"] if "cannot be read" in note]) == 1
    assert trace.total_j == pytest.approx(3.0)


def test_a_frozen_counter_is_noted_and_its_energy_is_there_when_it_moves_again(folder, feeder):
    with Program(folder / "run.joulemap", FILES, folder=folder) as program:
        feeder.start()
        wait_for(program.parts)
        feeder.stop()
        feeder.step()
        stepped_ns = time.time_ns()  # a machine that is busy can have held the counter up before
        wait_for(lambda: "has not changed for" in program.notes_since(stepped_ns + NS_PER_S))
        feeder.put(feeder.fed_j + 70.0)
        said = program.end()
        trace = program.power()
    assert [note for note in said["notes"] if "has not changed" in note]
    assert trace.total_j == pytest.approx(feeder.fed_j + 70.0)
    assert trace.energy_j[trace.gap].max() == pytest.approx(70.0)


def test_two_programs_at_once_have_a_recording_each(folder, feeder):
    """Both hold all the energy of the socket, and the programs' shares of it are no more than one."""
    with (
        Program(folder / "one.joulemap", FILES, busy=True, folder=folder) as one,
        Program(folder / "two.joulemap", FILES, busy=True, folder=folder) as two,
    ):
        feeder.start()
        wait_for(lambda: one.parts() >= 3 and two.parts() >= 3)
        feeder.stop()
        said = [one.end(), two.end()]
    shares = []
    for program in (one, two):
        recording = Recording.open(program.recording)
        assert recording.info.status == "complete"
        assert program.power().total_j == pytest.approx(feeder.fed_j)
        shares.append(recording.shares()["package-0"])
    assert all(one["done"] > 0 for one in said)
    assert min(share.share[1:].mean() for share in shares) > 0
    edges_ns = np.concatenate([share.edges_ns for share in shares])  # one of them began before the other
    theirs_ns = sum((share.share * np.diff(share.edges_ns)).sum() for share in shares)
    assert theirs_ns < 1.05 * (edges_ns.max() - edges_ns.min())


def fed_and_on_disk(program, feeder):
    """Wait for some parts; what was fed by then, once the part that has it is on disk."""
    wait_for(lambda: program.parts() >= 2)
    fed_j = feeder.fed_j
    wait_for(lambda: program.power().total_j >= fed_j)
    return fed_j


def test_a_program_goes_on_without_its_monitor_and_the_recording_names_what_is_missing(folder, feeder):
    with Program(folder / "run.joulemap", FILES, busy=True, folder=folder) as program:
        feeder.start()
        fed_j = fed_and_on_disk(program, feeder)
        os.kill(program.monitor, signal.SIGKILL)
        said = program.end()
    recording = Recording.open(program.recording)
    assert said["done"] > 0
    assert recording.info.status == "complete"
    assert recording.info.warnings == said["notes"]
    assert "died (exit code -9): the power is missing from its last second on" in said["notes"][0]
    assert program.power().total_j >= fed_j


def test_a_killed_program_leaves_everything_until_its_end(folder, feeder):
    with Program(folder / "run.joulemap", FILES, folder=folder) as program:
        feeder.start()
        wait_for(program.parts)
        fed_j = feeder.fed_j
        program.process.kill()
        wait_for(lambda: not Path(f"/proc/{program.monitor}").exists())
    assert program.power().total_j >= fed_j


def test_both_killed_lose_no_more_than_the_last_part(folder, feeder):
    with Program(folder / "run.joulemap", FILES, folder=folder) as program:
        feeder.start()
        fed_j = fed_and_on_disk(program, feeder)
        os.kill(program.monitor, signal.SIGKILL)
        program.process.kill()
    trace = program.power()
    assert trace.total_j >= fed_j
    assert (trace.edges_ns[1:] > trace.edges_ns[:-1]).all()
