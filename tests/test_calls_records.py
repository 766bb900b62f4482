"""What ``joulemap run --calls`` records of a program's calls, and of which."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joulemap.recording import Recording

from .calls_programs import WAYS, metered, project_in, recorded_calls, same, texts
from .monitor_meters import wait_for
from .test_run import program


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return project_in(tmp_path)


def test_whatever_way_the_library_is_reached_it_is_found(project):
    program(project, WAYS)
    calls = same(project, "program.py")
    found = sorted(zip(texts(calls), calls.api, strict=True))
    assert ("add", "fakelib.add") in found  # a parameter
    assert ("function", "fakelib.add") in found
    assert ("thing.same", "fakelib.Thing.same") in found
    assert ('getattr(fakelib, "add")', "fakelib.add") in found
    assert ("Mine", "fakelib.Thing") in found
    assert ("super().__init__", "fakelib.Thing.__init__") in found
    assert ("m", "fakelib.Thing.__call__") in found
    assert ("functools.partial(plus, 1)", "fakelib.add") in found
    assert ("Alias", "fakelib.Thing") in found
    assert ("fakelib.decorate", "fakelib.decorate") in found
    assert not [text for text, _ in found if text in ("m.own", "Overridden()", "documented")]
    assert list(calls.api).count("fakelib.add") == texts(calls).count("plus") + sum(
        text in ("add", "function", 'getattr(fakelib, "add")', "functools.partial(plus, 1)", "fakelib.add")
        for text in texts(calls)
    )


def test_functions_that_look_alike_are_told_apart(project):
    """Cached functions are all of one class, and so are the methods of classes that are written in C."""
    program(project, "import functools\n@functools.lru_cache\ndef cached(x): return x", "memory.py")
    program(
        project,
        """
        import functools, memory, numpy as np
        @functools.lru_cache
        def own(x): return x
        x = np.ones(3)
        print(own(1), memory.cached(1), own(2), str.upper("a"), np.ndarray.sum(x), str.lower("A"))
        print([1].__len__(), x.__len__(), {}.__len__())
    """,
    )
    calls = same(project, "program.py", calls="memory,numpy")
    assert texts(calls) == ["np.ones", "memory.cached", "np.ndarray.sum", "x.__len__"]
    assert list(calls.api) == ["numpy.ones", "memory.cached", "numpy.ndarray.sum", "numpy.ndarray.__len__"]


def test_what_the_library_has_wrapped_in_the_programs_class_is_the_librarys(project):
    """As flax wraps the methods of modules."""
    program(
        project,
        """
        import functools
        class Module:
            def __init_subclass__(cls): cls.__call__ = wrapper(cls.__call__)
            def __call__(self, x): return x
        def wrapper(function):
            @functools.wraps(function)
            def wrapped(self, x): return function(self, x)
            return wrapped
    """,
        "wrapping.py",
    )
    program(
        project,
        """
        import wrapping
        class Mine(wrapping.Module):
            def __call__(self, x): return x + 1
        class Plain:
            def __call__(self, x): return x + 2
        mine, plain = Mine(), Plain()
        print(mine(1), plain(1))
    """,
    )
    calls = same(project, "program.py", calls="wrapping")
    assert list(calls.api) == ["wrapping.Module", "wrapping.Module.__call__"]


def test_calls_know_what_they_are_in_and_where_they_are(project):
    program(
        project,
        """
        import fakelib, threading
        def inner(x):
            return fakelib.add(x, 1)
        def outer():
            return fakelib.apply(inner, 1) + fakelib.add(2)
        thread = threading.Thread(target=outer)
        thread.start(); thread.join()
        outer()
    """,
    )
    calls = same(project, "program.py")
    assert calls.parent.tolist() == [-1, 0, -1, -1, 3, -1]
    assert len(set(calls.thread.tolist())) == 2
    rows = calls.sites.rows(calls.site)
    assert calls.sites.line[rows].tolist() == [6, 4, 6, 6, 4, 6]
    assert calls.sites.column[rows].tolist() == [12, 12, 38, 12, 12, 38]
    assert list(calls.sites.function[rows]) == ["outer", "inner", "outer"] * 2
    inside = calls.parent >= 0
    around = calls.parent[inside]
    assert (calls.start_ns[inside] >= calls.start_ns[around]).all()
    assert (calls.end_ns[inside] <= calls.end_ns[around]).all()


def test_sizes_are_those_of_the_arrays_that_were_given(tmp_path):
    program(
        tmp_path,
        """
        import numpy as np
        x = np.zeros((3, 4), "float32")
        np.concatenate([x, x], axis=0)
        np.add(x, 1)
        x.sum()
        np.sqrt(4.0)
        np.broadcast_shapes((1, 2), (3, 1))
    """,
    )
    calls = same(tmp_path, "program.py", calls="numpy")
    found = {
        api: (calls.argument_bytes[row], calls.object_bytes[row], shapes)
        for row, (api, shapes) in enumerate(zip(calls.api, calls.shapes, strict=True))
    }
    pair = [[[3, 4], "float32"]] * 2
    assert found["numpy.concatenate"] == (96, 0, json.dumps(pair))
    assert found["numpy.add"] == (48, 0, json.dumps(pair[:1]))
    assert found["numpy.ndarray.sum"] == (0, 48, "")
    assert found["numpy.sqrt"] == found["numpy.broadcast_shapes"] == (0, 0, "")


def test_the_calls_of_a_killed_program_are_there_and_the_last_is_open(project):
    program(
        project,
        """
        import fakelib, os, signal
        for _ in range(1000): fakelib.add(1)
        fakelib.apply(lambda: fakelib.apply(os.kill, os.getpid(), signal.SIGKILL))
    """,
    )
    assert metered(project, "program.py").returncode == -signal.SIGKILL
    calls = recorded_calls(project)
    assert list(calls.outcome) == ["returned"] * 1000 + ["open"] * 2
    assert calls.parent.tolist()[-2:] == [-1, 1000]
    recording = Recording.open(project / "r.joulemap")
    assert recording.info.window_ns is not None
    assert calls.end_ns[-1] == recording.info.window_ns[1]


def test_chosen_packages_are_looked_into_and_others_are_not(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("chosen", "other"):
        program(elsewhere, "import fakelib\ndef go(): return fakelib.add(1)", f"{name}.py")
    program(project, "import chosen, other\nprint(chosen.go(), other.go())")
    environment = {**os.environ, "PYTHONPATH": f"{elsewhere}{os.pathsep}{project}"}
    ours = metered(project, "--calls-in", "chosen", "program.py", env=environment)
    assert ours.stdout == "1 1\n"
    calls = recorded_calls(project)
    assert [Path(name).name for name in calls.sites.file] == ["chosen.py"]
    assert not list(elsewhere.rglob("*joulemap*"))


def test_the_whole_project_is_metered_without_its_calls(project):
    program(project, "import fakelib\nprint(fakelib.add(1))")
    assert metered(project, "--project", "program.py").stdout == "1\n"
    recording = Recording.open(project / "r.joulemap")
    assert recording.calls() is None


@pytest.mark.parametrize(
    "options",
    [["--calls-in", "x"], ["--fence"], ["--project"], ["--calls", "no name"], ["--calls", "a.b"]],
)
def test_wrong_use_is_refused(project, options):
    program(project, "pass")
    command = [sys.executable, "-m", "joulemap", "run", "-q", *options, "program.py"]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "joulemap: " in ran.stderr


def test_a_long_call_is_on_disk_while_it_lasts(project):
    program(project, "import fakelib\nfakelib.sleep(60)")
    command = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", "--calls", "fakelib"]
    slots = project / "r.joulemap" / "raw" / "calls.bin"
    with subprocess.Popen([*command, "program.py"], cwd=project) as running:
        try:
            wait_for(lambda: slots.exists() and any(slots.read_bytes()[:64]))
        finally:
            running.send_signal(signal.SIGTERM)
        running.wait(60)
    assert list(recorded_calls(project).outcome) == ["open"]


def test_devices_that_cannot_be_waited_for_keep_no_call_from_ending(tmp_path):
    project_in(tmp_path)
    source = """
        import fakelib
        from joulemap.calls import runtime
        def broken(): raise OSError("gone")
        runtime.fence = broken
        print(fakelib.add(1), fakelib.add(2))
    """
    program(tmp_path, source)
    done = metered(tmp_path, "--fence", "program.py")
    assert (done.stdout, done.returncode) == ("1 2\n", 0), done.stderr
    recording = Recording.open(tmp_path / "r.joulemap")
    assert [one for one in recording.info.warnings if "could not be waited for" in one] == [
        "Devices could not be waited for after a call: OSError."
    ]
    assert list(recording.calls().outcome) == ["returned", "returned"]
