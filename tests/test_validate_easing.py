"""A GPU at its power limit, whose clocks change with whatever is added."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulemap.traces import PowerTrace
from joulemap.validating.easing import ALIKE_RMS, EASED, FEWEST, LATER, LAW_RMS, Easing
from joulemap.validating.limit import MOST_SPREAD, power_limit_w, remarks
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import Stretch, plain
from joulemap.validating.truth import Truth, truths

from .limited_gpu import (
    BUSY,
    FACTS,
    GPU,
    HIGHEST_MHZ,
    IDLE_W,
    LAWS,
    LIMIT_W,
    OWN,
    SCALE,
    STEP,
    WORK_J,
    WORK_S,
    S,
    at_clock,
    experiment,
    metered,
    recorded,
)


def test_truths_of_eased_steps_are_told_at_the_clocks_of_the_program() -> None:
    stretches, power = experiment()
    easing = Easing.of(metered(power), stretches, WORK_S)
    assert easing is not None
    assert easing.eased_mhz == pytest.approx(HIGHEST_MHZ)
    assert easing.plain_mhz == pytest.approx(OWN * HIGHEST_MHZ)
    assert easing.spread < 1e-6
    asked = (BUSY, stretches, metered(power), IDLE_W)
    found, alike, eased = truths(*asked, easing, LAWS), truths(*asked, easing), truths(*asked)
    never_plain = [one for one in stretches if one.target >= 0 or one.ease]
    assert {one.executions for one in truths(BUSY, never_plain, metered(power)).values()} == {1.0}
    alone, without = experiment(ease=0.0)
    blind = truths(BUSY, alone, Metered.of(without, alone))
    for number, part in STEP.items():
        true_j = at_clock([part], OWN)[1]
        assert abs(found[number].energy_j - true_j) <= 2 * found[number].half_j
        assert found[number].energy_j == pytest.approx(true_j, rel=0.015)
        assert found[number].law == pytest.approx(LAWS[number])
        assert eased[number].energy_j == pytest.approx(part[1], rel=0.04)  # clocks are not known
        assert eased[number].energy_j > 1.03 * true_j
        assert alike[number].energy_j / true_j == pytest.approx(1 / LAWS[number], rel=0.015)
        assert alike[number].law == 1.0
        assert abs(blind[number].energy_j / true_j - 1) > (0.01 if number == 2 else 0.07)
    assert LAWS[0] < 0.985  # so that it makes a difference
    assert min(LAWS[1], LAWS[2]) > 1.04


def test_how_work_goes_with_clocks_is_found_and_its_interval_holds() -> None:
    held = []
    for seed in range(40):
        stretches, power = experiment(2, seed=seed)
        easing = Easing.of(metered(power), stretches, WORK_S)
        assert easing is not None
        assert easing.scale == pytest.approx(SCALE, rel=0.01)  # waits draw more than rests
        assert easing.half < 0.015
        held.append(abs(easing.scale - SCALE) <= easing.half)
    assert np.mean(held) >= 0.9


def test_a_truth_is_less_sure_by_what_is_not_known_of_easing() -> None:
    truth, easing = Truth(2.0, 0.06, 3.0, 5, 0.1), Easing(0.5, 0.02, 1980.0, 1980.0, 0.0)
    assert truth.scaled(easing) == Truth(1.0, pytest.approx(0.05), 3.0, 5, 0.1)
    lower = replace(easing, plain_mhz=1980.0 * np.exp(-0.1))
    assert lower.apart == pytest.approx(0.1)
    alike, own = truth.scaled(lower), truth.scaled(lower, 1.1)
    assert alike == Truth(1.0, pytest.approx(np.hypot(0.05, 1.96 * 0.1 * ALIKE_RMS), rel=1e-4), 3.0, 5, 0.1)
    half_j = 1.1 * np.hypot(0.05, 1.96 * 0.1 * LAW_RMS)
    assert own == Truth(pytest.approx(1.1), pytest.approx(half_j, rel=1e-4), 3.0, 5, 0.1, pytest.approx(1.1))
    unseen = replace(lower, scale=np.exp(-0.06), eased_mhz=0.0)
    assert unseen.apart == pytest.approx(0.1)


def test_too_few_stretches_of_a_kind_tell_nothing_of_easing() -> None:
    alone, without = experiment(ease=0.0)
    assert Easing.of(metered(without), alone, WORK_S) is None
    assert Easing.of(metered(without), [], WORK_S) is None
    stretches, power = experiment()
    for ease in (0.0, EASED):
        others = [one for one in stretches if one.target >= 0 or one.ease != ease]
        of_kind = plain(stretches, ease)
        assert Easing.of(metered(power), others + of_kind[: FEWEST - 1], WORK_S) is None
        assert Easing.of(metered(power), others + of_kind[:FEWEST], WORK_S) is not None
        late = replace(of_kind[0], start_ns=stretches[-1].end_ns, end_ns=stretches[-1].end_ns + S)
        assert Easing.of(metered(power), [*others, *of_kind[: FEWEST - 1], late], WORK_S) is None
    assert Easing.of(Metered(power), stretches, WORK_S) is None  # nothing is known of rests


def test_work_takes_more_time_at_lower_clocks_and_more_of_what_is_drawn_at_rest() -> None:
    stretches, power = experiment()
    easing = Easing.of(metered(power), stretches, WORK_S)
    assert easing is not None
    silent = Easing.of(metered(power), [replace(one, clock_mhz=0.0) for one in stretches], WORK_S)
    assert silent is not None
    assert easing.scale - silent.scale == pytest.approx(
        IDLE_W * WORK_S * (OWN**-LATER - 1) / WORK_J, rel=0.05
    )


def test_a_host_that_is_slow_at_times_changes_nothing_of_easing() -> None:
    """Some stretches last longer than others, and draw what a GPU does that waits."""
    stretches, power = experiment()
    slow = [replace(one, end_ns=one.start_ns + round(1.4 * one.seconds * S)) for one in stretches]

    class Slow(Metered):
        def step_j(self, stretch: Stretch) -> float:
            usual = stretches[[one.start_ns for one in stretches].index(stretch.start_ns)]
            return super().step_j(usual) + IDLE_W * (stretch.seconds - usual.seconds) / stretch.steps

    usual = Easing.of(metered(power), stretches, WORK_S)
    assert usual is not None
    for every in (1, 2, 3):
        mixed = [
            two if number % every == 0 else one
            for number, (one, two) in enumerate(zip(stretches, slow, strict=True))
        ]
        found = Easing.of(Slow(power, IDLE_W), mixed[:-1], WORK_S)
        assert found is not None
        assert found.scale == pytest.approx(usual.scale, rel=1e-3)


def test_one_stretch_that_is_far_off_does_not_count() -> None:
    stretches, power = experiment()
    for ease in (0.0, EASED):
        one = plain(stretches, ease)[1]
        within = (power.edges_ns[:-1] >= one.start_ns) & (power.edges_ns[1:] <= one.end_ns)
        disturbed = PowerTrace(GPU, power.edges_ns, power.energy_j * np.where(within, 1.5, 1.0))
        easing = Easing.of(metered(disturbed), stretches, WORK_S)
        assert easing is not None
        assert easing.scale == pytest.approx(SCALE, abs=easing.half)
        assert easing.half < 0.015


def test_blocks_at_other_clocks_than_the_steps_between_them_show() -> None:
    stretches, power = experiment()
    slower = [replace(one, clock_mhz=one.clock_mhz * (0.94 if one.target == 0 else 1)) for one in stretches]
    easing, silent = (
        Easing.of(metered(power), some, WORK_S)
        for some in (slower, [replace(one, clock_mhz=0.0) for one in stretches])
    )
    assert easing is not None
    assert easing.spread == pytest.approx(0.06 / len(STEP))
    assert easing.eased_mhz == pytest.approx(HIGHEST_MHZ)
    assert silent is not None
    assert (silent.eased_mhz, silent.plain_mhz, silent.spread) == (0.0, 0.0, 0.0)
    assert silent.scale == pytest.approx(easing.scale, rel=0.01)


def test_it_is_said_where_plain_steps_draw_all_that_the_gpu_may_and_how_truths_are_kept_from_it(
    tmp_path: Path,
) -> None:
    limited, silent = recorded(tmp_path / "r.joulemap", FACTS), recorded(tmp_path / "s.joulemap", [])
    assert (power_limit_w(limited, "GPU:0"), power_limit_w(limited, "GPU:1")) == (LIMIT_W, np.inf)
    stretches, power = experiment()
    easing = Easing(0.823, 0.0042, 1980.0, 1627.4, 0.0)
    held, eased = remarks(limited, metered(power), stretches, easing)
    assert held.startswith("GPU:0 drew 100 % of the 700 W that it may: ")
    assert "waited after each target, at 1980 MHz instead of 1627." in eased
    assert "takes 0.823 ± 0.004 of what it takes there, and so do the truths." in eased
    assert remarks(silent, metered(power), stretches, easing)[-1] == eased
    (_, own) = remarks(limited, metered(power), stretches, easing, with_laws=True)
    assert own == eased.removesuffix(".") + ", each as its cost goes with clocks."
    (_, unseen) = remarks(limited, metered(power), stretches, replace(easing, eased_mhz=0.0))
    assert "waited after each target. At the program's own clocks" in unseen
    (_, few) = remarks(limited, metered(power), stretches, None)
    assert few.startswith("Truths are those of steps in which the GPU waits after each target")
    assert few.endswith("Give it a larger --budget.")
    assert remarks(silent, metered(power), stretches, None) == [few]
    below = Metered(PowerTrace(GPU, power.edges_ns, 0.8 * power.energy_j))
    (near, also) = remarks(limited, below, stretches, easing)
    assert near.startswith("GPU:0 drew ")
    assert near.endswith("of the 700 W that it may, to which executions that are added may take it.")
    assert also == eased


def test_it_is_said_where_clocks_of_blocks_still_differ(tmp_path: Path) -> None:
    limited = recorded(tmp_path / "r.joulemap", FACTS)
    stretches, power = experiment()
    easing = Easing(0.823, 0.004, 1980.0, 1627.0, MOST_SPREAD)
    assert len(remarks(limited, metered(power), stretches, easing)) == 2
    (_, _, differ) = remarks(limited, metered(power), stretches, replace(easing, spread=0.024))
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
