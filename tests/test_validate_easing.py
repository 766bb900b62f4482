"""A GPU at its power limit, whose clocks change with whatever is added."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulemap.traces import PowerTrace
from joulemap.validating.easing import EASED, FEWEST, TWICE, Easing
from joulemap.validating.limit import MOST_SPREAD, power_limit_w, remarks
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import plain
from joulemap.validating.truth import Truth, truths

from .limited_gpu import BUSY, FACTS, GPU, HIGHEST_MHZ, LIMIT_W, OWN, STEP, S, at_clock, experiment, recorded


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
