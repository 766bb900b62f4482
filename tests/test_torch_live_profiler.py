"""Sessions of PyTorch's profiler: ours and the program's."""

from __future__ import annotations

import _thread
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulemap.errors import InputError
from joulemap.frameworks.adapter import TracerBusy
from joulemap.frameworks.torch import profiler
from joulemap.frameworks.torch.dataflow import Dataflow
from joulemap.frameworks.torch.extract import FILE, write_events
from joulemap.frameworks.torch.raw import read_raw
from tests.environment import uncovered
from tests.torch_live import attached, session

torch = pytest.importorskip("torch", reason="needs PyTorch")


def work() -> None:
    torch.nn.Linear(4, 4).eval()(torch.randn(2, 4)).sum().backward()


def names(folder: Path) -> set[str]:
    return set(read_raw(folder).events.name.words)


def test_everything_the_profiler_saw_is_written_down(tmp_path: Path) -> None:
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        work()
    events = profile.kineto_results.events()
    write_events(events, tmp_path, ["", "Linear"], Dataflow())
    with np.load(tmp_path / FILE) as file:
        words = json.loads(file["words"].tobytes())
        assert [words["names"][code] for code in file["name"]] == [one.name() for one in events]
        assert file["start_ns"].tolist() == [one.start_ns() for one in events]
        assert file["sequence_nr"].tolist() == [one.sequence_nr() for one in events]
        assert file["start_thread_id"].tolist() == [one.start_thread_id() for one in events]
        assert file["fwd_thread_id"].tolist() == [one.fwd_thread_id() for one in events]
        assert file["fwd_thread_id"].any()
        said = [words["signatures"][code] for code in file["signature"]]
    addmm = next(number for number, one in enumerate(events) if one.name() == "aten::addmm")
    assert json.loads(said[addmm])[0][:3] == [[4], [2, 4], [4, 4]]


def test_a_session_without_events(tmp_path: Path) -> None:
    write_events([], tmp_path, [""])
    read = read_raw(tmp_path)
    assert len(read.events) == 0
    assert read.notes == []
    assert len(read_raw(tmp_path / "nowhere").events) == 0


def test_sessions_follow_each_other(tmp_path: Path) -> None:
    with attached(tmp_path) as (adapter, _):
        for number in range(3):
            with session(adapter, tmp_path, number):
                work()
        with session(adapter, tmp_path, 3):
            pass
    read = read_raw(tmp_path)
    assert read.framework == "torch"
    assert len(read.steps) == 0
    assert list(read.events.name).count("(model)/addmm") == 3


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_looked_for_at_the_end_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collects: bool
) -> None:
    """Python would go through all that the program holds; afterwards it is as the program wants it."""
    seen = []
    write = "joulemap.frameworks.torch.profiler.write_events"
    monkeypatch.setattr(write, lambda *args: (seen.append(gc.isenabled()), write_events(*args)))
    gc_before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with attached(tmp_path) as (adapter, _), session(adapter, tmp_path):
            work()
        assert gc.isenabled() == collects
    finally:
        (gc.enable if gc_before else gc.disable)()
    assert seen == [False]
    assert "(model)/addmm" in names(tmp_path)


def test_shapes_are_kept_from_some_sessions(tmp_path: Path) -> None:
    with attached(tmp_path) as (adapter, _):
        for number in range(5):
            with session(adapter, tmp_path, number):
                work()
    [addmm] = [one for one in read_raw(tmp_path).signatures if one.op == "addmm"]
    assert (addmm.name, addmm.phase, addmm.calls) == ("(model)/addmm", "forward", 2)  # of the 1st and 4th
    assert json.loads(addmm.shapes)[:3] == [[4], [2, 4], [4, 4]]
    assert json.loads(addmm.types)[:3] == ["float", "float", "float"]


def test_the_first_session_of_each_kind_of_step_keeps_shapes(tmp_path: Path) -> None:
    """And every operation in it says what it was called with."""
    linear = torch.nn.Linear(4, 4).eval()
    with attached(tmp_path) as (adapter, heard):
        for number, (label, rows) in enumerate(
            [("decode", 1), ("prefill", 64), ("decode", 2), ("prefill", 32)]
        ):
            heard.begin(label)
            with session(adapter, tmp_path, number), torch.no_grad():
                linear(torch.randn(rows, 4))
            heard.end()
    read = read_raw(tmp_path)
    assert sorted(json.loads(one.shapes)[1] for one in read.signatures if one.op == "addmm") == [
        [1, 4],
        [64, 4],
    ]
    rows = np.flatnonzero(read.events.name.isin(["(model)/addmm"]))
    assert sum(bool(said) for said in read.events.signatures()[rows]) == 2
    said = Counter(filter(None, read.events.signatures()))
    counted: Counter[str] = Counter()
    for one in read.signatures:
        counted[one.key] += one.calls
    assert said == counted


@pytest.mark.skipif(
    profiler._all_threads() is None, reason=f"sessions of torch {torch.__version__} are bound to a thread"
)
def test_other_threads_are_seen_and_may_open_and_close(tmp_path: Path) -> None:
    with attached(tmp_path) as (adapter, _):
        (tmp_path / "0").mkdir()
        for action in (lambda: adapter.start(tmp_path / "0"), work, adapter.stop):
            thread = threading.Thread(target=action)
            thread.start()
            thread.join()
    assert "(model)/addmm" in names(tmp_path)


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # which some versions say of every profile
def test_a_session_that_is_bound_to_a_thread_is_ended_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "_all_threads", lambda: None)

    def refused(action: Callable[[], object]) -> None:
        with pytest.raises(TracerBusy, match="leaves it to the thread that opened a session"):
            action()
        seen.append(action)

    with attached(tmp_path) as (adapter, _):
        assert adapter.bound
        for number, comes_by in enumerate((lambda: None, adapter.settle)):
            (tmp_path / str(number)).mkdir()
            seen: list[Any] = []
            adapter.start(tmp_path / str(number))
            in_thread(lambda: refused(adapter.stop))
            in_thread(lambda: refused(lambda: adapter.start(tmp_path / "9")))
            assert len(seen) == 2
            comes_by()
            with session(adapter, tmp_path, number + 4):
                work()
        adapter.start(tmp_path / "0")
        in_thread(adapter.drop)
        with torch.profiler.profile():  # the program's own
            work()
        with session(adapter, tmp_path, 7):
            work()
    assert not (tmp_path / "0").exists()
    assert "(model)/addmm" in names(tmp_path)


def test_a_session_that_is_bound_to_a_thread_hears_nothing_from_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "_all_threads", lambda: None)
    heard: list[str] = []
    with attached(tmp_path) as (adapter, _):
        ended = threading.Lock()

        def slice_of_time() -> None:
            try:
                adapter.start(tmp_path)
            except TracerBusy as error:
                heard.append(error.message)
            ended.release()

        ended.acquire()
        _thread.start_new_thread(slice_of_time, ())
        assert ended.acquire(timeout=60)
    assert "of one thread alone" in heard[0]


def test_a_session_of_the_programs_own_has_precedence(tmp_path: Path) -> None:
    with attached(tmp_path) as (adapter, _):
        (tmp_path / "0").mkdir()
        adapter.start(tmp_path / "0")
        with torch.profiler.profile() as profile:
            work()
            with pytest.raises(TracerBusy, match="in use by the program"):
                adapter.start(tmp_path / "1")
        with pytest.raises(TracerBusy, match="in a session of ours"):
            adapter.stop()
        assert "aten::addmm" in {event.key for event in profile.key_averages()}
        assert not (tmp_path / "0").exists()
        with session(adapter, tmp_path, 2):
            work()
    assert "(model)/addmm" in names(tmp_path)


def test_a_profiler_that_warms_up_is_not_disturbed(tmp_path: Path) -> None:
    seen: list[int] = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    with attached(tmp_path) as (adapter, _):
        with torch.profiler.profile(
            schedule=schedule, on_trace_ready=lambda p: seen.append(len(p.events()))
        ) as profile:
            for number in range(4):
                try:
                    with session(adapter, tmp_path, number):
                        work()
                except TracerBusy:
                    work()
                profile.step()
        with session(adapter, tmp_path, 9):
            work()
    assert len(seen) == 1
    assert seen[0] > 0


def test_nothing_is_said_on_stderr(tmp_path: Path) -> None:
    program = """
import sys, threading, torch
from pathlib import Path
from tests.torch_live import attached, session
def one(number):
    with session(adapter, Path(sys.argv[1]), number):
        torch.ones(2) + 1
with attached(Path(sys.argv[1])) as (adapter, _):
    for number in range(2):
        thread = threading.Thread(target=one, args=(number,))
        thread.start()
        thread.join()
    one(2)
print("mine", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=uncovered(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "mine\n")
    assert len(list(tmp_path.rglob(FILE))) == 3


def test_a_forked_child_leaves_the_session_to_its_parent(tmp_path: Path) -> None:
    program = """
import os, sys, torch
from pathlib import Path
from tests.torch_live import attached, session
model = torch.nn.Linear(2, 2)
torch.set_num_threads(1)
with attached(Path(sys.argv[1])) as (adapter, heard):
    with session(adapter, Path(sys.argv[1])):
        child = os.fork()
        with torch.no_grad():
            model(torch.ones(1, 2))
        if child == 0:
            os._exit(0 if heard.steps == [] and adapter.problems == [] else 1)
        assert os.waitpid(child, 0)[1] == 0
        model(torch.ones(1, 2))
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=uncovered(), check=True)
    assert "(model)/addmm" in names(tmp_path)


def test_workers_of_a_data_loader_are_not_ours(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    loader = torch.utils.data.DataLoader(
        [torch.ones(2)] * 4, batch_size=2, num_workers=1, multiprocessing_context=context
    )
    with attached(tmp_path) as (adapter, _), session(adapter, tmp_path):
        batches = list(loader)
    assert len(batches) == 2


def test_the_reader_needs_no_torch(tmp_path: Path) -> None:
    with attached(tmp_path) as (adapter, _), session(adapter, tmp_path):
        work()
    program = "import sys; from pathlib import Path; from joulemap.frameworks.torch.raw import read_raw;"
    program += "print(len(read_raw(Path(sys.argv[1])).events) > 0, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=uncovered(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False"]


def test_a_file_that_is_torn_is_named(tmp_path: Path) -> None:
    write_events([], tmp_path, [""])
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=FILE):
        read_raw(tmp_path)


def test_torch_is_as_it_was_afterwards(tmp_path: Path) -> None:
    from multiprocessing.process import BaseProcess

    from torch.autograd import profiler
    from torch.optim import optimizer
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def state() -> list[Any]:
        return [
            torch.nn.Module.__call__,
            _BaseDataLoaderIter.__next__,
            BaseProcess.__init__,
            *(
                getattr(profiler, name)
                for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
            ),
            dict(optimizer._global_optimizer_pre_hooks),
            dict(optimizer._global_optimizer_post_hooks),
            os.environ.get("TEARDOWN_CUPTI"),
        ]

    before = state()
    with attached(tmp_path) as (adapter, _):
        (tmp_path / "0").mkdir()
        adapter.start(tmp_path / "0")  # and never stopped
        assert state() != before
    assert state() == before
    assert not torch.autograd._profiler_enabled()


def test_a_module_that_cannot_be_asked_for_its_parts_leaves_no_session_open(tmp_path: Path) -> None:
    class Odd(torch.nn.Linear):  # type: ignore[misc]
        def named_modules(self, *_: Any, **__: Any) -> Any:
            raise ValueError("none of your business")

    module = Odd(2, 2).eval()
    with attached(tmp_path) as (adapter, _):
        module(torch.ones(1, 2))
        with pytest.raises(ValueError, match="business"), session(adapter, tmp_path):
            pass
        assert not torch.autograd._profiler_enabled()
        del module
        gc.collect()
        with session(adapter, tmp_path, 1):
            torch.nn.Linear(2, 2).eval()(torch.ones(1, 2))
