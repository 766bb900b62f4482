"""A step that is looked at: which one, by whom, and that nobody hears of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.errors import JoulemapError  # noqa: E402
from joulemap.frameworks.adapter import TracerBusy  # noqa: E402
from joulemap.frameworks.torch import profiler  # noqa: E402
from joulemap.frameworks.torch.caches import read_cold  # noqa: E402
from joulemap.frameworks.torch.touches import FILE  # noqa: E402
from joulemap.recorder import look  # noqa: E402
from joulemap.recorder.inside import Inside  # noqa: E402
from joulemap.recorder.look import LookingOn  # noqa: E402
from joulemap.recorder.settings import Settings  # noqa: E402

FIRST = 3


class Heard:
    """A listener that counts."""

    def __init__(self) -> None:
        self.open = 0

    def begin(self, label: str) -> None:
        self.open += 1

    def end(self, done: bool = False) -> None:
        self.open -= 1

    cancel = end

    def is_open(self) -> bool:
        return bool(self.open)

    def noted(self, label: str) -> bool:
        return True

    def compiled(self) -> None: ...
    def rename(self, label: str) -> None: ...


class Eye:
    """An onlooker that writes down what it is told; ``busy`` times it is not free."""

    def __init__(self, busy: int = 0, anything: bool = True) -> None:
        self.busy, self.anything = busy, anything
        self.said: list[str] = []

    def look(self, folder: Path) -> bool:
        self.busy -= 1
        if self.busy >= 0:
            raise TracerBusy("not now")
        self.said.append(folder.name)
        return self.anything

    def taste(self, folder: Path) -> bool:
        self.said.append(f"taste-{folder.name}")
        return self.anything

    def stop(self) -> None:
        self.said.append("stop")

    def drop(self) -> None:
        self.said.append("drop")


def looking(eye: Any, tmp_path: Path, warn: Callable[[str], None] = pytest.fail) -> LookingOn:
    return LookingOn(tmp_path, Heard(), lambda: eye, warn, FIRST)


def steps(listener: LookingOn, count: int, label: str = "train") -> None:
    for _ in range(count):
        listener.begin(label)
        listener.begin("inner")
        listener.end()
        listener.end()


def test_two_steps_of_each_label_are_looked_at(tmp_path: Path) -> None:
    eye = Eye()
    listener = looking(eye, tmp_path)
    steps(listener, FIRST)
    assert eye.said == []
    assert not listener.noted("train")
    steps(listener, 3)
    assert eye.said == ["look-0", "stop", "taste-look-0", "stop"]
    assert listener.noted("train")
    assert not listener.noted("test")
    for number in range(look.MOST):
        steps(listener, FIRST + 2, f"kind {number}")
    words = ("look-{0}", "stop", "taste-look-{0}", "stop")
    assert eye.said == [word.format(number) for number in range(look.MOST) for word in words]


def test_what_is_no_step_is_not_looked_at(tmp_path: Path) -> None:
    eye = Eye()
    listener = looking(eye, tmp_path)
    steps(listener, FIRST)
    listener.begin("train")
    listener.cancel()
    assert eye.said == ["look-0", "drop"]
    steps(listener, 1)
    assert eye.said[2:] == ["look-0", "stop"]
    listener.begin("train")
    listener.cancel()
    assert eye.said[4:] == ["taste-look-0", "drop"]
    steps(listener, 2)
    assert eye.said[6:] == ["taste-look-0", "stop"]


def test_somebody_who_is_tracing_has_precedence(tmp_path: Path) -> None:
    eye = Eye(busy=2)
    steps(looking(eye, tmp_path), FIRST + 5)
    assert eye.said[:2] == ["look-0", "stop"]
    always = looking(Eye(busy=1000), tmp_path)
    steps(always, FIRST + look.TRIES + 1)
    assert always.noted("train")


def test_there_is_nothing_to_look_at_without_a_gpu(tmp_path: Path) -> None:
    eye = Eye(anything=False)
    listener = looking(eye, tmp_path)
    steps(listener, FIRST + 5)
    assert eye.said == ["look-0", "taste-look-0"]
    assert listener.noted("train")
    steps(looking(None, tmp_path), FIRST + 5)


@pytest.mark.parametrize("error", [ValueError("odd"), JoulemapError("odd")])
def test_what_goes_wrong_is_said_and_no_more(tmp_path: Path, error: Exception) -> None:
    class Blind(Eye):
        def stop(self) -> None:
            raise error

    said: list[str] = []
    listener = looking(Blind(), tmp_path, said.append)
    steps(listener, FIRST + 5)
    (warning,) = said
    assert warning.endswith("odd")
    listener.stop()
    assert listener.noted("anything")


def test_the_profiler_looks_at_steps_that_the_program_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same session as of any other step, whose events are left out."""
    monkeypatch.setattr(profiler, "_cached", lambda: ("cpu", 1 << 20))
    inside = Inside(Settings(str(tmp_path), caches=FIRST))
    inside.start()
    model, x = torch.nn.Linear(64, 64), torch.ones(2, 64)
    try:
        for _ in range(FIRST + 2):
            with inside.step("mine"):
                model(x)
                torch.autograd.profiler.record_function("theirs")
    finally:
        inside.stop()
    (found,) = tmp_path.rglob(FILE)
    assert found.parent == tmp_path / "torch" / "look-0"
    assert not (found.parent / "events.npz").exists()
    assert "addmm" in {op for op, _ in read_cold(tmp_path / "torch")}
    assert not torch.autograd._profiler_enabled()


def test_a_look_says_nothing(tmp_path: Path) -> None:
    """Neither of its own, nor torch of memory that was there before."""
    program = """if True:
        import sys
        from pathlib import Path
        import torch
        from joulemap.frameworks.torch import profiler
        from joulemap.recorder.inside import Inside
        from joulemap.recorder.settings import Settings
        profiler._cached = lambda: ("cpu", 1 << 20)
        before = [torch.ones(1000) for _ in range(900)]
        inside = Inside(Settings(sys.argv[1], caches=0))
        inside.start()
        for label in ("one", "other"):
            with inside.step(label):
                del before[:400]
                torch.ones(3) + 1
        inside.stop()
        print(len(list(Path(sys.argv[1]).rglob("touches.json"))), "looks")
    """
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "2 looks\n", "")


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # which some versions say of every profile
def test_a_profiler_of_the_programs_ends_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "_cached", lambda: ("cpu", 1 << 20))
    inside = Inside(Settings(str(tmp_path), caches=0))
    inside.start()
    try:
        with inside.step("mine"):
            assert torch.autograd._profiler_enabled()
            with torch.profiler.profile() as theirs:
                torch.ones(3) + 1
    finally:
        inside.stop()
    assert any(one.key == "aten::add" for one in theirs.key_averages())
    assert not list(tmp_path.rglob(FILE))


def test_without_a_gpu_there_is_no_cache() -> None:
    assert profiler._cached() == ("", 0) or torch.cuda.is_initialized()


def test_whether_to_look_is_told_to_the_program() -> None:
    for first in (5, 0, None):
        assert Settings.from_json(Settings("raw", caches=first).to_json()).caches == first


@pytest.mark.gpu
def test_a_gpu_has_its_cache_looked_at(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)))
    x = torch.ones(8, 4096, device="cuda")
    inside = Inside(Settings(str(tmp_path), caches=FIRST))
    inside.start()
    try:
        for _ in range(FIRST + 2):
            with inside.step("mine"), torch.inference_mode():
                model(x).relu()
    finally:
        inside.stop()
    cold = read_cold(tmp_path / "torch")
    assert {found[1:] for (op, _), found in cold.items() if op == "addmm"} == {"01"}
    assert {found for (op, _), found in cold.items() if op == "relu"} == {"0"}
