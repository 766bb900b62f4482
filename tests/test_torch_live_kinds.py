"""Inference of several models: each has a kind of step of its own; and whatever a module is, it has steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from joulemap.frameworks.torch.adapter import TorchAdapter
from joulemap.frameworks.torch.given import given as numbers_given
from joulemap.frameworks.torch.kinds import MOST, TOO_MANY, InferenceKinds
from joulemap.recorder.steps import StepClock
from tests.tensorflow_live import Heard as Listener
from tests.torch_live import attached
from tests.torch_recorded import Silent, recording

torch = pytest.importorskip("torch", reason="needs PyTorch")


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def test_inference_of_another_model_is_another_kind(tmp_path: Path) -> None:
    """What one does says nothing of another. Those of one class and size are alike."""
    text, pictures, layers = net(), torch.nn.Linear(4, 4), [torch.nn.Linear(4, 4) for _ in range(3)]
    with attached(tmp_path) as (_, heard), torch.no_grad():
        for _ in range(2):
            text(torch.randn(2, 4))
            for _ in range(3):
                pictures(torch.randn(2, 4))
        for layer in layers:
            layer(torch.randn(2, 4))
        net()(torch.randn(2, 4))  # made for one call
        torch.nn.LazyLinear(4)(torch.randn(2, 4))
        assert heard.steps == (
            ["inference", *["inference 2"] * 3] * 2 + ["inference 2"] * 3 + ["inference", "inference 3"]
        )


class Groups(torch.nn.Linear):
    """Has parameters of its own way."""

    def parameters(self, recurse: bool = True) -> Any:
        return [{"params": list(super().parameters(recurse))}]


class Equal(torch.nn.Linear):
    """One that is like another, so that it has no hash."""

    def __eq__(self, other: object) -> bool:
        return True


class Heard(torch.overrides.TorchFunctionMode):
    """What is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("module", [Groups(3, 3), Equal(3, 3), torch.nn.Linear(3, 3)])
def test_whatever_a_module_has_made_of_itself_has_steps_and_hears_nothing(
    module: Any, tmp_path: Path
) -> None:
    with attached(tmp_path) as (_, heard), torch.no_grad(), Heard() as mode:
        for _ in range(3):
            module(torch.ones(2, 3))
        assert heard.steps == ["inference"] * 3
    assert set(mode.names) <= {"ones", "linear"}


def test_not_more_kinds_of_inference_are_told_apart_than_could_be_traced(tmp_path: Path) -> None:
    """And that is said where it is so."""
    for count, said in ((MOST, []), (2 * MOST, [TOO_MANY])):
        adapter, heard = TorchAdapter(tmp_path), Listener()
        adapter.attach("torch", heard)
        with torch.no_grad():
            for size in range(1, count + 1):
                torch.nn.Linear(size, 1)(torch.randn(2, size))
        adapter.detach()
        assert len(set(heard.steps)) == MOST
        assert heard.steps[-1] == f"inference {MOST}"
        assert adapter.problems == said


def test_far_more_than_before_is_another_kind(tmp_path: Path) -> None:
    """A prompt, and the words after it. By the first tensor, wherever it is given."""
    model, other = Reads(), Reads()
    other.weight = torch.nn.Parameter(torch.ones(3))
    with attached(tmp_path) as (_, heard), torch.no_grad():
        for length in (100, 1, 2, 60, 1, 799):
            model(words=torch.ones(2, length), cache=torch.ones(2, 1000))
        model([torch.ones(2, 100)], torch.ones(2, 1))
        model([torch.ones(2, 100)])
        heard_then = list(heard.steps)
        for power in range(0, 60, 4):
            model(torch.ones(1).expand(2**power, 2))
        for length in (100, 1):
            other(torch.ones(2, length))
    prompt, word = "inference", "inference (2 numbers)"
    assert heard_then == [prompt, word, word, prompt, word, prompt, word, word]
    assert len(set(heard.steps[:-2])) == MOST + 1
    assert heard.steps[-2:] == ["inference 2", "inference 2 (2 numbers)"]


def test_what_a_loader_gives_is_of_one_kind_whatever_its_size(tmp_path: Path) -> None:
    """The step begins when nothing is known of it yet; and the last batch is often a small one. Other calls
    are of its kind if they are as large as the first."""
    model, data = torch.nn.Linear(3, 3), torch.ones(100, 3)
    with attached(tmp_path) as (_, heard), torch.no_grad():
        for size in (33, 1, 100):
            for batch in torch.utils.data.DataLoader(data, batch_size=size):
                model(batch)
        assert heard.steps == ["inference"] * (4 + 100 + 1)
        model(data[:33])
        assert heard.steps[-1] == "inference"
        model(data[:1])
        assert heard.steps[-1] == "inference (3 numbers)"


@pytest.mark.parametrize("kind", [StepClock, Silent])
def test_prompts_from_a_loader_are_another_kind_than_tokens(kind: type[StepClock]) -> None:
    model, token = Reads(), torch.ones(1, 1)
    prompts = torch.utils.data.DataLoader(torch.ones(4, 50))
    with recording(kind) as (_, written), torch.no_grad():
        for prompt in prompts:
            for read in (prompt, token, token, token):
                model(read)
        assert written() == [("inference", 0), *[("inference (1 numbers)", 0)] * 3] * 4


def test_what_a_loader_gives_may_be_far_more_than_the_first_call_had(tmp_path: Path) -> None:
    """Which warms the model up."""
    model, token = Reads(), torch.ones(1, 1)
    with attached(tmp_path) as (_, heard), torch.no_grad():
        model(token)
        for prompt in torch.utils.data.DataLoader(torch.ones(5, 50), batch_size=2):
            model(prompt)
            model(token)
        assert heard.steps == ["inference", *["inference (100 numbers)", "inference"] * 3]


def test_what_a_loader_gives_says_nothing_of_what_other_threads_call(tmp_path: Path) -> None:
    class Meanwhile(Listener):
        """Another thread calls another model while a step begins."""

        def begin(self, label: str) -> None:
            super().begin(label)
            thread = threading.Thread(target=other, args=(torch.ones(2),))
            thread.start()
            thread.join()

    model, other, listener = Reads(), torch.nn.Identity(), Meanwhile()
    with attached(tmp_path) as (adapter, _), torch.no_grad():
        adapter._watch.steps = listener
        for _ in range(2):
            for batch in torch.utils.data.DataLoader(torch.ones(2, 3)):
                model(batch)
                assert adapter._finder.quick.module == 0  # nothing is expected of the next batch
        assert listener.steps == ["inference"] * 4


PROMPT, WORD = torch.ones(2, 100), torch.ones(2, 1)
WAYS = [
    ((), {}),
    ((None,), {}),
    (([PROMPT],), {}),
    ((PROMPT,), {}),
    ((WORD,), {}),
    ((PROMPT, WORD), {}),
    ((WORD, PROMPT), {}),
    ((None, WORD), {}),
    ((None, PROMPT), {"words": WORD}),
    ((), {"words": None, "embedded": PROMPT}),
    ((), {"words": WORD, "embedded": None}),
    ((), {"embedded": PROMPT, "words": WORD}),
    ((), {"words": WORD, "embedded": PROMPT}),
]


@pytest.mark.parametrize("kind", [StepClock, Silent])
@settings(max_examples=100, deadline=None)
@hypothesis.given(ways=st.lists(st.sampled_from(WAYS), min_size=1, max_size=20))
def test_a_call_that_is_noted_is_of_its_own_kind(kind: type[StepClock], ways: list[Any]) -> None:
    """Its first tensor counts, wherever the last call's was."""
    model, kinds = Reads(), InferenceKinds()
    with recording(kind) as (_, written), torch.no_grad():
        for args, kwargs in ways:
            model(*args, **kwargs)
        found = [label for label, _ in written()]
    assert found == [kinds.label(model, numbers_given(args, kwargs)) for args, kwargs in ways]


def test_a_prompt_that_comes_by_another_name_than_tokens_is_another_kind() -> None:
    model = Reads()
    for kind in (StepClock, Silent):
        with recording(kind) as (_, written), torch.no_grad():
            for _ in range(3):
                model(words=None, embedded=PROMPT)
                model(words=WORD, embedded=None)
                model(words=WORD, embedded=None)
            assert written() == [("inference", 0), *[("inference (2 numbers)", 0)] * 2] * 3


def test_models_that_are_made_anew_take_no_room() -> None:
    kinds = InferenceKinds()
    labels = [kinds.label(torch.nn.Linear(size, 1)) for size in range(1, 100)]
    assert labels[MOST:] == [f"inference {MOST}"] * (99 - MOST)
    assert kinds.too_many
    assert len(kinds._kinds) == MOST + 1


class Reads(torch.nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> None:
        pass


@settings(max_examples=200, deadline=None)
@hypothesis.given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30))
def test_calls_that_are_taken_for_alike_are_of_one_kind(sizes: list[int]) -> None:
    kinds, model = InferenceKinds(), torch.nn.ReLU()
    for numbers in sizes:
        label = kinds.label(model, numbers)
        least, most = kinds.between(label, numbers)
        assert least <= numbers <= most
        for other in (*sizes, *range(1, 2000, 7), int(least), int(most)):
            if least <= other <= most:
                assert kinds.label(model, other) == label
        assert kinds.label(model, numbers) == label


class Wrapped(torch.Tensor):
    """The program's own class."""

    def numel(self) -> int:
        raise AssertionError


@pytest.mark.parametrize(
    "words",
    [
        torch.empty(0),
        torch.ones(4, device="meta"),
        torch.ones(4).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.nn.Parameter(torch.ones(4)),
        torch.ones(4).as_subclass(Wrapped),
        None,
        "words",
        [],
    ],
)
def test_whatever_a_module_is_given_it_has_steps(words: Any, tmp_path: Path) -> None:
    model = Reads()
    with attached(tmp_path) as (adapter, heard), torch.no_grad():
        for _ in range(3):
            model(words)
            model(words=words)
        assert heard.steps == ["inference"] * 6
        assert adapter.problems == []
