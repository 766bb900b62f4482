"""What can be asked of a footprint: depth, phases, intervals, net, trees."""

import numpy as np
import pytest

from joulemap.accounting import attribute
from joulemap.accounting.baseline import quiet_baseline
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.traces import EventTrace, PowerTrace, Steps

S = 1_000_000_000
GPU = Domain("GPU:0", "GPU:0", update_period_s=0.1)


def training(steps=20, noise=0.1, seed=0, traced=True):
    """Steps of one second: half a second forward, 0.3 s backward, the rest idle, at about 100 W."""
    rng = np.random.default_rng(seed)
    start = np.arange(steps) * S
    events = EventTrace.from_columns(
        name=["m/a/mm", "m/a/mm", "m/b/add"] * steps,
        device="GPU:0",
        start_ns=np.column_stack((start, start + S // 2, start + 7 * S // 10)).ravel(),
        end_ns=np.column_stack((start + S // 2, start + 7 * S // 10, start + 8 * S // 10)).ravel(),
        phase=["forward", "backward", "backward"] * steps,
        step=np.repeat(np.arange(steps), 3),
    )
    edges = np.arange(steps * 10 + 1) * (S // 10)
    watts = np.repeat(100 * (1 + noise * rng.standard_normal(steps)), 10)
    power = PowerTrace(GPU, edges, watts / 10)
    return events, power, Steps.from_columns(start_ns=start, end_ns=start + S, traced=traced)


def test_rollups_add_up_and_keep_what_they_are_told():
    footprint = attribute(*training()[:2])
    assert len(footprint) == 3
    modules = footprint.at(2)
    assert sorted(modules.name) == ["m/a", "m/a", "m/b"]
    phases = footprint.at(1).rollup(keep=("phase",))
    assert set(phases.phase) == {"forward", "backward"}
    assert set(phases.domain) == {"GPU:0"}
    assert phases.attributed_j == pytest.approx(footprint.attributed_j)
    assert footprint.under("m/b").attributed_j == pytest.approx(footprint.where(op="add").attributed_j)
    with pytest.raises(InputError, match="no column"):
        footprint.rollup(keep=("colour",))
    with pytest.raises(InputError, match="no column"):
        footprint.where(colour="red")
    with pytest.raises(InputError, match="depth"):
        footprint.at(0)


def test_the_interval_holds_the_spread_over_steps():
    events, power, steps = training(steps=60, noise=0.2)
    footprint = attribute(events, power, steps=steps).rollup(keep=())
    total, mm = footprint.energy_j.sum(), footprint.energy_j.max()
    spread = 0.2 / 60**0.5
    half = (footprint.high_j - footprint.low_j).max() / 2
    assert half / mm == pytest.approx(1.96 * spread, rel=0.6)
    assert footprint.has_spread.all()
    assert total == pytest.approx(footprint.attributed_j)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """The truth is the expected energy of all steps; 95 % intervals should hold it in about 95 % of runs."""
    held = 0
    for seed in range(200):
        events, power, steps = training(steps=27, noise=0.3, seed=seed)
        row = attribute(events, power, steps=steps).rollup(keep=()).under("m/a")
        held += bool(row.low_j[0] <= 27 * 70 <= row.high_j[0])
    assert 180 <= held <= 199


def test_one_step_has_no_spread_but_the_meter_s_resolution():
    events, power, steps = training(steps=1)
    footprint = attribute(events, power, steps=steps)
    assert not footprint.has_spread.any()
    row = footprint.rollup(keep=()).under("m/b")
    # 0.1 s at a counter of 0.1 s: an rms of 0.41 of the energy, 95 % within 0.8 of it.
    assert row.high_j[0] - row.energy_j[0] == pytest.approx(0.8 * row.energy_j[0], rel=0.01)
    assert [record["spread"] for record in footprint.to_records()] == [False] * 3


def test_net_is_above_the_baseline_and_still_adds_up():
    events, power, steps = training(noise=0.0)
    footprint = attribute(events, power, steps=steps)
    net = footprint.net({"GPU:0": 40.0}).check()
    assert net.attributed_j == pytest.approx(20 * 0.8 * 60)
    assert net.idle_j == pytest.approx(20 * 0.2 * 60)
    assert net.accounts[0].baseline_j == pytest.approx(20 * 40)
    with pytest.raises(InputError, match="no idle baseline"):
        footprint.net({})


def test_steps_are_net_too():
    events, power, steps = training(noise=0.0)
    net = attribute(events, power, steps=steps).net({"GPU:0": 40.0})
    assert net.accounts[0].step_j.tolist() == pytest.approx([60.0] * 20)


@pytest.mark.parametrize("watts", [-5.0, float("nan"), 1e9])
def test_a_baseline_must_be_a_power_that_an_idle_device_draws(watts):
    with pytest.raises(InputError, match="cannot be the idle baseline"):
        attribute(*training()[:2]).net({"GPU:0": watts})


def test_the_operation_is_all_where_there_are_several():
    rows = attribute(*training()[:2]).at(1).to_records()
    assert {row["phase"]: row["op"] for row in rows} == {"forward": "mm", "backward": "all"}


def test_a_row_in_two_of_four_steps_has_a_spread():
    events, power, steps = training(steps=4)
    footprint = attribute(events.take(np.arange(12) < 6), power, steps=steps)
    assert footprint.has_spread.all()


def test_net_keeps_the_uncertainty_of_gross():
    events, power, steps = training(noise=0.3)
    gross = attribute(events, power, steps=steps).rollup(keep=())
    net = attribute(events, power, steps=steps).net({"GPU:0": 90.0}).rollup(keep=())
    assert (net.high_j - net.energy_j).tolist() == pytest.approx((gross.high_j - gross.energy_j).tolist())
    below = attribute(events, power, steps=steps).net({"GPU:0": 150.0})
    assert (below.low_j < below.energy_j).all()


def test_net_of_projected_steps_adds_up():
    traced = [True, True, False, False] * 5
    events, power, steps = training(traced=traced)
    keep = np.repeat(np.array(traced), 3)
    footprint = attribute(events.take(keep), power, steps=steps)
    assert footprint.net({"GPU:0": 40.0}).accounts[0].baseline_j == pytest.approx(20 * 40)


def test_the_baseline_is_read_off_quiet_intervals():
    edges = np.arange(41) * S
    watts = np.full(40, 80.0)
    watts[10:20] = 500.0
    watts[20] = 200.0  # the sensor lags
    watts[35:] = 600.0  # another program, after ours was recorded
    power = PowerTrace(GPU, edges, watts)
    events = EventTrace.from_columns(name=["k"], device="GPU:0", start_ns=[10 * S], end_ns=[20 * S])
    baseline = quiet_baseline(power, events, window_ns=(0, 35 * S))
    assert baseline is not None
    assert baseline.power_w == pytest.approx(80)
    assert baseline.seconds == pytest.approx(9 + 13)
    assert quiet_baseline(power, events) is None
    untraced = Steps.from_columns(start_ns=[0, 22 * S], end_ns=[10 * S, 40 * S], traced=False)
    assert quiet_baseline(power, events, untraced, (0, 40 * S)) is None
    busy = EventTrace.from_columns(name=["k"], device="GPU:0", start_ns=[0], end_ns=[40 * S])
    assert quiet_baseline(power, busy) is None


def test_the_tree_nests_and_prints():
    events, power, steps = training()
    tree = attribute(events, power, steps=steps).tree(depth=2)
    (model,) = tree.children
    assert [child.name for child in model.children] == ["a", "b"]
    assert model.energy_j == pytest.approx(sum(child.energy_j for child in model.children))
    assert model.children[0].phases.keys() == {"forward", "backward"}
    assert not model.children[0].children
    lines = str(tree).splitlines()
    assert lines[0].startswith("m ")
    assert lines[1].startswith("  a ")
    assert "±" in lines[0]
    assert str(attribute(events, []).tree()) == ""


def test_records_are_sorted_and_carry_every_column():
    records = attribute(*training()[:2]).to_records()
    energies = [record["energy_j"] for record in records]
    assert energies == sorted(energies, reverse=True)
    assert records[0].keys() >= {
        "name", "phase", "device", "domain", "energy_j", "low_j", "high_j", "active_s", "calls", "provenance",
    }  # fmt: skip
    assert {record["provenance"] for record in records} == {"apportioned"}


def test_what_one_meter_measured_is_not_estimated_because_another_is():
    events, power, _ = training()
    cpu = Domain("CPU", "CPU", provenance="estimated")
    host = EventTrace.from_columns(
        name=["m/load", "m/a/mm"], device="CPU", start_ns=[0, S], end_ns=[S, 2 * S]
    )
    both = EventTrace.joined([events, host])
    footprint = attribute(both, [power, PowerTrace(cpu, [0, 20 * S], [300.0])])
    rows = {row["name"]: row for row in footprint.rollup(keep=()).to_records()}
    assert (rows["m/b/add"]["provenance"], rows["m/b/add"]["domain"]) == ("apportioned", "GPU:0")
    assert (rows["m/load"]["provenance"], rows["m/load"]["domain"]) == ("estimated", "CPU")
    assert (rows["m/a/mm"]["provenance"], rows["m/a/mm"]["domain"]) == ("estimated", "all")


def test_an_estimated_domain_makes_every_number_estimated():
    events, power, _ = training()
    guessed = PowerTrace(Domain("GPU:0", "GPU:0", provenance="estimated"), power.edges_ns, power.energy_j)
    footprint = attribute(events, guessed)
    assert {record["provenance"] for record in footprint.to_records()} == {"estimated"}
    assert {record["provenance"] for record in footprint.rollup(keep=()).to_records()} == {"estimated"}


def test_one_execution_metered_in_two_domains_ran_once() -> None:
    events = EventTrace.from_columns(name=["a", "a"], device="CPU:0", start_ns=[0, 2 * S], end_ns=[S, 3 * S])
    domains = [Domain("package", "CPU:0"), Domain("DRAM", "CPU:0")]
    power = [PowerTrace(domain, [0, 4 * S], [40.0]) for domain in domains]
    footprint = attribute(events, power)
    [node] = footprint.tree().children
    assert node.energy_j == pytest.approx(40.0)
    assert node.active_s == pytest.approx(2.0)
    assert node.calls == 2


def two_kinds(tests_traced: bool) -> tuple[EventTrace, PowerTrace, Steps]:
    """Twenty steps of a second in turn: training runs ``a`` at 2 W, testing ``b`` at 1 W."""
    start = np.arange(20) * S
    events = EventTrace.from_columns(
        name=["a", "b"] * 10, device="CPU:0", start_ns=start, end_ns=start + S
    ).take(np.arange(20) % 2 == 0 if not tests_traced else slice(None))
    power = PowerTrace(Domain("CPU", "CPU:0", update_period_s=1e-6), np.arange(21) * S, [2.0, 1.0] * 10)
    traced = np.ones(20, bool) if tests_traced else np.arange(20) % 2 == 0
    steps = Steps.from_columns(start_ns=start, end_ns=start + S, traced=traced, label=["train", "test"] * 10)
    return events, power, steps


def test_steps_of_one_kind_say_nothing_about_the_spread_of_another() -> None:
    events, power, steps = two_kinds(tests_traced=True)
    footprint = attribute(events, power, steps=steps)
    assert footprint.high_j - footprint.low_j == pytest.approx([0.0, 0.0], abs=1e-3)
    assert footprint.has_spread.all()


def test_a_kind_of_step_that_was_never_traced_stays_untraced() -> None:
    events, power, steps = two_kinds(tests_traced=False)
    footprint = attribute(events, power, steps=steps)
    assert dict(zip(footprint.name, footprint.energy_j.tolist(), strict=True)) == pytest.approx(
        {"a": 20.0, "(untraced)": 10.0}
    )
