"""A GPU at its power limit, whose clocks change with whatever is added, and one that rests at borders."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.recorder.experiment import EASED_STEP, ORDERS, PLAIN, REFERENCE, REPEATING, TARGETS
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace
from joulemap.validating.easing import EASED, FEWEST, TWICE, Easing
from joulemap.validating.limit import MOST_SPREAD, power_limit_w, remarks
from joulemap.validating.metered import Metered
from joulemap.validating.plan import AS_IT_IS, EASED_EXTRA, LONGER, REFERENCES, WAITS_LONGER, Wanted, times
from joulemap.validating.referee import Referee
from joulemap.validating.stretch import Stretch, clocked, plain
from joulemap.validating.target import Target
from joulemap.validating.truth import Truth, truths

GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000
LIMIT_W, IDLE_W, WAITING_W, HIGHEST_MHZ = 700.0, 120.0, 250.0, 1980.0
FACTS = [(0, "GPU:0 power_limit_w", LIMIT_W)]
STEP = {0: (0.030, 30.0), 1: (0.010, 4.0), 2: (0.008, 5.0)}
"""Seconds and joules of three operations at the highest clocks: together 812 W."""
STEPS = 40
BUSY = dict.fromkeys(STEP, 0.0)
BLOCKS = [*((number, EASED) for number in STEP), *[(REFERENCE, 0.0), (REFERENCE, TWICE)] * REFERENCES]
"""What a round has: a target, and how much the GPU waits."""


def at_clock(parts: Iterable[tuple[float, float]], clock: float) -> tuple[float, float]:
    """Seconds and joules of some operations at a part of the highest clocks."""
    seconds, joules = (sum(column) for column in zip(*parts, strict=True))
    return seconds * clock**-0.7, joules * clock**0.9


def at_limit(parts: Iterable[tuple[float, float]], wait_s: float = 0.0) -> float:
    """The part of the highest clocks at which the limit is just kept."""
    parts, low, high = list(parts), 0.3, 1.0
    for _ in range(60):
        clock = (low + high) / 2
        seconds, joules = at_clock(parts, clock)
        draws_w = (joules + wait_s * WAITING_W) / (seconds + wait_s)
        low, high = (clock, high) if draws_w < LIMIT_W else (low, clock)
    return clock


OWN = at_limit(STEP.values())
"""The program's own clocks."""
OWN_S, _ = at_clock(STEP.values(), OWN)


def experiment(rounds: int = 4, ease: float = EASED, seed: int = 0) -> tuple[list[Stretch], PowerTrace]:
    """Each operation twice instead of once, in blocks among steps in which nothing is repeated; all of them
    eased, with the blocks that they refer to, or none. In waits more is drawn than at rest."""
    stretches, edges, joules, now_ns = [], [0], [], 0
    random = np.random.default_rng(seed)
    blocks = BLOCKS if ease else [(number, 0.0) for number in STEP]
    order = [one for _ in range(rounds) for block in blocks for one in (block, (PLAIN, ease))]
    for target, waits in [(PLAIN, 0.0), *order]:
        parts = [*STEP.values(), *([STEP[target]] if target in STEP else [])]
        wait_s = waits * OWN_S
        clock = at_limit(parts, wait_s)
        seconds, energy_j = at_clock(parts, clock)
        seconds, energy_j = seconds + wait_s, energy_j * random.normal(1, 0.001) + wait_s * WAITING_W
        end_ns = now_ns + round(STEPS * seconds * S)
        extra, mhz = STEPS if target in STEP else 0, clock * HIGHEST_MHZ
        seen = dict.fromkeys(STEP, STEPS)
        stretches.append(Stretch(target, now_ns, end_ns, STEPS, seen, extra, ease=waits, clock_mhz=mhz))
        edges += np.linspace(now_ns, end_ns, 21)[1:].astype(int).tolist()
        joules += [STEPS * energy_j / 20] * 20
        now_ns = end_ns
    return stretches, PowerTrace(GPU, edges, joules)


def test_truths_of_eased_steps_are_told_at_the_clocks_of_the_program() -> None:
    stretches, power = experiment()
    metered = Metered.of(power, stretches)
    easing = Easing.of(metered, stretches)
    assert easing is not None
    assert easing.eased_mhz == pytest.approx(HIGHEST_MHZ)
    assert easing.plain_mhz == pytest.approx(OWN * HIGHEST_MHZ)
    assert easing.spread < 1e-6
    found, eased = (truths(BUSY, stretches, metered, easing=one) for one in (easing, None))
    never_plain = [one for one in stretches if one.target >= 0 or one.ease]
    assert {one.executions for one in truths(BUSY, never_plain, metered).values()} == {1.0}
    alone, without = experiment(ease=0.0)
    blind = truths(BUSY, alone, Metered.of(without, alone))
    for number, part in STEP.items():
        true_j = at_clock([part], OWN)[1]
        assert abs(found[number].energy_j - true_j) <= 2 * found[number].half_j
        assert found[number].energy_j == pytest.approx(true_j, rel=0.03)
        assert eased[number].energy_j == pytest.approx(part[1], rel=0.03)
        assert eased[number].energy_j > 1.05 * true_j
        assert abs(blind[number].energy_j / true_j - 1) > (0.01 if number == 2 else 0.07)


def test_how_work_goes_with_clocks_is_found_and_its_interval_holds() -> None:
    held = []
    for seed in range(40):
        stretches, power = experiment(2, seed=seed)
        easing = Easing.of(Metered.of(power, stretches), stretches)
        assert easing is not None
        assert easing.scale == pytest.approx(OWN**0.9, rel=0.01)
        assert easing.half < 0.02
        held.append(abs(easing.scale - OWN**0.9) <= easing.half)
    assert np.mean(held) >= 0.9


def test_a_truth_is_less_sure_by_what_is_not_known_of_easing() -> None:
    scaled = Truth(2.0, 0.06, 3.0, 5, 0.1).scaled(Easing(0.5, 0.02, 0.0, 0.0, 0.0))
    assert scaled == Truth(1.0, pytest.approx(0.05), 3.0, 5, 0.1)


def test_too_few_stretches_of_a_kind_tell_nothing_of_easing() -> None:
    alone, without = experiment(ease=0.0)
    assert Easing.of(Metered.of(without, alone), alone) is None
    assert Easing.of(Metered.of(without, []), []) is None
    stretches, power = experiment()
    metered = Metered.of(power, stretches)
    for ease in (0.0, EASED, TWICE):
        others = [one for one in stretches if one.target >= 0 or one.ease != ease]
        of_kind = plain(stretches, ease)
        assert Easing.of(metered, others + of_kind[: FEWEST - 1]) is None
        assert Easing.of(metered, others + of_kind[:FEWEST]) is not None
        late = replace(of_kind[0], start_ns=stretches[-1].end_ns, end_ns=stretches[-1].end_ns + S)
        assert Easing.of(metered, [*others, *of_kind[: FEWEST - 1], late]) is None
    first = experiment(1)
    assert Easing.of(Metered.of(first[1], first[0]), first[0]) is None


def test_one_stretch_that_is_far_off_does_not_count() -> None:
    stretches, power = experiment()
    for ease in (0.0, EASED, TWICE):
        one = plain(stretches, ease)[1]
        within = (power.edges_ns[:-1] >= one.start_ns) & (power.edges_ns[1:] <= one.end_ns)
        disturbed = PowerTrace(GPU, power.edges_ns, power.energy_j * np.where(within, 1.5, 1.0))
        easing = Easing.of(Metered.of(disturbed, stretches), stretches)
        assert easing is not None
        assert easing.scale == pytest.approx(OWN**0.9, abs=easing.half)
        assert easing.half < 0.01


def test_blocks_at_other_clocks_than_the_steps_between_them_show() -> None:
    stretches, power = experiment()
    metered = Metered.of(power, stretches)
    slower = [replace(one, clock_mhz=one.clock_mhz * (0.94 if one.target == 0 else 1)) for one in stretches]
    easing, silent = (
        Easing.of(metered, some) for some in (slower, [replace(one, clock_mhz=0.0) for one in stretches])
    )
    assert easing is not None
    assert easing.spread == pytest.approx(0.06 / len(STEP))
    assert easing.eased_mhz == pytest.approx(HIGHEST_MHZ)
    assert silent == replace(easing, eased_mhz=0.0, plain_mhz=0.0, spread=0.0)


def test_it_is_said_where_plain_steps_draw_all_that_the_gpu_may_and_how_truths_are_kept_from_it(
    tmp_path: Path,
) -> None:
    limited, silent = recorded(tmp_path / "r.joulemap", FACTS), recorded(tmp_path / "s.joulemap", [])
    assert (power_limit_w(limited, "GPU:0"), power_limit_w(limited, "GPU:1")) == (LIMIT_W, np.inf)
    stretches, power = experiment()
    metered = Metered.of(power, stretches)
    easing = Easing(0.823, 0.0042, 1980.0, 1627.4, 0.0)
    held, eased = remarks(limited, metered, stretches, easing)
    assert held.startswith("GPU:0 drew 100 % of the 700 W that it may: ")
    assert "waited after each target, at 1980 MHz instead of 1627." in eased
    assert "takes 0.823 ± 0.004 of what it takes there, and so do the truths." in eased
    assert remarks(silent, metered, stretches, easing)[-1] == eased
    (_, unseen) = remarks(limited, metered, stretches, replace(easing, eased_mhz=0.0))
    assert "waited after each target. At the program's own clocks" in unseen
    (_, few) = remarks(limited, metered, stretches, None)
    assert few.startswith("Truths are those of steps in which the GPU waits after each target")
    assert few.endswith("Give it a larger --budget.")
    assert remarks(silent, metered, stretches, None) == [few]
    below = Metered(PowerTrace(GPU, power.edges_ns, 0.8 * power.energy_j))
    (near, also) = remarks(limited, below, stretches, easing)
    assert near.startswith("GPU:0 drew ")
    assert near.endswith("of the 700 W that it may, to which executions that are added may take it.")
    assert also == eased


def test_it_is_said_where_clocks_of_blocks_still_differ(tmp_path: Path) -> None:
    limited = recorded(tmp_path / "r.joulemap", FACTS)
    stretches, power = experiment()
    metered = Metered.of(power, stretches)
    easing = Easing(0.823, 0.004, 1980.0, 1627.0, MOST_SPREAD)
    assert len(remarks(limited, metered, stretches, easing)) == 2
    (_, _, differ) = remarks(limited, metered, stretches, replace(easing, spread=0.024))
    assert differ.startswith("Clocks of blocks still differ by 2.4 % from those of the steps between: ")


def test_a_gpu_that_was_not_eased_is_spoken_of_only_at_its_limit(tmp_path: Path) -> None:
    limited, silent = recorded(tmp_path / "r.joulemap", FACTS), recorded(tmp_path / "s.joulemap", [])
    stretches, power = experiment(ease=0.0)
    (held, unknown) = remarks(limited, Metered(power), stretches, None)
    assert held.startswith("GPU:0 drew 100 % of the 700 W that it may: ")
    assert unknown == (
        "So the truth of what draws much may come out too low, and that of what draws little too high."
    )
    half = Metered(PowerTrace(GPU, power.edges_ns, power.energy_j / 2))
    assert remarks(limited, half, stretches, None) == []
    assert remarks(silent, Metered(power), stretches, None) == []
    assert remarks(limited, Metered(power), [], None) == []


def resting(seed: int, pause_s: float) -> tuple[list[Stretch], PowerTrace, float]:
    """Steps of 58 ms with 20 ms of work in them, and rests between stretches: what one costs above rest."""
    random = np.random.default_rng(seed)
    grid_ns = 1_000_000
    watts, stretches = [IDLE_W] * 300, []
    for _ in range(12):
        start = len(watts)
        for _ in range(14):
            length = round(random.normal(58, 2))
            watts += [600.0] * 20 + [IDLE_W] * (length - 20)
        stretches.append(Stretch(PLAIN, start * grid_ns, len(watts) * grid_ns, 14, {}, 0, pause_s=pause_s))
        watts += [IDLE_W] * round(1e3 * pause_s)
    watts += [IDLE_W] * 300
    edges = np.arange(round(random.uniform(0, 100)), len(watts), 100)
    drawn = np.add.reduceat(np.array(watts) * 1e-3, edges)[:-1]
    return stretches, PowerTrace(GPU, edges * grid_ns, drawn), 20e-3 * (600.0 - IDLE_W)


def test_rests_at_borders_tell_what_whole_steps_drew() -> None:
    """Without them a meter's interval begins and ends somewhere within a step."""
    for seed in range(5):
        stretches, power, above_j = resting(seed, 0.15)
        metered = Metered.of(power, stretches)
        assert metered.rest_w == pytest.approx(IDLE_W)
        found = [_above_j(metered, one) for one in plain(stretches)]
        assert found == pytest.approx([above_j] * len(stretches), rel=1e-6)
        blind = [_above_j(Metered(power), one) for one in plain(stretches)]
        assert np.std(blind) > 0.01 * above_j


def _above_j(metered: Metered, stretch: Stretch) -> float:
    return (metered.energy_j(stretch) - IDLE_W * stretch.seconds) / stretch.steps


@pytest.mark.parametrize("pause_s", [0.0, 0.03, 0.15])
def test_power_that_is_cut_at_borders_has_the_same_energy(pause_s: float) -> None:
    """And each stretch has its own: shared by time, some of it would be the rest's."""
    for seed in range(5):
        stretches, power, _ = resting(seed, pause_s)
        metered = Metered(power, IDLE_W)
        cut = metered.refined(stretches)
        assert cut.total_j == pytest.approx(power.total_j, rel=1e-12)
        assert set(power.edges_ns[[0, -1]]) <= set(cut.edges_ns)
        between = [one for one in stretches if metered._between_rests_j(one) is not None]
        assert bool(between) or pause_s < 0.1
        assert pause_s or not between
        for one in between:
            assert cut.energy_between(one.start_ns, one.end_ns) == pytest.approx(metered.energy_j(one))
        if pause_s > 0.1:
            blind_j, own_j = (
                sum(trace.energy_between(one.start_ns, one.end_ns) for one in stretches)
                for trace in (power, cut)
            )
            assert blind_j < 0.98 * own_j
    marked = PowerTrace(GPU, power.edges_ns, power.energy_j, gap=np.arange(len(power)) == 5)
    cut = Metered(marked, IDLE_W).refined(stretches)
    inside = (cut.edges_ns[:-1] >= power.edges_ns[5]) & (cut.edges_ns[:-1] < power.edges_ns[6])
    assert cut.gap.tolist() == inside.tolist()
    assert Metered(power).refined(stretches).energy_j.tolist() == power.energy_j.tolist()
    assert not len(Metered(PowerTrace(GPU, [], []), IDLE_W).refined(stretches))


def test_a_rest_has_no_more_than_was_metered() -> None:
    """A step that begins just before an update, by a meter that is a little off."""
    one = Stretch(PLAIN, 199_000_000, 301_000_000, 1, {}, 0, pause_s=0.15)
    edges = np.arange(0, 600_000_000, 100_000_000)
    cut = Metered(PowerTrace(GPU, edges, [12.0, 11.0, 40.0, 12.1, 12.0]), IDLE_W).refined([one])
    assert cut.edges_ns.tolist() == sorted([*edges.tolist(), one.start_ns, one.end_ns])
    assert cut.energy_j == pytest.approx([12.0, 11.0, 0.0, 40.0, 0.22, 11.88, 12.0])


def test_a_rest_without_an_update_of_the_meter_tells_nothing() -> None:
    stretches, power, _ = resting(0, 0.03)
    assert Metered.of(power, stretches).rest_w == 0.0
    metered = Metered(power, IDLE_W)
    missed = [one for one in stretches if metered._between_rests_j(one) is None]
    assert missed
    assert [metered.energy_j(one) for one in missed] == [Metered(power).energy_j(one) for one in missed]


def recorded(path: Path, facts: list[tuple[int, str, float]]) -> Recording:
    with RecordingWriter.create(path, RecordingInfo()) as writer:
        if facts:
            columns = [list(column) for column in zip(*facts, strict=True)]
            writer.put_table("facts", pa.table(dict(zip(("t_ns", "name", "value"), columns, strict=True))))
    return Recording.open(path)


def broken() -> Recording:
    """As while it is being written."""
    raise InputError("It is not whole.")


PERIOD_S = 0.1
MM = Target(0, "operation", "mm", "mm", (), frozenset(), 0.5, 0.03, 0.01)
OTHERS = (
    Target(1, "operation", "gelu", "gelu", (), frozenset(), 0.3, 0.02, 0.01),
    Target(2, "operation", "mul_", "mul_", (), frozenset(), 0.1, 0.01, 0.01),
    Target(3, "module", "net", "", (), frozenset(), 0.9, 0.05),
)


def drawn(watts: float, seconds: float = 10.0) -> PowerTrace:
    """The same power all the time."""
    edges = np.arange(0, seconds + PERIOD_S / 2, PERIOD_S)
    return PowerTrace(GPU, (edges * S).astype(int), np.full(len(edges) - 1, watts * PERIOD_S))


def a_referee(folder: Path, facts: list[tuple[int, str, float]]) -> Referee:
    """Before the first block: it has seen plain steps of 50 ms for ten seconds."""
    folder.mkdir()
    recorded(folder / "r.joulemap", facts)
    referee = Referee(folder / "r.joulemap", folder, Wanted(), print)
    referee.label, referee._device, referee.targets = "train", "GPU:0", [MM, *OTHERS]
    referee.refused[2] = "it writes into what it is given"
    referee._steps = [(start, start + S // 20, "train") for start in range(0, 10 * S, S // 20)]
    return referee


def orders(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / ORDERS).read_text().splitlines()]


@pytest.mark.parametrize(
    ("part", "busy", "facts", "eases"),
    [
        (0.65, 1.0, FACTS, True),
        (0.99, 0.95, FACTS, True),
        (0.55, 1.0, FACTS, False),
        (0.99, 0.8, FACTS, False),
        (0.99, 1.0, [], False),
        (0.99, 1.0, [(0, "GPU:1 power_limit_w", LIMIT_W)], False),
    ],
)
def test_a_referee_eases_a_gpu_that_draws_much_of_what_it_may_and_does_not_wait(
    tmp_path: Path, part: float, busy: float, facts: list[tuple[int, str, float]], eases: bool
) -> None:
    referee, power = a_referee(tmp_path / "experiment", facts), drawn(part * LIMIT_W)
    referee.busy = busy
    references = [AS_IT_IS, WAITS_LONGER] if eases else []
    assert referee._references(power) == references
    referee._order(MM, power)
    (order,) = orders(tmp_path / "experiment")
    assert (order["ease"], order["rest_ease"]) == ((EASED, EASED) if eases else (0.0, 0.0))
    assert order["pause_s"] == (pytest.approx(0.15) if eases or busy < 0.9 else 0.0)
    assert referee._references(drawn(0.3 * LIMIT_W if eases else LIMIT_W)) == references


def test_a_referee_that_cannot_read_the_limit_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks are eased, or none."""
    referee, power = a_referee(tmp_path / "experiment", FACTS), drawn(0.99 * LIMIT_W)
    whole, tried = referee._recording, list[int]()

    def at_the_third() -> Recording:
        tried.append(1)
        return whole() if len(tried) > 2 else broken()

    monkeypatch.setattr("joulemap.validating.referee.LOOK_S", 0.0)
    monkeypatch.setattr(referee, "_recording", at_the_third)
    assert referee._references(power) == [AS_IT_IS, WAITS_LONGER]
    never, tried = a_referee(tmp_path / "never", FACTS), []
    monkeypatch.setattr(never, "_recording", broken)
    assert never._references(power) == []
    monkeypatch.setattr(never, "_recording", whole)
    assert never._references(power) == []


def test_orders_say_how_long_the_gpu_waits_in_a_block_and_after_it(tmp_path: Path) -> None:
    referee, power = a_referee(tmp_path / "experiment", FACTS), drawn(0.99 * LIMIT_W)
    referee._references(power)
    for target in (MM, AS_IT_IS, WAITS_LONGER, OTHERS[-1]):
        referee._order(target, power)
    assert referee.blocks == 4
    found = orders(tmp_path / "experiment")
    assert [one["target"] for one in found] == [0, REFERENCE, REFERENCE, 3]
    assert [one["times"] for one in found] == [times(MM, Wanted(), EASED_EXTRA), 1, 1, 2]
    assert times(MM, Wanted(), EASED_EXTRA) > times(MM, Wanted())
    assert [one["ease"] for one in found] == [EASED, 0.0, TWICE, EASED]
    assert [one["rest_ease"] for one in found] == [EASED] * 4
    assert [one["pause_s"] for one in found] == pytest.approx([0.15] * 4)
    wait_s = 0.05 * (MM.share + OTHERS[0].share)
    eased_s, mm_s, net_s = 0.05 + wait_s, 0.05 * MM.share, 0.05 * OTHERS[-1].share
    steps_s = [eased_s + 2 * mm_s, 0.05, eased_s + wait_s, eased_s + net_s]
    assert [one["steps"] for one in found] == [
        longer * round(1 / seconds) for longer, seconds in zip((1, LONGER, LONGER, 1), steps_s, strict=True)
    ]
    assert [one["rest"] for one in found] == [round(0.8 / eased_s)] * 4


def test_a_referee_knows_a_level_by_the_steps_between_blocks_as_these_are(tmp_path: Path) -> None:
    stretches, power = experiment(2)
    referee = a_referee(tmp_path / "experiment", FACTS)
    referee.stretches = stretches
    seconds, joules = at_clock(STEP.values(), 1.0)
    eased_w = (joules + OWN_S * WAITING_W) / (seconds + OWN_S)
    assert referee._levels_w(power) == pytest.approx([LIMIT_W] * (1 + 2 * REFERENCES), rel=0.005)
    referee._ease = EASED
    assert referee._levels_w(power) == pytest.approx([eased_w] * len(plain(stretches, EASED)), rel=0.005)
    assert referee._step_s() == pytest.approx(OWN_S)
    after_ns = next(one.end_ns for one in reversed(stretches) if one.target != PLAIN)
    labels = ("train" + EASED_STEP, "train", "test", "train" + REPEATING)
    told = [(after_ns + number, after_ns + number + 1, label) for number, label in enumerate(labels)]
    referee._steps = [(after_ns - 1, after_ns, "train"), *told]
    assert referee._plain_steps() == [(a, b) for a, b, _ in told[:2]]


def test_stretches_are_told_their_clocks_by_the_monitor(tmp_path: Path) -> None:
    stretches, _ = experiment(1)
    clocks = [((one.start_ns + one.end_ns) // 2, "GPU:0 sm_clock_mhz", one.clock_mhz) for one in stretches]
    recording = recorded(tmp_path / "r.joulemap", clocks)
    assert clocked([replace(one, clock_mhz=0.0) for one in stretches], recording, "GPU:0") == stretches


def test_a_referee_knows_how_much_of_a_step_a_gpu_works(tmp_path: Path) -> None:
    ms = S // 1000
    kernel = EventTrace.from_columns(name=["net/mm"], device="GPU:0", start_ns=[0], end_ns=[20 * ms])
    for step_ms, waits in ((60, True), (21, False)):
        referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(), print)
        referee.label, referee._traced = "train", 1
        referee._untraced = [(0, step_ms * ms, "train"), (0, ms, "test"), (0, step_ms * ms, "train")]
        referee.busy = referee._busy("GPU:0", kernel)
        assert referee.busy == pytest.approx(20 / step_ms)
        assert referee.waits == waits
        assert referee._busy("CPU", kernel) == 1.0


def test_a_referee_tells_the_program_how_long_its_targets_take(tmp_path: Path) -> None:
    referee = a_referee(tmp_path / "experiment", FACTS)
    referee._tell("GPU:0")
    said = json.loads((tmp_path / "experiment" / TARGETS).read_text())
    assert (said["device"], said["label"], said["stop"]) == ("cuda", "train", False)
    assert [(one["target"], one["each_s"]) for one in said["operations"]] == [(0, 0.01), (1, 0.01), (2, 0.01)]
    assert said["modules"] == [{"target": 3, "name": "net"}]
