"""Steps that torch's functions note themselves are those that would have been found otherwise."""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.frameworks.torch.given import counting
from joulemap.frameworks.torch.graft import grafted
from joulemap.frameworks.torch.quick import Quick
from joulemap.recorder.steps import StepClock
from tests.torch_recorded import Model, Silent, recording
from tests.torch_training import ACTIONS as WAYS_TO_TRAIN
from tests.torch_training import Training

torch = pytest.importorskip("torch", reason="needs PyTorch")


def heard_in(actions: list[str], kind: type[StepClock]) -> list[object]:
    with recording(kind) as (program, written):
        for action in actions:
            program.actions()[action]()
        return [*written(), program.seen]


with recording(Silent) as (_program, _):
    ACTIONS = sorted(_program.actions())


def test_a_call_like_the_last_one_is_noted_by_the_function_itself() -> None:
    with recording(StepClock) as (program, written):
        lane = program.adapter._finder.quick
        lengths = []
        for _ in range(5):
            program.infers()
            lengths.append(len(lane.times))
        assert lengths == [0, 1, 2, 3, 4]
        program.infers(Model())  # of the same kind
        assert len(lane.times) == 4
        program.infers(program.other)
        assert written() == [("inference", 0)] * 6 + [("inference 2", 0)]


@pytest.mark.parametrize("x", [None, [torch.ones(2)]])
def test_a_call_without_a_tensor_is_like_another_one_without(x: Any) -> None:
    with recording(StepClock) as (program, _), torch.no_grad():
        model, lane, lengths = torch.nn.Identity(), program.adapter._finder.quick, []
        for given_then in (x, x, x, torch.ones(2), x):
            model(given_then)
            lengths.append(len(lane.times))
        assert lengths == [0, 1, 2, 2, 2]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 3)), max_size=6))
def test_steps_in_a_lane_are_those_that_would_have_been_found(runs: list[tuple[str, int]]) -> None:
    actions = [
        "infers",
        "infers",
        *(action for action, times in runs for _ in range(times)),
        "infers",
        "infers",
    ]
    assert heard_in(actions, StepClock) == heard_in(actions, Silent)


USUAL = ("trains", "trains the other", "trains the other with no closure")
USUAL += ("loads and trains", "loads and trains the other")


def trained(actions: list[str], kind: type[StepClock]) -> tuple[object, ...]:
    """Whether a step is left open for another thread's goes by how long it takes; that is by chance, so none
    is here."""
    training = Training()
    with pytest.MonkeyPatch.context() as patch, recording(kind) as (program, written):
        patch.setattr("joulemap.recorder.steps.LEFT_STEPS", 1e9)
        training.lies = program.clock.is_open
        for action in actions:
            training.actions()[action]()
        return written(), program.clock.is_open(), training.lies_in


def test_a_step_of_training_like_the_last_one_is_noted_by_the_functions_themselves() -> None:
    with recording(StepClock) as (program, written):
        lane, lengths = program.adapter._finder.quick, []
        for _ in range(6):
            program.trains()
            lengths.append(len(lane.times))
        assert lengths == [0, 0, 0, 1, 2, 3]
        program.one(program.x).sum().backward()
        program.optimizer.step(None)
        assert len(lane.times) == 4
        program.infers()
        program.trains()
        assert written() == [("train", 0)] * 7 + [("inference", 0), ("train", 0)]


def test_a_step_that_begins_with_a_batch_is_noted_by_the_functions_themselves() -> None:
    with recording(StepClock) as (program, written):
        training, lengths = Training(), []
        lane = program.adapter._finder.quick
        for _ in range(7):
            next(training.batches)
            training.trains(training.second, training.other)
            lengths.append(len(lane.times))
        assert lengths == [0, 0, 0, 1, 2, 3, 4]
        next(training.batches)
        assert program.clock.is_open()
        training.batches = None  # type: ignore[assignment]
        assert not program.clock.is_open()  # it came to nothing
        assert written() == [("train", 0)] * 7


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(USUAL),
    st.lists(st.tuples(st.sampled_from(WAYS_TO_TRAIN), st.integers(1, 4)), max_size=6),
)
def test_steps_of_training_in_a_lane_are_those_that_would_have_been_found(
    usual: str, runs: list[tuple[str, int]]
) -> None:
    actions = [action for action, times in runs for _ in range(times)]
    whole = [*[usual] * 5, *actions, *[usual] * 3]
    assert trained(whole, StepClock) == trained(whole, Silent)


def test_an_error_looks_the_same_from_within_a_lane() -> None:
    def lines(kind: type[StepClock]) -> list[tuple[str, int | None]]:
        with recording(kind) as (program, _):
            program.infers()
            program.infers()
            with pytest.raises(ZeroDivisionError) as found:
                program.infers(meanwhile=lambda: 1 / 0)
            return [(one.name, one.lineno) for one in traceback.extract_tb(found.value.__traceback__)]

    assert lines(StepClock) == lines(Silent)


def test_threads_that_infer_at_the_same_time_have_steps_that_do_not_overlap() -> None:
    with recording(StepClock) as (program, written):

        def many(model: Any) -> None:
            with torch.no_grad():
                for _ in range(300):
                    model(program.x)

        threads = [threading.Thread(target=many, args=(model,)) for model in (program.one, program.other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not program.adapter._calls.is_open()
        count = program.clock.count
        assert 1 <= count <= 600  # one thread's call hides what others do meanwhile
        for _ in range(10):
            program.infers()
        found = written()
        assert len(found) == count + 10
        assert {label for label, _ in found} <= {"inference", "inference 2"}
        assert len(set(found[-10:])) == 1  # which of the two models was the first, is by chance


def test_a_lane_stays_sound_whatever_other_threads_do_meanwhile() -> None:
    """They change places after every few lines."""
    with recording(StepClock) as (program, written):
        lane, over, before = program.adapter._finder.quick, threading.Event(), sys.getswitchinterval()

        def disturbs(action: Callable[[], object]) -> None:
            while not over.wait(1e-4):
                action()

        actions = (program.a_step_of_another_thread, program.clock.slice, lambda: program.clock.count)
        threads = [threading.Thread(target=disturbs, args=(action,)) for action in actions]
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for _ in range(2000):
                program.infers()
        finally:
            over.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(before)
        assert (lane.open, lane.taken) == (None, None)
        assert not program.clock.is_open()
        count = program.clock.count
        for _ in range(10):
            program.infers()
        assert program.clock.count == count + 10
        spans = sorted(label for label, _ in written())
        assert set(spans) <= {"inference", "another's"}


def test_nothing_is_noted_once_joulemap_is_out() -> None:
    with recording(StepClock) as (program, _):
        program.infers()
        program.infers()
        held = torch.nn.Module.__call__
        program.infers(meanwhile=program.adapter.detach)
        lane = program.adapter._finder.quick
        before = list(lane.times)
        with torch.no_grad():
            held(program.one, program.x)
        assert lane.times == before
        assert torch.nn.Module.__call__ is not held


class Kept(list[Any]):
    """Has a method that returns early if it is given something."""

    def called(self, *args: Any, **kwargs: Any) -> None:
        if args:
            self.append(args)
            return
        self.append(kwargs)


def test_a_function_that_returns_nothing_runs_once() -> None:
    quick, thing = Quick("inference"), Kept()
    parts = {"now": itertools.count().__next__, "note": quick.times.append, "identity": id}
    parts |= {"thread": threading.get_ident, "grad": bool, "profiled": bool, "differentiates": int}
    parts |= {"ends_in_full": print, **counting()}
    made = grafted(Kept.called, lambda *_: None, lambda *_: None, quick, parts)  # type: ignore[arg-type]
    assert made is not None
    quick.replaces(made, Kept.called.__code__)  # type: ignore[attr-defined]
    quick.expect(thing, "inference")
    for until_ns, noted in ((0, 0), (10, 2)):
        quick.until_ns = until_ns
        made(thing, 1)
        made(thing, two=2)
        assert len(quick.times) == noted
    assert thing == [(1,), {"two": 2}] * 2


def test_a_program_that_runs_out_of_frames_has_steps_afterwards() -> None:
    with recording(StepClock) as (program, _), torch.no_grad():
        model = torch.nn.Linear(3, 3)

        def deeper() -> None:
            model(program.x)
            deeper()

        for _ in range(3):
            with pytest.raises(RecursionError):
                deeper()
        count = program.clock.count
        for _ in range(10):
            model(program.x)
        assert program.clock.count == count + 10


@pytest.mark.parametrize("kind", [StepClock, Silent])
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("ends_there", [False, True])
def test_a_step_that_is_tried_again_while_an_error_is_handled_is_one(
    kind: type[StepClock], around: bool, ends_there: bool
) -> None:
    training = Training()

    def tries_again() -> None:
        training.one(training.x)
        try:
            raise MemoryError
        except MemoryError:
            training.one(training.x[:1]).sum().backward()
            if ends_there:
                training.first.step()
        if not ends_there:
            training.first.step()

    def steps() -> None:
        for _ in range(6):
            training.trains()
        tries_again()
        tries_again()

    with recording(kind) as (program, _):
        if around:
            try:
                raise KeyError
            except KeyError:
                steps()
        else:
            steps()
        assert program.clock.count == 8


def test_a_thread_that_ends_in_the_middle_of_a_step_leaves_others_theirs() -> None:
    training = Training()

    def leaves() -> None:
        for _ in range(6):
            training.trains()
        training.one(training.x)

    with recording(StepClock) as (program, _):
        lane = program.adapter._finder.quick
        program.in_a_thread(leaves)
        assert lane.open is not None
        for _ in range(6):
            training.trains()
        assert lane.open is None
        assert lane.times
        assert program.clock.count == 12


@pytest.mark.parametrize("kind", [StepClock, Silent])
def test_a_thread_with_the_number_of_one_that_ended_in_a_step_has_its_own(kind: type[StepClock]) -> None:
    """As the next one has as a rule."""
    training = Training()

    def trains() -> None:
        for _ in range(6):
            training.trains()

    with recording(kind) as (program, _):
        training.trains()
        for times in range(1, 5):
            program.in_a_thread(lambda: training.one(training.x))
            program.in_a_thread(trains)
            assert program.clock.count == 1 + 6 * times


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
@pytest.mark.parametrize("kind", [StepClock, Silent])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_how_much_a_call_is_given_is_not_asked_while_it_is_traced(kind: type[StepClock], before: int) -> None:
    """The finished graph does not tell: what nothing comes of is left out of it."""
    seen = list[str]()
    with recording(kind) as (program, _), torch.no_grad():
        model = program.one.eval()
        for _ in range(before):
            model(program.x)
        model.meanwhile = lambda: seen.append(str(torch._C._get_tracing_state().graph()))
        torch.jit.trace(model, program.x, check_trace=False)
    [graph] = seen
    assert "%x" in graph
    assert "numel" not in graph


def test_how_much_a_call_is_given_is_not_asked_of_what_listens() -> None:
    class Heard(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(func.__name__)
            return func(*args, **(kwargs or {}))

    heard: list[str] = []
    with recording(StepClock) as (program, _), torch.no_grad():
        model, lane = torch.nn.Linear(3, 3).eval(), program.adapter._finder.quick
        for count in range(3):
            model(program.x)
            assert len(lane.times) == count
        with Heard():
            model(program.x)
        assert heard == ["linear"]
        assert len(lane.times) == 3
        model(program.more)
        assert len(lane.times) == 0  # those before are written down, since something may come of it


def test_what_looks_at_the_size_of_a_call_is_not_compiled() -> None:
    """Below a compiled function, too, in a frame that the compiler leaves alone."""
    from torch._dynamo.utils import counters

    model = Model().eval()

    @torch._dynamo.disable(recursive=False)  # type: ignore[untyped-decorator]
    def called(x: Any, plainly: bool) -> Any:
        return model(x) if plainly else model(x=x)

    def frames() -> dict[str, int]:
        torch._dynamo.reset()
        counters.clear()
        traces = sys.gettrace()
        sys.settrace(None)  # functions of coverage's are looked at, too
        compiled = torch.compile(lambda x, plainly: called(x + 1, plainly), backend="eager")
        with torch.no_grad():
            for length in (2, 2, 200, 2, 3):
                for plainly in (True, False):
                    compiled(torch.ones(length, 3), plainly)
        sys.settrace(traces)
        return dict(counters["frames"])

    without = frames()
    for kind in (StepClock, Silent):
        with recording(kind):
            assert frames() == without


def test_a_size_that_is_a_symbol_stays_one() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    model = Model().eval()

    def guards() -> list[str]:
        shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
        x = mode.from_tensor(torch.ones(5, 4, 3))
        with mode, torch.no_grad():
            torch.vmap(model)(x)
        return [str(guard.expr) for guard in shapes.guards]

    try:
        without = guards()
    except RuntimeError:
        pytest.skip(f"torch {torch.__version__} cannot do that by itself")
    for kind in (StepClock, Silent):
        with recording(kind), torch.no_grad():
            for _ in range(3):
                model(torch.ones(4, 3))
            assert guards() == without


def test_nothing_holds_what_a_call_is_given_any_longer() -> None:
    seen = []

    class Counts(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> None:
            seen.append(sys.getrefcount(x))

    model, x = Counts().eval(), torch.ones(2)
    for call in (lambda: model(x), lambda: model(x=x)):
        seen.clear()
        with torch.no_grad():
            call()
            for kind in (StepClock, Silent):
                with recording(kind):
                    for _ in range(3):
                        call()
        assert len(set(seen)) == 1
