"""What steps drew, by a meter that updates less often than they end: a GPU that rests at borders."""

import numpy as np
import pytest

from joulemap.recorder.experiment import PLAIN
from joulemap.traces import PowerTrace
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import Stretch, plain

from .limited_gpu import GPU, IDLE_W


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
