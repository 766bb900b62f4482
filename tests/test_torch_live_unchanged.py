"""A PyTorch program is what it was: results to the last bit, graphs, tracebacks, pickles, scripts."""

from __future__ import annotations

import functools
import inspect
import io
import pickle
import re
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import joulemap
from joulemap import account
from joulemap.frameworks.imported import named_share
from joulemap.recording import Recording
from tests.environment import uncovered
from tests.torch_live import attached, layers, session
from tests.undisturbed import undisturbed

torch = pytest.importorskip("torch", reason="needs PyTorch")

GRAPHS = """
import sys, tempfile, torch
from pathlib import Path
from torch import nn
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from tests.torch_live import Heard, TorchAdapter

class Block(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.dense, self.norm, self.breaks = nn.Linear(8, 8), nn.LayerNorm(8), breaks
    def forward(self, x):
        x = self.norm(x + torch.relu(self.dense(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        return x

class Net(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.blocks = nn.ModuleList([Block(breaks), Block(breaks)])
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

class Tracing(Heard):
    # Traces every other step, as a recorder might.
    def begin(self, label):
        super().begin(label)
        if self.depth == 1 and len(self.steps) % 2:
            self.folder = Path(tempfile.mkdtemp())
            adapter.start(self.folder)
    def end(self, done=False):
        super().end(done)
        if self.depth == 0 and len(self.steps) % 2:
            adapter.stop()

def whole(model, optimizer, compiled):
    return model_of(torch.compile(model, backend=compiled), optimizer)

def by_method(model, optimizer, compiled):
    model.compile(backend=compiled)
    return model_of(model, optimizer)

def by_block(model, optimizer, compiled):
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend=compiled)
    return model_of(model, optimizer)

def with_hook(model, optimizer, compiled):
    model.blocks[0].register_forward_hook(lambda module, given, made: made * 1.0)
    return whole(model, optimizer, compiled)

def function(model, optimizer, compiled):
    return torch.compile(model_of(model, optimizer), backend=compiled)

def model_of(model, optimizer):
    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step

adapter = None
if sys.argv[1] != "plain":
    adapter = TorchAdapter(Path(tempfile.mkdtemp()))
    heard = Tracing() if sys.argv[1] == "traced" else Heard()
    for module in adapter.watches:
        adapter.attach(module, heard)
for breaks in (False, True):
    for how in (whole, by_method, by_block, with_hook, function):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        compiled = CompileCounterWithBackend("aot_eager")
        model = Net(breaks)
        step = how(model, torch.optim.SGD(model.parameters(), lr=0.1), compiled)
        for number in range(5):
            step(torch.randn(2 + number % 2, 8))
        broken = sum(counters["graph_break"].values())
        print(breaks, how.__name__, compiled.frame_count, compiled.op_count, dict(counters["stats"]), broken)
        print(float(sum(p.double().sum() for p in model.parameters()).detach()).hex())
codes = [code for seen in input_codes.seen if (code := seen()) is not None]
assert not [code for code in codes if "joulemap/frameworks" in code.co_filename]
if adapter is not None:
    assert "train" in heard.steps and heard.compiled_steps
    adapter.detach()
    assert adapter.problems == [], adapter.problems
"""


def test_compiled_programs_have_the_same_graphs() -> None:
    said = {}
    for how in ("plain", "attached", "traced"):
        command = [sys.executable, "-c", GRAPHS, how]
        done = subprocess.run(command, env=uncovered(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said[how] = done.stdout
    assert said["plain"].count("unique_graphs") == 10
    assert said["attached"] == said["plain"]
    assert said["traced"] == said["plain"]


class Goes:
    """Somebody's object with code that runs when it goes."""

    def __del__(self) -> None:
        self.gone = True


def test_what_goes_in_the_middle_of_compiled_code(tmp_path: Path) -> None:
    """The compiler looks at what runs when garbage is collected, and at nothing of ours."""
    from torch._dynamo.convert_frame import input_codes

    held: list[Any] = []

    def function(x: Any) -> Any:
        torch._dynamo.graph_break()
        held.clear()
        return x + 1

    torch._dynamo.reset()
    input_codes.clear()
    with attached(tmp_path) as (_, heard):
        held += [*called_and_fed(), Goes()]
        assert heard.is_open()  # it waits for what the loader's next batch is for
        torch.compile(function, backend="eager")(torch.ones(2))
        assert not heard.is_open()
    looked_at = [code for seen in input_codes.seen if (code := seen()) is not None]
    assert Goes.__del__.__code__ in looked_at
    assert not [code for code in looked_at if is_ours(code)]


def called_and_fed() -> tuple[Any, Any]:
    """A module that was called, and an iterator over the data that it is fed with."""
    data = torch.utils.data.TensorDataset(torch.ones(4, 3))
    module = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(module.parameters())
    for [batch] in torch.utils.data.DataLoader(data):
        module(batch).sum().backward()
        optimizer.step()
    following = iter(torch.utils.data.DataLoader(data))
    next(following)
    return module, following


def is_ours(code: CodeType) -> bool:
    return Path(code.co_filename).is_relative_to(Path(joulemap.__file__).parent)


class Failing(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        raise ValueError(f"not {x}")


def frames(call: Any) -> list[str]:
    """Of the error that it raises: everything that is printed, with places in lines."""
    try:
        call()
    except ValueError as error:
        return traceback.format_list(traceback.extract_tb(error.__traceback__)[1:])
    return []


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 adds a frame where an error is raised again"
)
def test_tracebacks_are_the_programs_own(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(Failing()))

    def fails() -> None:
        model(1)

    plain = frames(fails)
    with attached(tmp_path) as (adapter, _):
        assert frames(fails) == plain
        with session(adapter, tmp_path):
            assert frames(fails) == plain


class Deep(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Says how many frames it lies below the program."""

    def forward(self, x: Any) -> Any:
        return len(inspect.stack(0))


def test_calls_of_modules_lie_no_deeper(tmp_path: Path) -> None:
    """Not a frame of ours is among them, in a session or out of it."""
    model = torch.nn.Sequential(torch.nn.Sequential(Deep()))
    plain = model(1)
    with attached(tmp_path) as (adapter, _):
        assert model(1) == plain
        with session(adapter, tmp_path):
            assert model(1) == plain


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 adds a frame where an error is raised again"
)
def test_who_replaced_the_call_of_modules_before_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, heard = torch.nn.Module.__call__, []

    @functools.wraps(original)
    def theirs(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        heard.append(type(module).__name__)
        return original(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", theirs)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2)).eval()
    failing = torch.nn.Sequential(Failing()).eval()  # in training it might be a step of an earlier optimizer

    def fails() -> None:
        failing(1)

    plain = frames(fails)
    heard.clear()
    with attached(tmp_path) as (adapter, steps):
        with session(adapter, tmp_path):
            model(torch.ones(2))
        assert frames(fails) == plain
    assert heard == ["Sequential", "Linear", "Sequential", "Failing"]
    assert steps.steps == ["inference", "inference 2"]
    assert "0" in layers(tmp_path)
    assert torch.nn.Module.__call__ is theirs


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_others_do_with_modules_is_the_same(tmp_path: Path) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), torch.ones(2, 3)

    def looks() -> list[Any]:
        saved = io.BytesIO()
        torch.save(model, saved)
        return [
            str(inspect.signature(model)),
            torch.nn.Module.__call__.__name__,
            pickle.dumps(model.state_dict()),
            len(saved.getvalue()),
            str(torch.jit.script(model).graph),
            re.sub(r"___torch_mangle_\d+\.", "", str(torch.jit.trace(model, x).graph)),
            torch.fx.symbolic_trace(model).code,
            [name for name in vars(model[0]) if not name.startswith("__")],
            model[0]._forward_hooks,
        ]

    looks()  # which some versions of torch leave something of in the model
    plain = looks()
    with attached(tmp_path) as (adapter, _):
        assert looks() == plain
        with session(adapter, tmp_path):
            assert looks() == plain
            assert torch.jit.script(model)(x).equal(model(x))


BERT = """
import hashlib, sys
import torch
from transformers import BertConfig, BertForPreTraining

torch.manual_seed(0)
model = BertForPreTraining(BertConfig(
    num_hidden_layers=2, hidden_size=128, num_attention_heads=2, intermediate_size=512, vocab_size=1000
))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = [(torch.randint(0, 1000, (32,)), torch.tensor(number % 2)) for number in range(32)]
for ids, following in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = model(input_ids=ids, labels=ids, next_sentence_label=following).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
model.eval()
with torch.no_grad():
    print(model(input_ids=ids).prediction_logits.sum().item().hex())
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
"""


def test_bert_under_joulemap_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(BERT))
    run = ["-m", "joulemap", "run", "-q", "--trace-all", "-o", str(tmp_path / "r.joulemap")]
    plain, recorded = (
        subprocess.run(
            [sys.executable, *ours, program], env=uncovered(), capture_output=True, text=True, check=True
        )
        for ours in ([], run)
    )
    assert recorded.stdout == plain.stdout
    assert recorded.stderr == plain.stderr
    recording = Recording.open(tmp_path / "r.joulemap")
    steps, events = recording.steps(), recording.events()
    assert steps is not None
    found = [label for label in steps.label if label != "slice"]  # of pauses, where the machine is busy
    assert found == ["train"] * 8 + ["inference"]
    assert all(steps.traced)
    assert named_share(undisturbed(events)) > 0.97
    for phase in ("forward", "backward"):
        own = {name for name, its in zip(events.name, events.phase, strict=True) if its == phase}
        found = {found[1] for name in own if (found := re.match(r"bert/encoder/layer/(\d+)/", name))}
        assert found == {"0", "1"}
    signatures = recording.table("signatures")
    assert signatures is not None
    assert "addmm" in signatures["op"].to_pylist()
    account(recording).check()
    assert recording.info.warnings == []
