"""Finding call expressions, and making sites of them without changing anything else."""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from joulemap.calls import sites
from joulemap.calls.owner import Owner
from joulemap.calls.rewrite import HOOK, rewrite
from joulemap.calls.sites import find

from .environment import uncovered

EVERYWHERE = """
@decorate(1)
class C(base(2), metaclass=meta(3)):
    attribute = body(4)

    @decorate(5)
    def method(self, default=defaulted(6), *args, key=defaulted(7), **kwargs):
        return returned(8)

    async def later(self):
        async with entered(9) as (x, y):
            await awaited(10)
        return [comprehended(11) async for i in iterated(12) if filtered(13)]

chained(14).then(15).then(16)
(lambda x=defaulted(17): inner(18))
f"{formatted(19)} {formatted(20):{width(21)}}"
if (walrus := condition(22)) and condition(23):
    del deleted(24).attribute
with entered(25), entered(26) as target(27).attribute:
    assert asserted(28), message(29)
nested(30, nested(31, *starred(32), **double(33)), key=nested(34))
(yielded(35)[subscript(36)])(37)
match subject(38):
    case Pattern(x=0) if guard(39):
        raise raised(40) from cause(41)
"""


def numbers(found: sites.Found) -> set[int]:
    first = [one.call.args[0] for one in found.sites if one.call.args]
    return {one.value for one in first if isinstance(one, ast.Constant)}


def test_a_call_is_found_wherever_it_stands():
    found = find(ast.parse(EVERYWHERE))
    calls = [node for node in ast.walk(ast.parse(EVERYWHERE)) if isinstance(node, ast.Call)]
    assert len(found.sites) == len(calls)
    assert numbers(found) == set(range(1, 42))
    assert not found.left


@pytest.mark.parametrize(
    ("source", "reason", "sites_too"),
    [
        ("def f(x: a(1)) -> b(2): c(3)", sites.ANNOTATION, {3}),
        ("x: a(1) = b(2)", sites.ANNOTATION, {2}),
        ("'text'(1)", sites.NEVER_CALLABLE, set()),
        ("class A(B):\n def f(self): super().g(2)", sites.BUILT_IN, {2}),
        ("print(1); a(len(2), int)", sites.BUILT_IN, set()),
        ("import numba as nb\n@nb.njit(1)\ndef f(): a(2)", sites.BYTECODE, {1}),
        ("from numba import jit as quick, njit\n@njit\ndef f(): a(2)", sites.BYTECODE, set()),
        ("layers.Lambda(lambda x: a(1))", sites.SAVED, set()),
    ],
)
def test_what_is_left_alone_has_a_reason(source, reason, sites_too):
    found = find(ast.parse(source))
    assert {one.reason for one in found.left} == {reason}
    assert numbers(found) == sites_too


def test_a_jit_that_is_not_numbas_is_a_site_like_any_other():
    assert numbers(find(ast.parse("import jax\n@jax.jit\ndef f(): a(1)"))) == {1}


def test_a_site_knows_the_function_around_it():
    found = find(ast.parse("class A:\n def f(self):\n  def g(): a(1)\n  return lambda: b(2)\nc(3)"))
    around = {one.call.args[0].value: one.function for one in found.sites}  # type: ignore[attr-defined]
    assert around == {1: "A.f.g", 2: "A.f.<lambda>", 3: "<module>"}


def run(code, name="__main__") -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {"__name__": name, "print": print})  # noqa: S102
    return out.getvalue()


@pytest.fixture
def log(monkeypatch):
    """A hook that notes what is called, and hands it back."""
    seen = []

    def hook(number, callee):
        seen.append(callee)
        return callee

    monkeypatch.setattr(builtins, HOOK, hook, raising=False)
    return seen


PROGRAM = '''
"""A docstring."""
from __future__ import annotations

trace = []
def note(x):
    trace.append(x)
    return x
def callee():
    note("callee")
    return lambda *a, **k: note(("call", a, k))
callee()(note(1), *note([2, 3]), key=note(4), **note({"more": 5}))

class Base:
    def __init__(self): self.made = "base"
class Derived(Base):
    def __init__(self):
        super().__init__()
        self.cell = __class__.__name__
    def __private(self): return "mangled"
    def show(self): return self.__private()
d = Derived()
def generator():
    got = yield note("first")
    yield note(got)
g = generator()
def annotated(x: note("never")): pass
print(__doc__, trace, d.made, d.cell, d.show(), next(g), g.send("second"))
print(sorted(locals()) == sorted(globals()))
print(annotated.__annotations__, f"{note(1) = }", eval("d.made"), (n := note(7)), [note(i) for i in range(2)])
'''


def test_everything_is_evaluated_once_and_in_pythons_order(log):
    plain = run(compile(PROGRAM, "p", "exec"))
    assert run(rewrite(PROGRAM, "p").code) == plain
    assert log


def test_a_source_that_is_wrong_is_wrong_as_ever():
    with pytest.raises(SyntaxError) as ours:
        rewrite("f(\n", "p")
    with pytest.raises(SyntaxError) as pythons:
        compile("f(\n", "p", "exec")
    assert ours.value.args == pythons.value.args


def test_a_chain_that_is_too_long_for_the_compiler_is_left_as_it_is(log):
    source = "x = ''" + ".strip()" * 900
    assert run(rewrite(source, "p").code) == ""


def test_the_standard_librarys_own_source_compiles():
    import asyncio.base_events
    import dataclasses
    import typing

    for module in (dataclasses, typing, asyncio.base_events):
        source = Path(module.__file__).read_bytes()
        assert len(rewrite(source, module.__file__).places) > 100


def test_instrumented_tests_of_the_standard_library_pass_as_before(tmp_path):
    """Real test modules that look hard at tracebacks, frames, sources and what profilers are told: the same
    verdicts with sites. ``scripts/calls_corpus.py`` runs many more."""
    names = ["test.test_contextlib", "test.test_generators", "test.test_super", "test.test_sys_setprofile"]
    if subprocess.run([sys.executable, "-c", "import test.test_super"], capture_output=True).returncode:
        pytest.skip("this Python comes without its tests")
    runner = textwrap.dedent("""
        import builtins, importlib.util, sys, tempfile, time, unittest
        from pathlib import Path
        from joulemap.calls import runtime
        from joulemap.calls.loader import SiteLoader
        names = sys.argv[2:]
        if sys.argv[1] == "sites":
            meter = runtime.CallMeter(Path(tempfile.mkdtemp()), ["contextlib", "unittest"], 1, print)
            SiteLoader(meter.places, print, packages=["test"]).start()
            meter.start()
        suite = unittest.defaultTestLoader.loadTestsFromNames(names)
        result = unittest.TextTestRunner(stream=open("/dev/null", "w")).run(suite)
        failed = sorted(str(one) for one, _ in result.failures + result.errors)
        print(result.testsRun, failed, len(result.skipped))
    """)
    (tmp_path / "runner.py").write_text(runner)
    said = [
        subprocess.run(
            [sys.executable, str(tmp_path / "runner.py"), how, *names],
            capture_output=True, text=True, cwd=tmp_path, check=True, env=uncovered(),
        ).stdout
        for how in ("plain", "sites")
    ]  # fmt: skip
    assert said[0] == said[1]
    assert int(said[0].split()[0]) > 50


@pytest.mark.parametrize(
    "source",
    [
        "from lib import *\nsum(1)",
        "from lib import sum\nsum(1)",
        "import sum\nsum(1)",
        "def f(sum): sum(1)",
        "sum = 3\nsum(1)",
        "def sum(x): pass\nsum(1)",
        "def f():\n global sum\nsum(1)",
        "try: pass\nexcept E as sum: sum(1)",
        "match x:\n case [*sum]: sum(1)",
        "match x:\n case {**sum}: sum(1)",
        "for sum in x: sum(1)",
        "[sum(1) for sum in x]",
        "lambda sum: sum(1)",
        "with x as sum: sum(1)",
        "(sum := x)\nsum(1)",
    ],
)
def test_a_built_in_name_that_may_mean_something_else_is_a_site(source):
    assert numbers(find(ast.parse(source))) == {1}


def test_what_a_program_makes_of_a_functions_module_is_no_trouble():
    def function():
        """Given a module that cannot be looked up."""

    function.__module__ = {}  # type: ignore[assignment]
    made = type(function)(function.__code__, {"__name__": {}})
    assert not Owner(["lib"]).owns(function)
    assert not Owner(["lib"]).owns(made)
    assert Owner(["lib"]).owns(type(function)(function.__code__, {"__name__": "lib.part"}))
