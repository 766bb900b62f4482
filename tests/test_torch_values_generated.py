"""What tensors hold that graphs of torch.compile give to kernels and libraries, and replays with the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.calibration.operation import Operation  # noqa: E402
from joulemap.frameworks.torch import profiler, provenance  # noqa: E402
from joulemap.frameworks.torch.call import Call  # noqa: E402
from joulemap.frameworks.torch.launched import PREFIX, is_generated, launcher  # noqa: E402
from joulemap.frameworks.torch.raw import read_raw  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer, _filled  # noqa: E402
from joulemap.frameworks.torch.rotation import counted, tensors_in  # noqa: E402
from joulemap.frameworks.torch.stand_ins import generated_modules, kernels_of  # noqa: E402
from joulemap.frameworks.torch.values import Taster, fill_in, read_values  # noqa: E402
from tests.torch_live import attached, session  # noqa: E402

CPU = torch.device("cpu")
ROWS, WIDE = 600, 512
"""More than a mebibyte."""
OFFSET = 3.0
"""No random number of a normal distribution is so far off, mostly."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDE, WIDE)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.gelu(self.linear(x)).sum()


@pytest.fixture
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("torch._inductor.compile_fx")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(profiler, "_cached", lambda: ("cpu", 1 << 20))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:Skipping serialization")  # inductor's, of its own settings
@pytest.mark.skipif(
    not provenance.tells(),
    reason=f"inductor of torch {torch.__version__} does not tell what kernels are made from",
)
@pytest.mark.usefixtures("empty_caches")
def test_what_a_compiled_program_holds_is_replayed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(), OFFSET + torch.rand(ROWS, WIDE)
    compiled = torch.compile(model)

    def step() -> list[Any]:
        model.zero_grad()
        loss = compiled(x)
        loss.backward()
        return [loss.detach(), *(one.grad.clone() for one in model.parameters())]

    raw = tmp_path / "raw"
    with attached(raw) as (adapter, _):
        plain = step()
        before = {one.__file__: dict(vars(one)) for one in generated_modules()}
        assert any(kernels_of(one) for one in generated_modules())
        assert adapter.look(raw / "look")
        step()
        adapter.stop()
        assert adapter.taste(raw / "look")
        assert all(map(torch.equal, plain, step()))
        adapter.stop()
        assert {one.__file__: dict(vars(one)) for one in generated_modules()} == before
        with session(adapter, raw):
            step()
    trace = read_raw(raw)
    held = {(one.op, one.shapes, one.code): one.pieces for one in trace.values}
    asked = {Operation.of(asdict(one)).key: one for one in trace.signatures}
    kinds = set()
    for key, signature in asked.items():
        code = signature.scalars if signature.op.startswith(PREFIX) else ""
        pieces = held.get((signature.op, signature.shapes, code))
        call = Call.of(key)
        if not pieces or not (signature.op in ("addmm", "mm") or is_generated(call)):
            continue
        Replayer(call, CPU, pieces)
        same = [_begins(one, piece) for one, piece in zip(_given(call, pieces), pieces, strict=True) if piece]
        assert same
        assert all(same)
        kinds.add((is_generated(call), signature.phase))
        if signature.op == "addmm":
            x_held = torch.frombuffer(bytearray(pieces[1]), dtype=torch.float32)
            assert float(x_held.min()) >= OFFSET
            assert float(x_held.max()) <= OFFSET + 1
    assert {(False, "forward"), (True, "forward"), (False, "backward")} <= kinds


@pytest.mark.usefixtures("empty_caches")
def test_what_memory_for_results_holds_is_nobodys_value(tmp_path: Path) -> None:
    """It was left there by somebody else, and is yet to be written."""

    @torch.compile  # type: ignore[untyped-decorator]
    def product(x: Any, weight: Any) -> Any:
        return torch.mm(x.sin(), weight).cos()

    x, weight = torch.rand(ROWS, WIDE), torch.rand(WIDE, 2 * WIDE)
    product(x, weight)
    [module] = generated_modules()[-1:]
    found = module.empty_strided_cpu
    module.empty_strided_cpu = lambda *size: found(*size).fill_(float("nan"))
    taster = Taster("cpu", bool, pytest.fail)
    taster.begin([])
    result = product(x, weight)
    taster.end()
    assert result.isfinite().all()
    taster.write(tmp_path)
    pieces = [piece for held in read_values(tmp_path).values() for piece in held if piece]
    assert len(pieces) >= 3  # what sin is given, what mm is, and what cos is
    assert all(torch.frombuffer(bytearray(one), dtype=torch.float32).isfinite().all() for one in pieces)


def test_what_generated_code_imports_is_no_kernel() -> None:
    """Triton's helpers have names like kernels."""
    code = ModuleType("code")
    vars(code).update(triton_poi_fused_add_0=print, cpp_fused_1=print, triton_helpers=code, call=print)
    assert kernels_of(code) == ["triton_poi_fused_add_0", "cpp_fused_1"]


def _given(call: Call, pieces: Any) -> list[Any]:
    """The tensors that an operation is given, before it writes into any."""
    if not is_generated(call):
        return counted(tensors_in(_filled(call, CPU, pieces)))
    [launch] = launcher(call, partial(fill_in, held=pieces))().args[0]
    return counted(tensors_in(launch.operands))


def _begins(tensor: Any, piece: bytes) -> bool:
    """Whether a tensor's memory begins with what was seen."""
    seen = torch.frombuffer(bytearray(piece), dtype=tensor.dtype)[: tensor.numel()]
    return torch.equal(tensor.detach().as_strided((len(seen),), (1,)), seen)
