"""Sites and what stands between them and the library are not seen: on stacks, by profilers, by tracers, and
by how deep a program may go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from joulemap.calls.hidden import HIDES, hidden, hide
from joulemap.calls.room import Room

from .calls_programs import project_in, same
from .environment import uncovered
from .test_run import program

pytestmark = pytest.mark.skipif(not HIDES, reason="this Python shows every frame")

LOOKING = """
    import inspect, logging, sys, traceback, warnings

    def warn(level): warnings.warn(f"level {level}", stacklevel=level)
    def log(level): logging.getLogger("seen").warning("level", stacklevel=level)
    def function(depth):
        try: return sys._getframe(depth).f_code.co_name
        except ValueError as error: return str(error)
    def stack(): return [(one.function, one.lineno, one.code_context) for one in inspect.stack()]
    def printed(): traceback.print_stack(file=sys.stdout)
    def back(): frame = inspect.currentframe().f_back; return frame.f_code.co_name, sorted(frame.f_locals)
    def assigned(name, value): sys._getframe(1).f_globals[name] = value
    def fails(): frame = sys._getframe(); raise KeyError(frame)
    def with_pythons_own(level):
        module, sys.modules["_warnings"] = sys.modules.pop("warnings"), None
        import warnings as pythons
        sys.modules["warnings"], _ = module, sys.modules.pop("_warnings")
        pythons.simplefilter("always")
        pythons.showwarning = lambda *told: print(told[0], told[3])
        pythons.warn(f"level {level}", stacklevel=level)
"""

STACKS = """
    import collections, dataclasses, enum, logging, sys, traceback, typing, warnings
    import looking
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, kind, file, line, *more: print(message, line)
    logging.basicConfig(format="%(funcName)s %(lineno)d %(message)s", stream=sys.stdout)

    def inner(what, *args): return what(*args)
    def middle(what, *args):
        result = inner(
            what, *args)
        return result
    def outer(what, *args): return middle(what, *args)

    for level in range(1, 7):
        outer(looking.warn, level)
        outer(looking.with_pythons_own, level)
        outer(looking.log, level)
        print(outer(looking.function, level))
    print(outer(looking.stack))
    outer(looking.printed)
    print(outer(looking.back))
    looking.assigned("given", 3)
    print(given)
    try: outer(looking.fails)
    except KeyError as error:
        print([(at.f_code.co_name, line) for at, line in traceback.walk_tb(error.__traceback__)])
        print([(at.f_code.co_name, line) for at, line in traceback.walk_stack(error.args[0])])
    Pair = collections.namedtuple("Pair", "a b")
    T, N = typing.TypeVar("T"), typing.NewType("N", int)
    Colour, Made = enum.Enum("Colour", "red"), dataclasses.make_dataclass("Made", ["x"])
    Typed = typing.NamedTuple("Typed", [("x", int)])
    print([one.__module__ for one in (Pair, T, N, Colour, Made, Typed)])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    program(tmp_path, LOOKING, "looking.py")
    return project_in(tmp_path)


def test_who_looks_at_the_stack_finds_what_was_there_without_sites(project):
    program(project, STACKS)
    calls = same(project, "program.py", calls="looking,collections,dataclasses,enum,typing,logging,traceback")
    assert {"looking.warn", "looking.back", "typing.TypeVar", "collections.namedtuple"} <= set(calls.api)


WATCHED = """
    import fakelib, functools, io, json, math, pdb, profile, sys, threading, trace

    def own(x): return fakelib.add(x, 1)
    def work():
        own(1)
        [fakelib.Thing().same(), fakelib.add(2)]
        fakelib.apply(own,
            2)
        try: fakelib.raises(KeyError(1))
        except KeyError: pass
        math.sqrt(4.0), fakelib.apply(math.sqrt, 9.0)
        return len(json.dumps([own(3)]))

    class Handler:
        def __init__(self): self.told = []
        def __call__(self, frame, event, arg):
            back = frame.f_back and frame.f_back.f_code.co_name
            c_function = getattr(arg, "__name__", "") if event.startswith("c_") else ""
            self.told.append((event, frame.f_code.co_name, frame.f_lineno, back, c_function))
            return self
        def bound(self, frame, event, arg): return self(frame, event, arg)

    for set_it, get_it in ((sys.setprofile, sys.getprofile), (sys.settrace, sys.gettrace)):
        for handler in (Handler(), Handler().bound, functools.partial(Handler())):
            set_it(handler); installed = get_it(); work(); set_it(None)
            told = getattr(handler, "__self__", getattr(handler, "func", handler)).told
            print(installed is handler, get_it(), *told, sep="\\n")
        for wrong in ((), (1, 2), (lambda: 0,)):
            try: set_it(*wrong); work()
            except TypeError as error: print(error, error.__traceback__.tb_lineno)
            set_it(None)

    for set_all in (threading.setprofile, threading.settrace):
        handler = Handler()
        set_all(handler)
        thread = threading.Thread(target=work)
        thread.start(); thread.join()
        set_all(None)
        print(*handler.told, sep="\\n")

    def broken(frame, event, arg): raise OSError("of the handler")
    for set_it in (sys.setprofile, sys.settrace):
        try: set_it(broken); own(1)
        except OSError as error:
            at, names = error.__traceback__, []
            while at: names.append((at.tb_frame.f_code.co_name, at.tb_lineno)); at = at.tb_next
            print(names)
        finally: set_it(None)

    counted = trace.Trace(count=1, trace=0)
    counted.runfunc(work)
    print(sorted((line, n) for (file, line), n in counted.results().counts.items() if file == __file__))
    simple = profile.Profile()
    simple.runcall(work)
    simple.create_stats()
    print(sorted((name, calls) for (_, line, name), (calls, *_) in simple.stats.items() if line))
    steps = io.StringIO("s w s s s u r s w c ".replace(" ", "\\n"))
    pdb.Pdb(stdin=steps, stdout=sys.stdout, nosigint=True, readrc=False).runcall(work)
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="there a little is to be seen: docs/calls.md says what"
)
def test_a_program_that_watches_itself_is_not_told_of_sites(project):
    program(project, WATCHED)
    calls = same(project, "program.py", calls="fakelib,math", env=uncovered())
    made = list(calls.api)
    assert made.count("fakelib.raises") == made.count("math.sqrt") > 9


LETS_GO = """
import gc, math, weakref
import fakelib

class Odd(type):
    __hash__ = None

def classes():
    class Own:
        def method(self): return 1
    class Strange(metaclass=Odd):
        pass
    for one in (Own(), Strange()):
        fakelib.apply(lambda: weakref.ref(one))
    Own().method()
    return weakref.ref(Own), weakref.ref(Strange)

seen = [one for _ in range(3) for one in classes()]
gc.collect()
print("alive:", sum(one() is not None for one in seen))
"""


def test_classes_whose_objects_were_given_to_the_library_go_as_they_did(project):
    """What is known of them is known by their identity: it keeps none alive, and asks for no hash."""
    made = same(project, program(project, LETS_GO), calls="fakelib,weakref")
    assert len(made) > 9


def test_a_hidden_function_does_what_it_did_and_is_on_no_stack():
    @hide
    def between(function, *args, factor=2):
        total = 0
        try:
            for one in function(*args):
                total += factor * one
        except KeyError as error:
            total = error.args[0]
        return total

    def stack():
        frame, names = sys._getframe(), []
        while frame is not None and len(names) < 3:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        seen.append(names)
        return 1, 2

    seen: list[list[str]] = []
    assert between(stack) == 6
    assert seen[0][0] == "stack"
    assert "between" not in seen[0]
    assert between(range, 3, factor=3) == 9
    assert between({}.pop, 5) == 5
    with pytest.raises(TypeError) as error:
        between(len, 3)
    assert "between" not in [one.name for one in error.traceback]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="no jump is needed")
def test_a_function_that_is_too_long_to_be_hidden_is_refused():
    code = compile("def long(x):\n" + " x = x + 1\n" * 300, "long.py", "exec")
    with pytest.raises(ValueError, match="long is too long"):
        hidden(next(one for one in code.co_consts if isinstance(one, CodeType)))


@pytest.fixture
def room() -> Iterator[Room]:
    set_to, before, room = sys.setrecursionlimit, sys.getrecursionlimit(), Room()
    yield room
    room.stop()
    set_to(before)


def test_room_is_made_for_one_thread_at_a_time_and_given_back(room):
    read, set_to = sys.getrecursionlimit, sys.setrecursionlimit
    before, added = read(), []
    for thread, frames in ((1, 9), (1, 10), (2, 20), (1, 9)):
        room.make(thread, frames)
        added.append(read() - before)
        assert sys.getrecursionlimit() == before
    room.leave(2)
    assert added == [9, 10, 10, 9]
    assert read() == before + 9
    room.leave(1)
    assert read() == before
    assert (sys.getrecursionlimit, sys.setrecursionlimit) == (read, set_to)
    room.make(2, 9)
    set_to(before + 100)  # by what does not ask ``sys`` for it
    room.stop()
    assert read() == before + 100
