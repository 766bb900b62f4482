"""Idle baselines: waiting for a stable machine, measuring, keeping."""

import json
import os
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner

from joulemap.accounting.baseline import Baseline
from joulemap.baselines import Baselines, cache_folder, machine
from joulemap.commands import run as command_run
from joulemap.commands.calibrate import command
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.idle import NotIdle, baseline_of, mean_and_half_width, measure_idle, samples_w
from joulemap.meters import available
from joulemap.meters.readings import Readings
from joulemap.meters.synthetic import Operation, Sensor, SyntheticMeter, truth_of
from joulemap.replaying import Interrupted
from joulemap.stability import GateSettings, by_device
from joulemap.traces import PowerTrace

S = 1_000_000_000
GPU = Domain("GPU:0", "GPU:0", sensor="nvml")
SHORT = {"timeout_s": 15.0, "seconds": 0.1, "sample_s": 0.05}
COOL = {"GPU:0 temperature_c": 30.0, "GPU:0 utilisation_percent": 0.0}
LOOSE = GateSettings(samples=4, spread={"GPU": 0.2, "other": 0.2})


def joulemap(*arguments, check=0, **env):
    done = subprocess.run(
        [sys.executable, "-m", "joulemap", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "", **env},
        timeout=120,
        check=False,
    )
    assert done.returncode == check, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def in_a_hurry(monkeypatch):
    """Each look at the machine takes a second of its patience, so that there are many, however slow it is."""
    looks = count()
    monkeypatch.setattr("joulemap.idle.time", SimpleNamespace(monotonic=lambda: float(next(looks))))


def meter(*operations):
    """Power samples of a GPU that does these things from when the meter is opened."""
    return SyntheticMeter(truth_of(operations, GPU), [Sensor("power_w", 0.01)])


def measured(synthetic, **settings):
    options = {"seconds": 0.4, "timeout_s": 20.0, "settings": LOOSE, "sample_s": 0.1} | settings
    return measure_idle(synthetic.open(), **options)


def test_an_idle_machine_is_measured():
    ((domain, baseline),) = measured(meter(Operation("", 60.0, 80.0))).baselines.items()
    assert domain.name == baseline.domain == "GPU:0"
    assert baseline.power_w == pytest.approx(80.0)
    assert baseline.low_w <= 80.0 <= baseline.high_w
    assert baseline.seconds == pytest.approx(0.4)


def test_it_waits_until_the_load_is_over():
    waited = []
    busy = meter(*[Operation("a", 0.15, 500.0), Operation("", 0.05, 100.0)] * 5, Operation("", 60.0, 80.0))
    found = measured(busy, on_wait=waited.append, idle_w={"GPU:0": 79.0}, facts=lambda: COOL)
    (baseline,) = found.baselines.values()
    assert found.notes == ()
    assert baseline.power_w == pytest.approx(80.0, rel=0.01)
    assert waited
    assert not waited[0].stable


def test_a_steady_load_is_not_idle_when_idle_is_known(in_a_hurry):
    with pytest.raises(NotIdle, match="GPU:0 draws 300 W, while idle is 80"):
        measured(meter(Operation("a", 60.0, 300.0)), idle_w={"GPU:0": 80.0}, **SHORT)


def test_heat_keeps_it_waiting(in_a_hurry):
    hot = {"GPU:0 temperature_c": 70.0}
    with pytest.raises(NotIdle, match="GPU:0 is at 70 °C"):
        measured(meter(Operation("", 60.0, 80.0)), facts=lambda: hot, **SHORT)


def test_work_keeps_it_waiting_even_where_no_baseline_is_known(in_a_hurry):
    busy = {"GPU:0 utilisation_percent": 97.0}
    with pytest.raises(NotIdle, match="GPU:0 is busy at 97 %"):
        measured(meter(Operation("a", 60.0, 300.0)), facts=lambda: busy, **SHORT)


def test_what_could_not_be_judged_is_said():
    level, temperature = measured(meter(Operation("", 60.0, 80.0))).notes
    assert "The level of GPU:0 could not be judged" in level
    assert "The temperature of the GPU could not be judged" in temperature


def test_samples_of_a_counter_neither_gain_nor_lose_an_update():
    """Polled every 4 ms, updated every 100 ms, cut every 500 ms: all samples are the same."""
    t = np.arange(0, 10 * S, 4_000_000)
    trace = PowerTrace.from_counter(Domain("GPU:0", "GPU:0", update_period_s=0.1), t, 8.0 * (t // (S // 10)))
    assert samples_w(trace, 0.5) == pytest.approx(80.0)
    assert len(samples_w(trace, 0.5)) >= 18
    assert len(samples_w(PowerTrace(GPU, [], []), 0.5)) == 0


def test_a_counter_polled_only_near_its_updates_and_now_and_then_between_gives_equal_samples():
    """As the learnt schedule of NVML does it; a reading between two updates must not shift energy."""
    updates = np.arange(100) * (S // 10) + 2_000_000
    between = updates[::7] + 31_000_000
    t = np.sort(np.concatenate((updates, between)))
    readings = Readings(
        Domain("GPU:0", "GPU:0", update_period_s=0.1), "energy_j", t, t, 8.0 * ((t - 2_000_000) // (S // 10))
    )
    assert samples_w(readings.to_trace(), 0.25) == pytest.approx(80.0)
    assert len(Readings(GPU, "energy_j", t[:0], t[:0], np.zeros(0)).to_trace()) == 0


def test_time_in_which_nothing_was_read_does_not_count_as_rest():
    """A reader that was held up for 300 ms: the power samples left a gap of which nothing is known."""
    t = np.arange(0, 10 * S, S // 100)
    held_up = PowerTrace.from_samples(GPU, t[(t < 5 * S) | (t > 5.3 * S)], np.full(len(t) - 31, 80.0))
    assert held_up.gap.any()
    assert samples_w(held_up, 0.5) == pytest.approx(80.0)
    assert len(samples_w(held_up, 0.1)) < 99


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        mean, half = mean_and_half_width(random.normal(100.0, 3.0, 20))
        covered += abs(mean - 100.0) <= half
    assert 0.9 <= covered / 300 <= 0.99


def test_the_interval_includes_what_the_meter_cannot_resolve():
    edges = np.arange(0, 21 * S // 2, S // 10)
    slow, fast = (
        PowerTrace(Domain("GPU:0", "GPU:0", update_period_s=period_s), edges, np.full(len(edges) - 1, 8.0))
        for period_s in (0.1, 0.001)
    )
    widths = [
        baseline.high_w - baseline.low_w for baseline in (baseline_of(slow, 10.0), baseline_of(fast, 10.0))
    ]
    assert widths[0] == pytest.approx(100 * widths[1], rel=0.05)


def test_baselines_are_kept_by_machine_domain_and_sensor(tmp_path):
    store = Baselines(tmp_path / "new")
    assert store.all_of("here") == []
    store.put("here", GPU, Baseline("GPU:0", 122.0, 121.0, 123.0, 10.0), taken_ns=5)
    store.put("there", GPU, Baseline("GPU:0", 80.0, 79.0, 81.0, 10.0))
    found = store.find("here", GPU)
    assert found.baseline.power_w == 122.0
    assert (found.sensor, found.provenance, found.taken_ns) == ("nvml", "measured", 5)
    assert store.find("here", Domain("GPU:0", "GPU:0", sensor="another")) is None
    assert store.find("elsewhere", GPU) is None
    store.put("here", GPU, Baseline("GPU:0", 90.0, 89.0, 91.0, 10.0))
    assert [one.baseline.power_w for one in store.all_of("here")] == [90.0]
    assert (store.clear("here"), store.clear("here")) == (1, 0)
    assert store.find("there", GPU) is not None
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["baselines.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "machines": {"a": {"b": {}}}}']
)
def test_a_damaged_file_is_said(tmp_path, text):
    (tmp_path / "baselines.json").write_text(text)
    with pytest.raises(InputError, match="is damaged"):
        Baselines(tmp_path).all_of("here")


def test_a_newer_file_and_a_folder_that_cannot_be_written_are_said(tmp_path):
    (tmp_path / "baselines.json").write_text('{"format": 2}')
    with pytest.raises(InputError, match="newer"):
        Baselines(tmp_path).all_of("here")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        Baselines(tmp_path / "file").put("here", GPU, Baseline("GPU:0", 1.0, 1.0, 1.0, 1.0))


def test_machines_have_names_that_last_and_tell_nothing(tmp_path):
    (tmp_path / "id").write_text("0123456789abcdef\n")
    assert machine() == machine()
    assert machine(tmp_path / "id") == machine(tmp_path / "id") != machine(tmp_path / "none")
    assert "0123456789abcdef" not in machine(tmp_path / "id")


def test_the_cache_folder_follows_the_desktop_rules(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "joulemap"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "joulemap"


def test_temperatures_are_found_among_the_facts():
    facts = {"GPU:0 temperature_c": 41.0, "GPU:0 sm_clock_mhz": 1980.0, "CPU load_percent": 3.0, "odd": 1.0}
    assert by_device(facts, "temperature_c") == {"GPU:0": 41.0}
    assert by_device(facts, "load_percent", "utilisation_percent") == {"CPU": 3.0}
    both = {"GPU:0 utilisation_percent": 1.0, "GPU:0 load_percent": 2.0}
    assert by_device(both, "load_percent", "utilisation_percent") == {"GPU:0": 2.0}


def test_a_machine_that_is_not_idle_in_time_is_said_and_nothing_is_stored(tmp_path):
    done = joulemap("calibrate", "--idle", "--timeout", "0", check=2, XDG_CACHE_HOME=str(tmp_path))
    assert "was not idle within 0 s" in done.stderr
    assert "--timeout" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [(), ("--idle", "--list"), ("--list", "--clear")])
def test_one_thing_at_a_time(arguments, tmp_path):
    assert "Say what to do" in joulemap("calibrate", *arguments, check=2, XDG_CACHE_HOME=str(tmp_path)).stderr


def test_listing_and_clearing(tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert "No baseline of" in joulemap("calibrate", "--list", **env).stdout
    Baselines(tmp_path / "joulemap").put(machine(), GPU, Baseline("GPU:0", 122.4, 122.1, 122.7, 10.0), 5 * S)
    assert "122.40 ± 0.30 W" in joulemap("calibrate", "--list", **env).stdout
    content = json.loads(joulemap("calibrate", "--list", "--json", **env).stdout)
    assert content["machine"] == machine()
    assert content["notes"] == []
    assert content["baselines"] == [
        {
            "domain": "GPU:0",
            "power_w": 122.4,
            "low_w": 122.1,
            "high_w": 122.7,
            "seconds": 10.0,
            "sensor": "nvml",
            "provenance": "measured",
            "taken_ns": 5 * S,
        }
    ]
    assert json.loads(joulemap("calibrate", "--clear", "--json", **env).stdout)["cleared"] == 1
    assert "Forgot 0 baselines" in joulemap("calibrate", "--clear", **env).stdout


def test_measuring_stores_and_shows(monkeypatch, tmp_path):
    """The whole command, on a synthetic meter: 20 samples of half a second are 10 s, so ten times as fast."""
    truth = truth_of([Operation("", 600.0, 80.0)], GPU)
    monkeypatch.setattr(available, "every_meter", lambda: [SyntheticMeter(truth, [Sensor("power_w", 0.05)])])
    monkeypatch.setattr("joulemap.idle.SAMPLE_S", 0.05)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = CliRunner().invoke(command, ["--idle", "--seconds", "1", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    content = json.loads(done.stdout)
    assert "no earlier idle baseline is stored" in content["notes"][0]
    (stored,) = content["baselines"]
    assert stored["power_w"] == pytest.approx(80.0)
    assert Baselines().find(machine(), Domain("GPU:0", "GPU:0", sensor=stored["sensor"])) is not None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["x.joulemap", "--seconds", "3"], "--seconds is for --idle"),
        (["x.joulemap", "--timeout", "3"], "--timeout is for --idle"),
        (["--idle", "--budget", "10"], "--budget is for the operations of a recording"),
        (["--list", "--again"], "--again is for the operations of a recording"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments, why):
    done = CliRunner().invoke(command, arguments)
    assert isinstance(done.exception, InputError)
    assert why in done.exception.message


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "4", "x"])
def test_a_budget_is_a_number_of_seconds(number):
    for one, arguments in ((command, ["x"]), (command_run.command, ["--calibrate", "x.py"])):
        done = CliRunner().invoke(one, ["--budget", number, *arguments])
        assert done.exit_code == 2
        assert "Invalid value for '--budget'" in done.output


def test_a_budget_of_nothing_is_refused(tmp_path):
    (tmp_path / "x.py").write_text("")
    done = CliRunner().invoke(command_run.command, ["--budget", "10", str(tmp_path / "x.py")])
    assert isinstance(done.exception, InputError)
    assert "--budget needs --calibrate" in done.exception.message


def test_ctrl_c_ends_a_calibration_as_it_ends_other_commands(monkeypatch):
    def interrupted(*_):
        raise Interrupted("The replays were interrupted.", "What was known before is kept.")

    monkeypatch.setattr("joulemap.api.load", lambda _: None)
    monkeypatch.setattr("joulemap.calibrating.calibrate", interrupted)
    done = CliRunner().invoke(command, ["x.joulemap"], standalone_mode=False)
    assert isinstance(done.exception, click.Abort)  # which is exit code 130
    assert "What was known before is kept." in done.stderr
