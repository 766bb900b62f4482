"""Sessions of JAX's profiler, beside the program's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulemap.frameworks.adapter import TooEarly, TracerBusy
from joulemap.frameworks.jax.adapter import JaxAdapter
from joulemap.frameworks.jax.profiler import FILE, Profiler
from joulemap.frameworks.jax.profiles import read_profiles
from joulemap.frameworks.jax.raw import read_raw
from joulemap.frameworks.xplane.hlo import Modules
from joulemap.frameworks.xplane.space import HOST, read_space
from tests.jax_live import attached, session
from tests.tensorflow_live import Heard

jax = pytest.importorskip("jax", reason="needs JAX")
serialize_executable = pytest.importorskip("jax.experimental.serialize_executable", reason="needs JAX")
jnp = jax.numpy
X = jnp.ones((300, 300))


@jax.jit
def product(x: Any) -> Any:
    with jax.named_scope("product"):
        return x @ x


def test_sessions_leave_a_file_each(tmp_path: Path) -> None:
    product(X).block_until_ready()
    with attached(tmp_path) as (adapter, heard):
        for number in range(2):
            heard.begin("step")
            with session(adapter, tmp_path, number):
                product(X)  # not waited for by the program
            heard.end()
    events = read_raw(tmp_path).events
    assert sum(name.startswith("product/") for name in events.name) >= 2
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 2


def step_sessions(folder: Path, actions: Sequence[Callable[[], Any]]) -> None:
    """A session of a step for each."""
    with attached(folder) as (adapter, heard):
        for number, action in enumerate(actions):
            heard.begin("step")
            with session(adapter, folder, number):
                jax.block_until_ready(action())
            heard.end()


def has_programs(folder: Path, number: int) -> bool:
    return bool(Modules().of(read_space(folder / str(number) / FILE)))


def names(folder: Path, number: int) -> set[str]:
    """Of the operations that a session holds, read with all others."""
    host, events = read_space(folder / str(number) / FILE).events[HOST], read_raw(folder).events
    first_ns, last_ns = host.start_ns.min(), host.start_ns.max()
    rows = zip(events.name, events.kind, events.start_ns, strict=True)
    return {name for name, kind, start_ns in rows if kind == "op" and first_ns <= start_ns <= last_ns}


def test_programs_are_written_once_and_name_the_operations_of_all_sessions(tmp_path: Path) -> None:
    @jax.jit
    def another(x: Any) -> Any:
        with jax.named_scope("another"):
            return x @ x + 1

    def known() -> Any:
        return product(X)

    known().block_until_ready()
    step_sessions(tmp_path, [known, known, lambda: another(X), lambda: (another(X), known())])
    assert [has_programs(tmp_path, number) for number in range(4)] == [True, False, False, True]
    assert names(tmp_path, 0) == names(tmp_path, 1)
    assert any(name.startswith("product/") for name in names(tmp_path, 1))
    assert any(name.startswith("another/") for name in names(tmp_path, 3))


def test_files_of_several_processes_do_not_name_each_others_operations(tmp_path: Path) -> None:
    def named(files: list[Path], *, one_process: bool = False) -> int:
        events = read_profiles(files, one_process=one_process).events
        return sum(name.startswith("product/") for name in events.name)

    product(X).block_until_ready()
    step_sessions(tmp_path, [lambda: product(X)] * 2)
    files = [tmp_path / str(number) / FILE for number in range(2)]
    assert named(files) == named(files[:1]) > 0
    assert named(files, one_process=True) > named(files)


def test_a_program_that_another_process_has_compiled_is_written_too(tmp_path: Path) -> None:
    packed = serialize_executable.serialize(product.lower(X).compile())
    with attached(tmp_path) as (adapter, _):
        before = adapter._calls.programs()
        serialize_executable.deserialize_and_load(*packed)(X)
        assert adapter._calls.programs() != before


def test_programs_that_nobody_counts_are_in_every_session(tmp_path: Path) -> None:
    product(X).block_until_ready()
    with attached(tmp_path) as (adapter, heard):
        adapter._calls._programs = None  # where JAX does not say what it compiles
        for number in range(2):
            heard.begin("step")
            with session(adapter, tmp_path, number):
                product(X)
            heard.end()
    assert [has_programs(tmp_path, number) for number in range(2)] == [True, True]


def test_the_programs_own_session_has_precedence(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with attached(tmp_path / "raw") as (adapter, _):
        adapter.start(tmp_path / "0")
        jax.profiler.start_trace(str(tmp_path / "theirs"))
        with pytest.raises(TracerBusy):
            adapter.stop()
        with pytest.raises(TracerBusy):
            adapter.start(tmp_path / "0")
        product(X).block_until_ready()
        jax.profiler.stop_trace()
        with session(adapter, tmp_path / "again"):
            product(X).block_until_ready()
    assert list((tmp_path / "theirs").rglob("*.xplane.pb"))
    assert len(read_raw(tmp_path / "again").events)


@pytest.mark.parametrize("name", ["profile_session", "session"])
def test_the_programs_session_is_seen_in_every_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with attached(tmp_path) as (adapter, _):
        monkeypatch.setattr("jax._src.profiler._profile_state", SimpleNamespace(**{name: object()}))
        with pytest.raises(TracerBusy):
            adapter.start(tmp_path)


def test_a_session_that_somebody_else_holds_is_noticed_at_the_end(tmp_path: Path) -> None:
    from jax._src.lib import _profiler

    (tmp_path / "0").mkdir()
    theirs = _profiler.ProfilerSession()  # made before we were there, past jax.profiler
    with attached(tmp_path) as (adapter, _):
        adapter.start(tmp_path / "0")
        with pytest.raises(TracerBusy):
            adapter.stop()
    assert len(theirs.stop())


def test_before_jax_has_devices_it_is_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    with attached(tmp_path) as (adapter, _), pytest.raises(TooEarly):
        adapter.start(tmp_path)


def test_what_was_called_before_is_no_part_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 98.0

    def still(patience_s: float) -> bool:
        nonlocal now_s
        now_s += patience_s
        return True

    monkeypatch.setattr("joulemap.frameworks.jax.profiler._in_flight", still)
    monkeypatch.setattr("joulemap.frameworks.jax.profiler.time.monotonic", lambda: now_s)
    with attached(tmp_path) as (adapter, heard):
        profiler = adapter._profiler
        assert isinstance(profiler, Profiler)
        heard.begin("step")
        with pytest.raises(TooEarly):
            adapter.start(tmp_path)
        assert adapter.waited_s == 2.0
        assert now_s == 100.0
        assert not profiler.in_step
        now_s = 101.5
        assert profiler.in_step  # so that a session may begin now
        now_s = 103.0
        assert not profiler.in_step  # it did not
        adapter._finder._threads.mine.took_s = 3.0
        assert profiler.in_step  # where steps take so long, no call has returned yet
        heard.end()


def test_an_adapter_that_is_not_attached_is_busy(tmp_path: Path) -> None:
    adapter = JaxAdapter(tmp_path)
    with pytest.raises(TracerBusy):
        adapter.start(tmp_path)
    with pytest.raises(TracerBusy):
        adapter.stop()


def test_a_jax_that_is_too_old_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import api

    hook = api._post_hook_state
    monkeypatch.setattr("jax.__version_info__", (0, 6, 2))
    adapter = JaxAdapter(tmp_path)
    for module in adapter.watches:
        adapter.attach(module, Heard())
    with pytest.raises(TooEarly):
        adapter.start(tmp_path)
    assert api._post_hook_state is hook
    adapter.detach()
    assert len(adapter.problems) == 1
    assert "too old" in adapter.problems[0]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_leaves_everything_to_its_parent(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    product(X).block_until_ready()
    with attached(tmp_path) as (adapter, _):
        adapter.start(tmp_path / "0")
        child = os.fork()
        if not child:
            os._exit(int(adapter._watch.on or adapter._profiler._session is not None))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        product(X).block_until_ready()
        adapter.stop()
    assert any(name.startswith("product/") for name in read_raw(tmp_path).events.name)


def test_a_damaged_session_is_left_out(tmp_path: Path) -> None:
    product(X).block_until_ready()
    with attached(tmp_path) as (adapter, _):
        for number in range(2):
            with session(adapter, tmp_path, number):
                product(X).block_until_ready()
    file = tmp_path / "0" / "session.xplane.pb"
    file.write_bytes(file.read_bytes()[:-100])
    read = read_raw(tmp_path)
    assert len(read.events)
    assert any("Left out" in note for note in read.notes)


def test_a_profile_of_the_program_can_be_imported(tmp_path: Path) -> None:
    from joulemap.frameworks.files import read_files

    product(X).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        for number in range(2):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                product(X).block_until_ready()
    imported = read_files([tmp_path])
    assert imported.framework == "jax"
    assert len(imported.steps) == 2
    assert any(name.startswith("product/") for name in imported.events.name)
