"""``joulemap run --calls``: the program does not notice that its calls are recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joulemap.recording import Recording

from .calls_programs import metered, project_in, same, texts
from .environment import uncovered
from .test_run import IDENTITY, plainly, program


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return project_in(tmp_path)


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


def test_no_bytecode_of_ours_stays_behind(project):
    program(project, "import helper\nprint(helper.go())")
    program(project, "import fakelib\ndef go(): return fakelib.add(1)", "helper.py")
    metered(project, "program.py")
    assert not list(project.rglob("helper*.pyc"))
    assert plainly(project, "program.py").stdout == "1\n"


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


RECURSION = """
    import functools, itertools, sys, traceback
    import fakelib

    deepest = 0
    def reached(n):
        global deepest
        deepest = n
    def function(n): reached(n); function(n + 1)
    class Own:
        def method(self, n): reached(n); self.method(n + 1)
        def __init__(self, n=0):
            if n: reached(n); Own(n + 1)
        def __call__(self, n): reached(n); self(n + 1)
    def generator(n): reached(n); yield from generator(n + 1)
    def by_c(n): reached(n); functools.reduce(lambda _, m: by_c(m + 1), [0, n])
    def by_partial(n): reached(n); functools.partial(by_partial)(n + 1)
    def by_new_function(n): reached(n); (lambda m: by_new_function(m))(n + 1)
    def uses_c(n): reached(n); words = []; words.append(n); words.sort(); uses_c(n + 1)
    def by_library(n): reached(n); fakelib.apply(by_library, n + 1)
    def by_its_class(n): reached(n); Called(by_its_class)(n + 1)
    class Called(fakelib.Thing):
        def __call__(self, n): return fakelib.apply(fakelib.apply, fakelib.apply, self.name, n)
    def by_much_of_it(n): reached(n); fakelib.deeply(5, by_much_of_it, n + 1)
    def with_arrays(n): reached(n); fakelib.apply(lambda a, b: with_arrays(n + 1), [fakelib.Array((3,))], {})

    ways = {
        "library": [by_library, by_its_class, by_much_of_it, with_arrays],
        "own": [function, Own().method, Own, Own(), lambda n: list(generator(n)), by_c, by_partial,
                by_new_function, uses_c],
    }
    for start, limit in itertools.product(ways[sys.argv[1]], (150, 151, 152)):
        sys.setrecursionlimit(limit)
        try:
            start(1)
        except RecursionError as error:
            print(deepest, error, traceback.format_exc()[-300:] if sys.argv[1] == "own" else "")
    def sets(limit):
        read = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
        return read, sys.getrecursionlimit()
    print(fakelib.apply(fakelib.apply, lambda: fakelib.apply(sets, 200)), sys.getrecursionlimit())
    for wrong in ((), ("many",), (-1,)):
        try: fakelib.apply(lambda: fakelib.apply(lambda: sys.setrecursionlimit(*wrong)))
        except (TypeError, ValueError) as error: print(error)
    print(fakelib.add(1, 2))
"""


def test_recursion_ends_where_it_did(project):
    program(project, RECURSION)
    ended = same(project, "program.py", "own", env=uncovered())  # a tracer of lines takes frames too
    assert set(ended.api) == {"fakelib.apply", "fakelib.add"}


def test_recursion_through_the_library_ends_in_the_round_it_did(project):
    program(project, RECURSION)
    plain, ours = (run(project, "program.py", "library", env=uncovered()) for run in (plainly, metered))
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    warnings = Recording.open(project / "r.joulemap").info.warnings
    assert [one for one in warnings if "recursion limit" in one]
