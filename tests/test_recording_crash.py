"""Writers that are killed, and disks that fill up: what was acknowledged is there afterwards.

Real processes are really killed. One interpreter is started for a test and forks the victims, so that a
kill costs milliseconds. It kills them at random moments, or each at another system call. A kill takes
nothing from the kernel, so neither the victims nor those who look at them afterwards wait for the disk.
"""

import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from joulemap.devices import Domain
from joulemap.errors import RecordingError
from joulemap.recording import Recording, RecordingAppender, RecordingInfo, RecordingWriter
from joulemap.recording.folder import INFO
from joulemap.traces import EventTrace, PowerTrace, Steps

from .recordings import REPOSITORY, everything, some_events, some_power, unsynced, write_open, write_sealed

GPU = Domain("GPU 0", "GPU:0")
ROWS = 50


@pytest.fixture(autouse=True)
def _no_waiting():
    with unsynced():
        yield


def run(job, *arguments, wrapper=()):
    """Run a function of this file in a fresh interpreter; what it prints comes back as JSON."""
    code = f"import tests.test_recording_crash as t; t.{job}(*{[str(argument) for argument in arguments]!r})"
    command = [*wrapper, sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def fork(victim, *arguments):
    """Start a victim; the child never returns."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with unsynced():
            victim(*arguments)
        status = 0
    finally:
        os._exit(status)


# The parts that victims write: part n is known from n alone.


def events_part(n):
    start = 1000 * n + np.arange(ROWS)
    names = [f"part{n}", "shared/MatMul"] * (ROWS // 2)
    return EventTrace.from_columns(name=names, device="GPU:0", start_ns=start, end_ns=start + 10, lane=start)


def power_part(n):
    return PowerTrace(GPU, 1000 * n + np.arange(0, 1001, 1000 // 4), [0.25 * (n + 1)] * 4)


def steps_part(n):
    return Steps.from_columns(start_ns=[1000 * n], end_ns=[1000 * n + 1], label=f"kind{n % 3}")


def acknowledge(log):
    os.write(log, b".")


def program(path, log):
    """A program that records until it is killed."""
    writer = RecordingWriter.create(path, RecordingInfo(created_ns=0))
    acknowledge(log)
    for n in itertools.count():
        writer.append_steps(steps_part(n))
        writer.append_events(events_part(n))
        acknowledge(log)


def monitor(path, log):
    """The process beside it that meters."""
    appender = RecordingAppender(path)
    for n in itertools.count():
        appender.append_power(power_part(n))
        acknowledge(log)


def wait_for(log, parts):
    while os.fstat(log).st_size < parts:
        time.sleep(0.0005)


def kill_at_random(folder, kills, seed):
    """Record and kill, again and again; print how much each victim had acknowledged."""
    rng = random.Random(seed)
    for number in range(int(kills)):
        path = f"{folder}/{number}"
        logs = [os.open(f"{path}.{who}", os.O_CREAT | os.O_RDWR) for who in ("program", "monitor")]
        victims = [fork(program, path, logs[0])]
        wait_for(logs[0], 1)
        victims.append(fork(monitor, path, logs[1]))
        for who in rng.sample((0, 1), 2):
            wait_for(logs[who], rng.randrange(10))
            time.sleep(rng.random() * 0.003)  # into the middle of the next part
            os.kill(victims[who], signal.SIGKILL)
            os.waitpid(victims[who], 0)
        program_parts, monitor_parts = (os.fstat(log).st_size for log in logs)
        print(json.dumps([path, program_parts - 1, monitor_parts]))


def test_what_was_acknowledged_before_a_kill_is_there(tmp_path):
    kills = run("kill_at_random", tmp_path, 25, 1)
    for path, program_parts, monitor_parts in kills:
        recording = Recording.open(path)
        assert recording.info.status == "interrupted"
        events = recording.events()
        found = len(events) // ROWS
        assert found in (program_parts, program_parts + 1)
        assert list(events.name) == [name for n in range(found) for name in events_part(n).name]
        assert len(recording.steps() or ()) in (found, found + 1)
        energy_j = sum(trace.total_j for trace in recording.power())
        parts = sum(len(trace) for trace in recording.power()) // 4
        assert parts in (monitor_parts, monitor_parts + 1)
        assert energy_j == sum(power_part(n).total_j for n in range(parts))
    assert sum(parts for _, parts, _ in kills) > 30
    assert sum(parts for _, _, parts in kills) > 30


def test_an_interrupted_recording_can_be_finished(tmp_path):
    for path, _, _ in run("kill_at_random", tmp_path, 5, 2):
        before = everything(Recording.open(path))
        RecordingWriter.attach(path).finish("interrupted")
        after = Recording.open(path)
        assert everything(after) == before
        assert (after.info.status, after.notes) == ("interrupted", [])


# Killed at each system call

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")


def kill_at(number, victim, path):
    """Run the victim and have it die just before it makes, replaces or removes its ``number``-th file."""
    left = itertools.count(number, -1)

    def hook(event, arguments):
        if event in CHANGES and path in str(arguments) and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    victim(path)


def kill_at_each(victim, source, folder):
    """Let copies of ``source`` suffer, each killed one call later, until one survives."""
    for number in itertools.count():
        path = f"{folder}/{number}"
        if os.path.exists(source):  # noqa: PTH110
            shutil.copytree(source, path)
        child = fork(kill_at, number, globals()[victim], path)
        survived = os.waitpid(child, 0)[1] == 0
        print(json.dumps([path, survived]))
        if survived:
            return


def seal(path):
    RecordingWriter.attach(path).finish(window_ns=(1, 2))


def put(path):
    with RecordingWriter.create(path, RecordingInfo(created_ns=0)) as writer:
        writer.put_events(some_events())
        writer.put_power(some_power())


def overwrite(path):
    with RecordingWriter.create(path, RecordingInfo(created_ns=0), overwrite=True) as writer:
        writer.append_events(some_events(3))


def test_killed_while_sealing(tmp_path):
    write_open(tmp_path / "source")
    expected = everything(Recording.open(tmp_path / "source"))
    (tmp_path / "victims").mkdir()
    kills = run("kill_at_each", "seal", tmp_path / "source", tmp_path / "victims")
    assert len(kills) > 30
    statuses = set()
    for path, survived in kills:
        recording = Recording.open(path)
        assert everything(recording) == expected
        statuses.add(recording.info.status)
        assert survived <= (recording.info.status == "complete")
        RecordingWriter.attach(path).finish()
        recording = Recording.open(path)
        assert everything(recording) == expected
        assert (recording.info.status, recording.notes) == ("complete", [])
    assert statuses == {"interrupted", "complete"}


def rows_of(path):
    """Rows of events and of power, or the message of the error."""
    try:
        recording = Recording.open(path)
        return len(recording.events()), sum(len(trace) for trace in recording.power())
    except RecordingError as error:
        return error.message


def test_killed_while_importing(tmp_path):
    kills = run("kill_at_each", "put", tmp_path / "nothing", tmp_path)
    found = [rows_of(path) for path, _ in kills]
    assert {rows for rows in found if not isinstance(rows, str)} == {(0, 0), (20, 0), (20, 10)}
    assert all(str(tmp_path) in message for message in found if isinstance(message, str))
    assert found[-1] == (20, 10)


def test_killed_while_overwriting(tmp_path):
    write_sealed(tmp_path / "source")
    (tmp_path / "victims").mkdir()
    kills = run("kill_at_each", "overwrite", tmp_path / "source", tmp_path / "victims")
    for path, _ in kills:
        found = rows_of(path)
        assert path in found if isinstance(found, str) else found in {(30, 24), (0, 0), (3, 0)}
        overwrite(path)
        assert rows_of(path) == (3, 0)


# Full disks


def refusal(append, *arguments):
    """The error of an append, if there was one."""
    try:
        append(*arguments)
    except RecordingError as error:
        return error
    return None


def fill(writer):
    """Append until it is refused: how many parts were taken, and the refusal."""
    error, n = None, -1
    while not error:
        n += 1
        error = refusal(writer.append_power, power_part(n)) or refusal(writer.append_events, events_part(n))
    return n, error.message, error.hint


def holds(path):
    recording = Recording.open(path)
    return len(recording.events()) / ROWS, sum(len(trace) for trace in recording.power()) / 4


def file_size_limit(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))


def append_under_a_limit(path, limit):
    with RecordingWriter.create(path, RecordingInfo(created_ns=0)) as writer:
        file_size_limit(limit)
        parts, message, hint = fill(writer)
        again = refusal(writer.append_events, events_part(parts))
        file_size_limit(resource.RLIM_INFINITY)
        writer.append_events(events_part(parts))
    print(json.dumps([parts, message, hint, again.message]))


@pytest.mark.parametrize("limit", [700, 9_000, 20_001])
def test_a_limit_on_file_size(tmp_path, limit):
    ((parts, message, hint, again),) = run("append_under_a_limit", tmp_path / "r", limit)
    assert ".arrows cannot be written: it would exceed the largest file" in message
    assert f"{tmp_path / 'r' / 'events.arrows'} cannot be written: it would exceed" in again
    assert "ulimit" in hint
    assert "stays readable" in hint
    events = Recording.open(tmp_path / "r").events()
    assert list(events.name) == [name for n in range(parts + 1) for name in events_part(n).name]


def seal_under_a_limit(path, limit):
    writer = RecordingWriter.attach(path)
    file_size_limit(limit)
    print(json.dumps(refusal(writer.finish).message))


@pytest.mark.parametrize(("limit", "refused"), [(2_200, "events.parquet"), (300, INFO)])
def test_a_limit_while_sealing(tmp_path, limit, refused):
    with RecordingWriter.create(tmp_path / "r", RecordingInfo(created_ns=0)) as writer:
        writer.append_events(some_events(500))
        writer.close()
        writer._release()
    (message,) = run("seal_under_a_limit", tmp_path / "r", limit)
    assert f"{refused} cannot be written" in message
    recording = Recording.open(tmp_path / "r")
    assert recording.info.status == ("complete" if refused != INFO else "interrupted")
    assert len(recording.events()) == 500
    left = {path.name for path in (tmp_path / "r").iterdir() if "events" in path.name}
    assert left == {"events.arrows", "events.sums"}
    RecordingWriter.attach(tmp_path / "r").finish()
    assert len(Recording.open(tmp_path / "r").events()) == 500


IN_A_SMALL_DISK = ("unshare", "--map-root-user", "--mount", "sh", "-c")


def small_disk(path):
    """A wrapper that runs a command in a namespace of its own, where ``path`` is a disk of 300 kB."""
    return (*IN_A_SMALL_DISK, f'mount -t tmpfs -o size=300k tmpfs "{path}" && exec "$@"', "sh")


def cannot_mount(path):
    try:
        done = subprocess.run([*small_disk(path), "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return "there is no unshare here"
    return done.stderr.strip()


def on_a_full_disk(path):
    """Fill the disk by appending, and again before sealing; print what was said and what was readable."""
    ballast = f"{path}.ballast"
    writer = RecordingWriter.create(path, RecordingInfo(created_ns=0))
    take_up(ballast, 100_000)
    parts, *said = fill(writer)
    print(json.dumps([parts, *said, *holds(path)]))
    os.remove(ballast)  # noqa: PTH107
    writer.append_events(events_part(parts))
    take_up(ballast, 1_000_000)
    error = refusal(writer.finish)
    print(json.dumps([parts, error.message, error.hint, *holds(path)]))
    os.remove(ballast)  # noqa: PTH107
    RecordingWriter.attach(path).finish()
    print(json.dumps([parts, "", Recording.open(path).info.status, *holds(path)]))


def take_up(path, size):
    """Write a file of that size, or until the disk is full."""
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        try:
            for _ in range(0, size, 1000):
                file.write(bytes(1000))
        except OSError:
            return


def test_a_full_disk(tmp_path):
    if reason := cannot_mount(tmp_path):
        pytest.skip(f"cannot mount a small disk: {reason}")
    full, unsealed, finished = run("on_a_full_disk", tmp_path / "r", wrapper=small_disk(tmp_path))
    parts, message, hint, events, power = full
    assert "cannot be written: the disk is full" in message
    assert str(tmp_path / "r") in message
    assert "Free some space" in hint
    assert events == parts > 10
    assert power in (parts, parts + 1)
    assert "cannot be written: the disk is full" in unsealed[1]
    assert unsealed[3:] == [parts + 1, power]
    assert finished[2:] == ["complete", parts + 1, power]
