"""Steps of JAX programs that nobody marked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from joulemap.frameworks.jax.steps import StepFinder
from joulemap.frameworks.watch import Watch
from joulemap.recorder.budget import Plan
from joulemap.recorder.journal import Journal, read_journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.steps import StepClock
from tests.jax_live import adapted, attached
from tests.tensorflow_live import Heard

jax = pytest.importorskip("jax", reason="needs JAX")
jnp = jax.numpy
X = jnp.arange(6.0)


def double() -> Any:
    @jax.jit
    def double(x: Any) -> Any:
        return 2 * x

    return double


def test_steps_lie_between_the_returns_of_calls(tmp_path: Path) -> None:
    function = double()
    with attached(tmp_path) as (_, heard):
        for _ in range(5):
            function(X)
        assert heard.steps[:-1] == ["double"] * 4  # the last one is open: whose it is, the next call tells
        assert heard.depth == 1
        assert heard.compiled_steps == []


def test_a_call_that_compiles_is_no_example(tmp_path: Path) -> None:
    function = double()
    with attached(tmp_path) as (_, heard):
        function(X)
        function(X)
        function(jnp.ones((2, 3)))
        function(X)
        assert heard.compiled_steps == [2]


def test_functions_that_take_turns_are_foreseen(tmp_path: Path) -> None:
    begun = []

    class Hearing(Heard):
        def begin(self, label: str) -> None:
            begun.append(label)
            super().begin(label)

    finder = StepFinder(Watch("JAX"), lambda: False, lambda _: None)
    heard = finder._watch.steps = Hearing()
    for _ in range(3):
        finder.called("one", None)
        finder.called("two", None)
    assert heard.steps[:-1] == ["two", "one", "two", "one", "two"]
    assert begun[-3:] == ["two", "one", "one"] or begun[-2:] == ["two", "one"]


def test_operations_outside_of_jit_are_no_steps(tmp_path: Path) -> None:
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            jnp.where(X > 1, jnp.sin(X), 0) + 1
            jax.random.split(jax.random.key(0))
        assert heard.steps == []


def test_a_function_called_by_another_is_no_step(tmp_path: Path) -> None:
    inner = double()

    @jax.jit
    def outer(x: Any) -> Any:
        return inner(x) + inner(x)

    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            outer(X)
        assert heard.steps[:-1] == ["outer"] * 2


def test_functions_with_effects_and_compiled_ones_are_seen_too(tmp_path: Path) -> None:
    @jax.jit
    def tells(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x)
        return x + 1

    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            tells(X)
        assert heard.steps[:-1] == ["tells"] * 2
        jax.effects_barrier()
    with attached(tmp_path) as (_, heard):
        compiled = double().lower(X).compile()
        for _ in range(4):
            compiled(X)
        assert heard.steps[:-1] == ["double"] * (len(heard.steps) - 1)
        assert len(heard.steps) > 2


def test_steps_that_the_program_marks_are_taken_as_they_are(tmp_path: Path) -> None:
    function = double()
    with attached(tmp_path) as (_, heard):
        function(X)
        function(X)
        for number in range(3):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                function(X)
                function(X)
        function(X)
        assert heard.depth == 0
        assert heard.steps[-3:] == ["train"] * 3


def test_steps_marked_for_us_stay_whole(tmp_path: Path) -> None:
    function = double()
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            heard.begin("mine")
            function(X)
            function(X)
            heard.end()
        assert heard.steps == ["mine"] * 3


def test_a_pause_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = StepFinder(Watch("JAX"), lambda: False, lambda _: None)
    heard = finder._watch.steps = Heard()
    now_s = 0.0
    monkeypatch.setattr("joulemap.frameworks.jax.steps.time.monotonic", lambda: now_s)
    for length_s in (0.01, 0.01, 0.01, 0.3, 60.0, 0.01):
        finder.called("train", None)
        now_s += length_s
    finder.called("train", None)
    assert heard.steps == ["train"] * 6  # five, and the open one; 0.3 s may be what was called ahead


def test_waiting_for_what_was_called_ahead_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = StepFinder(Watch("JAX"), lambda: False, lambda _: None)
    heard = finder._watch.steps = Heard()
    now_s = 0.0
    monkeypatch.setattr("joulemap.frameworks.jax.steps.time.monotonic", lambda: now_s)
    for number in range(100):
        finder.called("train", None)
        now_s += 0.001 if (number + 1) % 10 else 20.0
    finder.called("train", None)
    assert len(heard.steps) == 100  # with the open one: only the first of ten long ones was taken for a pause


def test_what_is_waited_for_in_a_session_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, waits = 0.0, False

    class Opening(Heard):
        def begin(self, label: str) -> None:
            nonlocal now_s
            now_s += 1.5 * waits  # what was called before is computed to its end
            super().begin(label)

    def wait_for(_: object) -> None:
        nonlocal now_s
        now_s += 2.0

    finder = StepFinder(Watch("JAX"), lambda: waits, wait_for)
    heard = finder._watch.steps = Opening()
    monkeypatch.setattr("joulemap.frameworks.jax.steps.time.monotonic", lambda: now_s)
    for number in range(8):
        waits = number in (5, 6)
        finder.called("train", None)
        now_s += 0.001
    assert len(heard.steps) == 8  # seven, and the open one


def test_looking_for_nans_goes_on(tmp_path: Path) -> None:
    function = double()
    with attached(tmp_path) as (_, heard):
        with jax.debug_nans(True):
            function(X)
            function(X)
            with pytest.raises(FloatingPointError):
                function(jnp.full(6, jnp.nan))
        function(X)
        function(X)
        assert heard.steps[-2:] == ["double"] * 2


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    from flax import nnx
    from jax._src import api, pjit, profiler
    from jax._src.interpreters import pxla

    hook = api._post_hook_state

    def state() -> list[Any]:
        return [
            api._post_hook_state,
            hook.get_global(),
            [vars(pjit).get(name) for name in ("_run_python_pjit", "_python_pjit_helper")],
            pxla.MeshExecutable.create_cpp_call,
            vars(nnx.Linear)["__call__"],
            vars(nnx.Module).get("__init_subclass__"),
            dict(vars(jax.profiler.StepTraceAnnotation)),
            profiler._profiler.ProfilerSession,
        ]

    before = state()
    with attached(tmp_path):
        assert state() != before
        double()(X)
    assert state() == before


def test_steps_are_expected_while_a_function_is_compiled(tmp_path: Path) -> None:
    expected: list[bool] = []
    x = jnp.ones((3, 5))
    with attached(tmp_path) as (adapter, _):

        def lowered(event: str, _: float, **__: Any) -> None:
            if event.startswith("/jax/core/compile/jaxpr_to_mlir_module"):
                expected.append(adapter.expects_steps)

        jax.monitoring.register_event_duration_secs_listener(lowered)
        try:
            double()(x)
            assert not adapter.expects_steps
            jnp.arctan(x)  # a function of JAX's own
        finally:
            jax.monitoring.unregister_event_duration_listener(lowered)
    assert expected == [True, False]


def test_of_the_last_step_nobody_says_that_it_ends(tmp_path: Path) -> None:
    function = double()
    with attached(tmp_path) as (adapter, _):
        assert not adapter.open_ended
        function(X)
        assert adapter.open_ended
        with jax.profiler.StepTraceAnnotation("marked"):
            assert not adapter.open_ended
            function(X)
        assert not adapter.open_ended


def test_hooks_may_be_put_in_and_out_again_and_again(tmp_path: Path) -> None:
    from jax._src import traceback_util

    function = double()
    function(X)  # JAX runs it without Python from now on
    noticed, kept = [], []
    for _ in range(4):
        with attached(tmp_path) as (_, heard):
            for _ in range(5):
                function(X)
            noticed.append(heard.steps[:-1])
            kept.append(len(traceback_util._exclude_paths))
        function(X)
    assert noticed == [["double"] * 4] * 4
    assert len(set(kept)) == 1


def test_results_are_waited_for_in_sessions_only(tmp_path: Path) -> None:
    waits, waited = False, []
    finder = StepFinder(Watch("JAX"), lambda: waits, waited.append)
    finder.called("train", 1)
    waits = True
    finder.called("train", 2)
    assert waited == [2]


def test_threads_have_steps_of_their_own(tmp_path: Path) -> None:
    function = double()
    function(X)
    with attached(tmp_path) as (_, heard):
        thread = threading.Thread(target=lambda: [function(X) for _ in range(3)])
        thread.start()
        thread.join()
        assert heard.steps[:-1] == ["double"] * 2


def made_by(action: Callable[[], object]) -> tuple[list[str], list[str]]:
    """The functions of Python that were called in an action, and those of C: by module and name, by name."""
    python: list[str] = []
    c: list[str] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            python.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")
        elif event == "c_call":
            c.append(called.__name__)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return python[1:], c[:-1]  # without the action itself, and what ends this


def clocked(folder: Path, now_ns: Callable[[], int] = lambda: 0) -> StepClock:
    """The recorder, metering only, in a time of its own."""
    journal = Journal(folder)
    return StepClock(Plan(overhead=0.0), Sessions(folder, journal, now_ns), journal, now_ns)


def test_between_sessions_a_call_takes_little_of_ours_and_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joulemap.frameworks.jax.steps.time.monotonic", lambda: 0.0)
    function, leaves = double(), {str(number): X for number in range(400)}
    add = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))
    for action, most in ((lambda: function(X), 6), (lambda: add(leaves), 6), (lambda: X + X, 1)):
        clock = clocked(tmp_path)
        with adapted(tmp_path, clock):
            for _ in range(3):  # the first one may compile, and the second one opens a step
                action()
            python, c = made_by(action)
        ours = [name for name in python if name.startswith("joulemap.")]
        assert 1 <= len(ours) <= most, ours
        assert not [name for name in python if name.startswith("jax._src.pjit")]  # JAX runs it in C++
        assert not {"block_until_ready", "is_ready", "live_arrays", "acquire", "write", "encode"} & {*c}
        clock._journal.close()


def test_every_step_is_written_down_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [0]
    monkeypatch.setattr("joulemap.frameworks.jax.steps.time.monotonic", lambda: now_ns[0] / 1e9)
    function, other = double(), jax.jit(lambda x: x + 1)
    clock = clocked(tmp_path, lambda: now_ns[0])
    with adapted(tmp_path, clock):
        for number in range(40):
            (function if number % 2 else other)(X)
            now_ns[0] += 10_000_000 + number
    clock.switch_off()
    clock._journal.close()
    steps = [content for what, content in read_journal(tmp_path) if what == "step"]
    assert [label for _, _, label, _ in steps[1:]] == ["<lambda>", "double"] * 19  # one of the first compiles
    assert all(after[0] == before[1] for before, after in pairwise(steps))
    assert [end - start for start, end, _, _ in steps] == [10_000_000 + number for number in range(39)]
