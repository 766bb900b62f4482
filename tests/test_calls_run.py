"""``joulemap run --calls``: a program's calls of a library are recorded, and the program does not notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from joulemap.calls.table import Calls
from joulemap.recording import Recording

from .test_run import IDENTITY, plainly, program

LIBRARY = """
    import logging, sys, warnings

    def add(a, b=0): return a + b
    def raises(error): raise error
    def warns(level): warnings.warn("careful", stacklevel=level)
    def caller(): return sys._getframe(1).f_globals["__name__"], sys._getframe(1).f_globals["__file__"]
    def counted(n): yield from range(n)
    async def later(x): return x
    def log(): logging.getLogger().warning("said", stacklevel=2)
    def locals_of_caller(): return sorted(sys._getframe(1).f_locals)
    def place(): return place_of(sys._getframe)
    def place_of(get): frame = get(2); return frame.f_code.co_name, frame.f_lineno, frame.f_code.co_filename
    def apply(function, *args): return function(*args)
    def sleep(seconds): import time; time.sleep(seconds)
    def decorate(text):
        def decorator(function): function.text = text; return function
        return decorator

    class Thing:
        def __init__(self, name="thing"): self.name = name
        def same(self, *args, **kwargs): return self
        def raises(self): return raises(ValueError(self.name))
        def warns(self, level): return warnings.warn(self.name, stacklevel=level)
        def __call__(self, x): return x * 2
        def __enter__(self): return self
        def __exit__(self, *error): return False

    class Array:
        def __init__(self, shape): self.shape, self.dtype, self.nbytes = shape, "float32", 4 * shape[0]
        shape = dtype = nbytes = None
        def sum(self): return 0
"""


def metered(folder: Path, *arguments: str | Path, calls: str = "fakelib", **options: Any):
    """Run it under ``joulemap run --calls``."""
    command = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", "--overwrite"]
    return subprocess.run(
        [*command, "--calls", calls, *map(str, arguments)],
        **{"cwd": folder, "capture_output": True, "text": True, "timeout": 120, **options},
    )


def same(folder: Path, *arguments: str | Path, calls: str = "fakelib", **options: Any) -> Calls:
    """Run it both ways: output, errors and exit code must not differ. The calls are what was recorded."""
    plain, ours = plainly(folder, *arguments, **options), metered(folder, *arguments, calls=calls, **options)
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode
    return recorded_calls(folder)


def recorded_calls(folder: Path) -> Calls:
    recording = Recording.open(folder / "r.joulemap")
    assert not [one for one in recording.info.warnings if "call" in one.lower() and "ended" not in one]
    calls = recording.calls()
    assert calls is not None
    return calls


def texts(calls: Calls) -> list[str]:
    """The source of what was called, call by call."""
    return list(calls.sites.text[calls.sites.rows(calls.site)])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    program(tmp_path, LIBRARY, "fakelib.py")
    return tmp_path


def test_a_program_is_the_same_from_inside(project):
    program(project, IDENTITY)
    calls = same(project, "program.py", "one", "--two", calls="json")
    assert list(calls.api) == ["json.dumps"]


def test_a_module_is_the_same_from_inside(project):
    program(project, IDENTITY, "package/__main__.py")
    program(project, "", "package/__init__.py")
    calls = same(project, "-m", "package", "one", calls="json")
    assert list(calls.api) == ["json.dumps"]
    assert Path(next(iter(calls.sites.file))).name == "__main__.py"


def test_a_script_elsewhere_finds_its_own_modules(project):
    program(project, "import sys, helper\nprint(sys.path[0], helper.total())", "deep/script.py")
    program(project, "import fakelib\ndef total(): return fakelib.add(1, 2)", "deep/helper.py")
    (project / "link.py").symlink_to("deep/script.py")
    for script in ("deep/script.py", "link.py", project / "deep" / "script.py"):
        environment = {**os.environ, "PYTHONPATH": str(project)}
        calls = same(project, script, env=environment)
        assert texts(calls) == ["fakelib.add"]


ERRORS = """
    import fakelib, traceback, warnings
    from fakelib import Thing as T
    warnings.simplefilter("always")

    def show(function):
        try:
            function()
        except BaseException as error:
            traceback.print_exc()
            at = error.__traceback__
            while at:
                print(at.tb_frame.f_code.co_name, at.tb_lineno)
                at = at.tb_next

    def plain(): return fakelib.raises(KeyError(1))
    def chain(): return (T()
        .same()
        .same(1,
              2)
        .raises())
    def argument():
        T().same(
            fakelib.raises(
                OSError(2)), 3)
    def module(): return (fakelib
        .raises(ZeroDivisionError()))
    def starred(): return T().same(*[1], **{"x": 2}).raises(
        )
    def missing(): return fakelib.nothing(1)
    def wrong(): return T(1, 2, 3)
    def twice():
        try: fakelib.raises(ValueError(1))
        except ValueError: fakelib.raises(ValueError(2))
    def caused():
        try: fakelib.raises(ValueError(1))
        except ValueError as error: raise TypeError(3) from error
    def comprehended(): return [fakelib.raises(ValueError(x)) for x in range(3)]
    def formatted(): return f"{fakelib.raises(ValueError(4))}"
    def within():
        with T() as thing: thing.raises()
    def through(): return fakelib.apply(lambda: fakelib.apply(plain))
    def stopped(): return next(iter([]), fakelib.raises(StopIteration()))
    for one in (plain, chain, argument, module, starred, missing, wrong, twice, caused, comprehended,
                formatted, within, through, stopped):
        show(one)

    def here(): fakelib.warns(2)
    def there(): (fakelib
        .Thing("warned")
        .warns(2))
    here(); there()
    fakelib.log()
    print(fakelib.caller())
    def variables(a, b=2): return fakelib.locals_of_caller(), (fakelib
        .place())
    print(variables(1))
    fakelib.raises(SystemExit("the end"))
"""


def test_errors_warnings_and_logs_point_where_they_did(project):
    program(project, ERRORS)
    calls = same(project, "program.py")
    assert "raised" in list(calls.outcome)
    assert list(calls.outcome).count("open") == 0


def test_an_error_nobody_catches_ends_the_program_as_ever(project):
    program(project, "import fakelib, helper\nhelper.go()")
    program(project, "import fakelib\ndef go():\n    fakelib.raises(ValueError('unseen'))", "helper.py")
    assert list(same(project, "program.py").outcome) == ["raised"]
    program(project, "import helper")
    program(project, "import fakelib\nfakelib.raises(ValueError('while importing'))", "helper.py")
    assert list(same(project, "program.py").outcome) == ["raised"]
    program(project, "import fakelib\nprint(fakelib.add(1)\n")
    assert plainly(project, "program.py").stderr == metered(project, "program.py").stderr  # no such syntax


def test_warnings_of_c_point_to_the_programs_line(tmp_path):
    program(tmp_path, "import numpy as np\n\n\nx = np.divide(np.ones(3),\n    np.zeros(3))\nprint(x)")
    plain = same(tmp_path, "program.py", calls="numpy")
    assert sorted(plain.api) == ["numpy.divide", "numpy.ones", "numpy.zeros"]


WAYS = """
    import asyncio, doctest, functools, inspect, pickle, threading
    import fakelib
    from fakelib import *
    from fakelib import add as plus
    Alias = fakelib.Thing

    class Mine(fakelib.Thing):
        def __init__(self):
            super().__init__("mine")
        def own(self): return 1
    class Overridden(fakelib.Thing):
        def __call__(self, x): return -x

    def given(function, thing): return function(1), thing.same()
    def shadowed(add): return add(5)
    def documented():
        '''
        >>> documented()
        3
        '''
        return fakelib.add(1, 2)
    async def main():
        return await fakelib.later(fakelib.add(1)) + sum(await asyncio.gather(one(1), one(2)))
    async def one(x): return fakelib.apply(plus, await fakelib.later(x))

    print(given(plus, Alias())[0], shadowed(lambda x: x), shadowed(plus), getattr(fakelib, "add")(1))
    m = Mine()
    print(m(3), m.own(), m.same().name, Overridden()(3), functools.partial(plus, 1)(2))
    print(asyncio.run(main()), list(fakelib.counted(2)))
    print(inspect.getsource(documented), inspect.signature(given), doctest.testmod())
    print(pickle.loads(pickle.dumps(m)).name, pickle.loads(pickle.dumps(documented)) is documented)
    threads = [threading.Thread(target=lambda: plus(1)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    @fakelib.decorate("text")
    def decorated(default=plus(1, 1)): return default
    print(decorated.text, decorated(), fakelib.apply(lambda: plus(1)))
"""


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


def test_children_do_not_write_among_their_parents_calls(project):
    program(
        project,
        """
        import fakelib, multiprocessing, os, sys
        def work(n):
            fakelib.add(n); return n
        def in_child():
            pid = os.fork()
            if not pid:
                fakelib.add(1); return "child"
            os.waitpid(pid, 0)
            return "parent"
        if __name__ == "__main__":
            if fakelib.apply(in_child) == "child":
                os._exit(0)
            for way in ("fork", "spawn"):
                with multiprocessing.get_context(way).Pool(1) as pool:
                    print(pool.map(work, [1, 2]))
            fakelib.add(9)
    """,
    )
    calls = same(project, "program.py")
    assert list(calls.api) == ["fakelib.apply", "fakelib.add"]
    assert list(calls.outcome) == ["returned", "returned"]


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


def test_no_bytecode_of_ours_stays_behind(project):
    program(project, "import helper\nprint(helper.go())")
    program(project, "import fakelib\ndef go(): return fakelib.add(1)", "helper.py")
    metered(project, "program.py")
    assert not list(project.rglob("helper*.pyc"))
    assert plainly(project, "program.py").stdout == "1\n"


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


def test_functions_that_are_sent_elsewhere_by_value_work_there(project):
    """As joblib and Ray send the functions of a script: their code, and the names that it uses."""
    program(
        project,
        """
        import fakelib, marshal, subprocess, sys, types, textwrap
        import cloudpickle  # one of ours, which does what the real one does
        def work(n): return fakelib.add(n, 1)
        print(cloudpickle.run_elsewhere(work, 2))
    """,
    )
    program(
        project,
        """
        import marshal, pickle, subprocess, sys
        def run_elsewhere(function, argument):
            known, used = function.__globals__, function.__code__.co_names
            names = {n: known[n] for n in used if n in known}
            modules = {n: v.__name__ for n, v in names.items() if type(v).__name__ == "module"}
            others = pickle.dumps({n: v for n, v in names.items() if n not in modules})
            sent = marshal.dumps((function.__code__, modules, others, argument))
            code = "import sys, cloudpickle; cloudpickle.receive(sys.stdin.buffer.read())"
            return subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True).stdout
        def receive(sent):
            code, modules, others, argument = marshal.loads(sent)
            names = {**pickle.loads(others), **{n: __import__(m) for n, m in modules.items()}}
            print(type(lambda: 0)(code, names)(argument))
    """,
        "cloudpickle.py",
    )
    environment = {**os.environ, "PYTHONPATH": str(project)}
    assert not len(same(project, "program.py", env=environment))
    assert metered(project, "program.py", env=environment).stdout == "b'3\\n'\n"


def test_a_long_call_is_on_disk_while_it_lasts(project):
    program(project, "import fakelib\nfakelib.sleep(60)")
    command = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", "--calls", "fakelib"]
    running = subprocess.Popen([*command, "program.py"], cwd=project)
    slots = project / "r.joulemap" / "raw" / "calls.bin"
    deadline_s = time.monotonic() + 60
    while not (slots.exists() and any(slots.read_bytes()[:64])) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert any(slots.read_bytes()[:64])
    running.send_signal(signal.SIGTERM)
    running.wait(60)
    assert list(recorded_calls(project).outcome) == ["open"]
