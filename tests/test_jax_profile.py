"""Profiles of JAX: on a CPU as they are made here, and of an H200 from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from joulemap.accounting.fusions import left_whole
from joulemap.frameworks.imported import ImportedTrace, named_share
from joulemap.frameworks.jax.host import host_events
from joulemap.frameworks.jax.kernels import kernel_events
from joulemap.frameworks.jax.naming import Naming
from joulemap.frameworks.jax.profiles import read_profiles
from joulemap.frameworks.xplane.events import Events, Line, Stats
from joulemap.frameworks.xplane.hlo import Modules
from joulemap.frameworks.xplane.plane import Described
from joulemap.frameworks.xplane.space import GPU, read_space
from joulemap.traces import EventTrace

H200 = Path(__file__).parents[2] / "shared" / "data" / "h200"


def kernel_ms(trace: ImportedTrace) -> dict[tuple[str, str], float]:
    events = trace.events.take(trace.events.kind.codes == trace.events.kind.code("kernel"))
    found: dict[tuple[str, str], float] = {}
    for name, phase, start_ns, end_ns in zip(
        events.name, events.phase, events.start_ns, events.end_ns, strict=True
    ):
        key = "/".join(name.split("/")[:2]), phase
        found[key] = found.get(key, 0.0) + (end_ns - start_ns) / 1e6
    return found


def test_a_session_in_which_nothing_lasted_is_empty() -> None:
    """A slice of time may see that a task is handed over to a pool, and nothing of it."""
    names = {1: "ThreadpoolListener::Record", 2: "CommonPjRtBuffer::Await"}
    described = [Described(number, name) for number, name in names.items()]
    plane = SimpleNamespace(described=[*described, Described()], stat_keys={}, stats={})
    none, two = np.zeros(0, np.int64), np.array([5, 9])
    events = Events(
        plane=plane,  # type: ignore[arg-type]
        lines=(Line(1, "python"),),
        line=np.zeros(2, np.int32),
        described=np.array([0, 1], np.int32),
        start_ns=two,
        end_ns=two + np.array([0, 4]),
        stats=Stats(none, none, none, none, none),
    )
    assert len(host_events(events, "0", Naming({}))) == 0


@pytest.mark.external
@pytest.mark.skipif(not H200.is_dir(), reason=f"{H200} is not there")
class TestOnTheH200:
    def test_fusions_are_split_and_nothing_is_lost(self) -> None:
        path = H200 / "jax-ops.xplane.pb"
        split = read_profiles([path])
        whole = replace(split, events=left_whole(split.events, split.program.fusions))
        assert sum(kernel_ms(split).values()) == pytest.approx(sum(kernel_ms(whole).values()), rel=1e-9)
        gpu = read_space(path).events[f"{GPU}0"]
        kernels = sum(gpu.lines[line].name.startswith("Stream") for line in gpu.line.tolist())
        assert list(whole.events.kind).count("kernel") == kernels
        assert len(split.events) > len(whole.events)
        assert named_share(split.events) > 0.99

    @pytest.mark.parametrize("file", ["jax-ops", "jax-commandbuffer"])
    def test_every_layer_has_both_passes(self, file: str) -> None:
        found = kernel_ms(read_profiles([H200 / f"{file}.xplane.pb"]))
        parts = [f"layer_{layer}/{part}" for layer in range(6) for part in ("attention", "ffn")]
        assert all(found[part, phase] > 0 for part in parts for phase in ("forward", "backward"))

    def test_command_buffers_change_no_name(self) -> None:
        """The same program with names of its own and with names that were found again: each layer took the
        same time, up to what two runs differ by."""
        own = kernel_ms(read_profiles([H200 / "jax-ops.xplane.pb"]))
        restored = read_profiles([H200 / "jax-commandbuffer.xplane.pb"])
        assert named_share(restored.events) > 0.99
        found = kernel_ms(restored)
        for key in (key for key, ms in own.items() if ms > 0.5):
            assert found[key] == pytest.approx(own[key], rel=0.1), key
        assert any("CUDA graphs" in note for note in restored.notes)

    def test_every_name_is_found_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Kernels that have names lose them, as in a command buffer, and get the same ones back."""
        space = read_space(H200 / "jax-ops.xplane.pb")
        events = space.events[f"{GPU}0"]
        with_names = kernel_events(events, "GPU:0", "0", Naming(Modules().of(space))).events
        hidden = type(events)(**vars(events))
        real_texts, real_numbers = type(events).texts, type(events).numbers

        def texts(self: Any, key: str) -> Any:
            found = real_texts(self, key)
            return found.mapped(["command_buffer_1"] * len(found.words)) if key == "hlo_op" else found

        def numbers(self: Any, key: str, missing: int = 0) -> Any:
            if key != "correlation_id":
                return real_numbers(self, key, missing)
            order = np.argsort(np.argsort(self.start_ns))
            return order // (len(self) // 5) + 1  # five steps, each a launch

        monkeypatch.setattr(type(events), "texts", texts)
        monkeypatch.setattr(type(events), "numbers", numbers)
        again = kernel_events(hidden, "GPU:0", "0", Naming(Modules().of(space)))
        assert again.of_graphs == 1290
        assert again.unrestored == 0
        assert same(with_names, again.events)


def same(one: EventTrace, other: EventTrace) -> bool:
    return list(one.name) == list(other.name) and list(one.phase) == list(other.phase)
