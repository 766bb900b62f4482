import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulemap.devices import Device, Domain
from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.powerlog import check_overlap, constant_power, describe, read_power
from joulemap.traces import EventTrace, PowerTrace

DATA = Path(__file__).parent / "data"
T = 1_794_703_530_000_000_000
S = 1_000_000_000


def csv(tmp_path, *lines, name="power.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def log(tmp_path, column, values, domain="GPU:0"):
    return csv(
        tmp_path, f"t_ns,domain,{column}", *(f"{T + i * S},{domain},{v}" for i, v in enumerate(values))
    )


def refusal(path):
    with pytest.raises(InputError) as caught:
        read_power(path)
    assert str(path) in caught.value.message
    return caught.value


def events(start_ns, end_ns, device="GPU:0"):
    return EventTrace.from_columns(name=["a"], device=device, start_ns=[start_ns], end_ns=[end_ns])


def steady(start_ns, end_ns, device="GPU:0"):
    return PowerTrace(Domain(device, device), [start_ns, end_ns], [100.0])


# What is read


def test_the_three_kinds_of_readings(tmp_path):
    (counter,) = read_power(log(tmp_path, "energy_j", [10, 20, 50]))
    assert counter.energy_j.tolist() == [10, 30]
    (intervals,) = read_power(log(tmp_path, "interval_energy_j", [99, 10, 30]))
    assert intervals.energy_j.tolist() == [10, 30]
    (samples,) = read_power(log(tmp_path, "power_w", [10, 30, 99]))
    assert samples.energy_j.tolist() == [10, 30]
    for trace in (counter, intervals, samples):
        assert trace.edges_ns.tolist() == [T, T + S, T + 2 * S]
        assert trace.domain.device == "GPU:0"
        assert trace.domain.provenance == "measured"


def test_domains_are_taken_apart_and_sorted(tmp_path):
    path = csv(
        tmp_path,
        "t_ns,domain,power_w",
        f"{T + S},gpu0,200",
        f"{T},gpu0,100",
        f"{T},package-1,50",
        f"{T + S},package-1,50",
    )
    gpu, cpu = read_power(path)
    assert (gpu.domain.device, cpu.domain.device) == ("GPU:0", "CPU:1")
    assert gpu.energy_j.tolist() == [100]
    shuffled = csv(tmp_path, "t_ns,domain,energy_j", f"{T + S},gpu0,7", f"{T},gpu0,3")
    assert read_power(shuffled)[0].energy_j.tolist() == [4]
    shuffled.write_text(shuffled.read_text().replace("energy_j", "interval_energy_j"))
    assert "go back in time" in refusal(shuffled).message


@given(
    st.lists(st.floats(0, 3000), min_size=2, max_size=20),
    st.sampled_from(["csv", "parquet", "gz", "semicolon"]),
)
def test_every_container_reads_the_same(tmp_path_factory, watts, container):
    folder = tmp_path_factory.mktemp("power")
    path = log(folder, "power_w", [repr(value) for value in watts])
    if container == "parquet":
        path = folder / "power.data"
        columns = {"t_ns": [T + i * S for i in range(len(watts))], "domain": "GPU:0", "power_w": watts}
        columns["domain"] = pa.array(["GPU:0"] * len(watts)).dictionary_encode()
        pyarrow.parquet.write_table(pa.table(columns), path)
    elif container == "gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    elif container == "semicolon":
        path.write_text(path.read_text().replace(",", ";"))
    (trace,) = read_power(path)
    assert trace.energy_j.tolist() == watts[:-1]


def test_a_real_counter():
    (trace,) = read_power(DATA / "h200-step-power.csv")
    assert trace.domain.device == "GPU:0"
    assert 100 < trace.total_j / ((trace.edges_ns[-1] - trace.edges_ns[0]) / 1e9) < 400
    assert 0.09 < trace.period_s < 0.11  # the counter moves every 100 ms, though it is read every 4 ms
    assert "GPU:0: measured, feeds GPU:0" in describe([trace])[0]


@pytest.mark.parametrize(
    ("domain", "device"),
    [
        ("GPU:0", "GPU:0"),
        ("gpu1", "GPU:1"),
        ("cuda:2", "GPU:2"),
        ("nvidia-0", "GPU:0"),
        ("gpu", "GPU"),
        ("cpu", "CPU"),
        ("cpu:0", "CPU:0"),
        ("package-0", "CPU:0"),
        ("package-0-dram", "CPU:0"),
        ("pkg", "CPU"),
        ("core", "CPU"),
        ("dram", "CPU"),
        ("dram-1", "CPU:1"),
        ("ram", "CPU"),
        ("intel-rapl:1", "CPU:1"),
        ("psys", "CPU"),
        ("board", "CPU"),
    ],
)
def test_devices_by_the_names_of_domains(tmp_path, domain, device):
    (trace,) = read_power(log(tmp_path, "power_w", [1, 2], domain))
    assert trace.domain.device == device


def test_an_unknown_domain_needs_a_device(tmp_path):
    error = refusal(log(tmp_path, "power_w", [1, 2], "rail-12v"))
    assert "rail-12v" in error.message
    assert "column `device`" in error.hint
    path = csv(tmp_path, "t_ns,domain,power_w,device", f"{T},rail,1,cuda:3", f"{T + S},rail,1,cuda:3")
    assert Device.parse(read_power(path)[0].domain.device) == Device("GPU", 3)


def test_columns_about_the_domain(tmp_path):
    head = "t_ns,domain,power_w,device,provenance,sensor,parent"
    rows = [f"{T + i * S},x,5,CPU:0,estimated,model,psys" for i in range(2)]
    (trace,) = read_power(csv(tmp_path, head, *rows))
    assert trace.domain == Domain("x", "CPU:0", parent="psys", sensor="model", provenance="estimated")
    contrary = csv(tmp_path, head, rows[0], rows[1].replace("model", "other"))
    assert "several values of sensor" in refusal(contrary).message
    wrong = csv(tmp_path, head, *(row.replace("estimated", "guessed") for row in rows))
    assert "guessed" in refusal(wrong).message


def test_nested_domains_are_not_added_twice(tmp_path):
    names = ["psys", "package-0", "package-1", "core-1", "dram-0"]
    rows = [f"{T + i * S},{name},5" for name in names for i in range(2)]
    parents = {
        t.domain.name: t.domain.parent for t in read_power(csv(tmp_path, "t_ns,domain,power_w", *rows))
    }
    assert parents == {
        "psys": None,
        "package-0": "psys",
        "package-1": "psys",
        "core-1": "package-1",
        "dram-0": "psys",
    }
    said = describe(read_power(csv(tmp_path, "t_ns,domain,power_w", *rows)))
    assert any("psys covers the whole machine" in note for note in said)


# What is refused


def test_missing_columns_are_named_with_what_looks_like_them(tmp_path):
    error = refusal(csv(tmp_path, "timestamp,gpu,power_mw", "1,0,2"))
    assert "timestamp, gpu, power_mw" in error.message
    assert "t_ns, domain, one of" in error.message
    assert "`power_mw` found: joulemap wants `power_w`, watts" in error.hint
    assert "`timestamp` found: joulemap wants `t_ns`, nanoseconds since 1970" in error.hint
    assert "`joules`" in refusal(csv(tmp_path, "t_ns,domain,joules", "1,GPU,2")).hint


@pytest.mark.parametrize(
    ("unit", "factor"), [("seconds", 10**9), ("milliseconds", 10**6), ("microseconds", 10**3)]
)
def test_other_units_of_time_are_recognised(tmp_path, unit, factor):
    rows = [f"{(T + i * S) / factor:.3f},GPU:0,5" for i in range(3)]
    assert f"{unit} since 1970" in refusal(csv(tmp_path, "t_ns,domain,power_w", *rows)).message


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("power_w", [52_340, 52_340, 0], "52,340 W on average: is power_w in milliwatts?"),
        ("power_w", [65_000_000, 65_000_000], "is power_w in microwatts?"),
        ("energy_j", [0, 300_000, 600_000], "is energy_j in millijoules?"),
        ("interval_energy_j", [0, 9e7, 9e7], "is interval_energy_j in microjoules?"),
        ("power_w", [10, -1, 10], "line 3: power_w of GPU:0 is negative"),
        ("energy_j", [10, 20, 19, 30], "line 4: energy_j of GPU:0 goes backwards"),
        ("power_w", [10, "nan", 10], "line 3: power_w is missing or not finite"),
        ("power_w", [10, "", 10], "line 3: power_w is missing or not finite"),
        ("power_w", [10, "inf", 10], "line 3: power_w is missing or not finite"),
        ("power_w", [10, "much", 10], "line 3: power_w is not a number: 'much'"),
        ("energy_j", [10], "single reading of GPU:0"),
    ],
)
def test_readings_that_cannot_be_right(tmp_path, column, values, said):
    error = refusal(log(tmp_path, column, values))
    assert said in error.message
    assert error.hint


def test_rows_of_parquet_are_counted_from_one(tmp_path):
    path = tmp_path / "power.parquet"
    columns = {"t_ns": [T, T + S], "domain": ["GPU:0", "GPU:0"], "power_w": [1.0, -1.0]}
    pyarrow.parquet.write_table(pa.table(columns), path)
    assert "row 2: power_w of GPU:0 is negative" in refusal(path).message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("t_ns,domain,power_w\n", "no readings"),
        (f"{T},GPU:0,5\n{T + S},GPU:0,5\n", "no header"),
        (f"t_ns,domain,power_w\n{T},GPU:0\n", "not a table"),
        (f"t_ns,domain,power_w\n{T},,5\n{T + S},GPU:0,5\n", "line 2: domain is missing"),
        ("PAR1 and nothing else", "cannot be read|not a table"),
    ],
)
def test_files_that_are_no_power_log(tmp_path, content, said):
    path = tmp_path / "power.csv"
    path.write_text(content)
    assert any(word in refusal(path).message for word in said.split("|"))
    assert refusal(path).hint


def test_a_missing_file_is_refused(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "none.csv").message


# Assumed power


def test_constant_power_is_an_estimate_over_the_span():
    trace = constant_power("CPU:0=65W", (T, T + 3 * S + 5))
    assert trace.total_j == pytest.approx(195, rel=1e-6)
    assert trace.domain == Domain("CPU:0", "CPU:0", sensor="assumed", provenance="estimated")
    assert (trace.edges_ns[0], trace.edges_ns[-1]) == (T, T + 3 * S + 5)
    assert trace.period_s == pytest.approx(0.01)
    assert trace.energy_between(T + S, T + 2 * S) == pytest.approx(65)


@pytest.mark.parametrize("spec", ["65W", "CPU:0=", "CPU:0=65J", "CPU:0=-5W", "CPU:0=0W", "GPU:0=50kW", "=5W"])
def test_specs_that_make_no_sense(spec):
    with pytest.raises(InputError):
        constant_power(spec, (T, T + S))
    with pytest.raises(InputError, match="take time"):
        constant_power("CPU=65W", (T, T))


# Do the two belong together?


def test_a_trace_and_its_power_overlap():
    imported = read_trace([DATA / "h200-step.json.gz"])
    notes = check_overlap(imported.events, read_power(DATA / "h200-step-power.csv"))
    assert len(notes) == 1
    assert "No power was logged for CPU" in notes[0]


@pytest.mark.parametrize(
    ("shift_ns", "said"),
    [
        (2 * 3600 * S, "2 h apart: probably one is in local time"),
        (-int(5.5 * 3600) * S - 60 * S, "5.5 h apart"),
        (86_400 * S * 3, "different runs"),
        (-T + 5000 * S, "power log do not count nanoseconds from 1970"),
    ],
)
def test_power_of_another_time_is_refused_with_both_ranges(shift_ns, said):
    with pytest.raises(InputError) as caught:
        check_overlap(events(T, T + S), [steady(T + shift_ns, T + shift_ns + S)])
    assert "2026-11-15T00:45:30Z to 2026-11-15T00:45:31Z" in caught.value.message
    assert ("later" if shift_ns > 0 else "earlier") in caught.value.message
    assert said in caught.value.hint


def test_a_trace_on_another_clock_is_named():
    with pytest.raises(InputError) as caught:
        check_overlap(events(5 * S, 6 * S), [steady(T, T + S)])
    assert "times of the trace do not count" in caught.value.hint


def test_power_of_another_device_is_refused():
    with pytest.raises(InputError, match="The power is of GPU:1, but the events ran on GPU:0"):
        check_overlap(events(T, T + S), [steady(T, T + S, "GPU:1")])
    assert check_overlap(events(T, T + S, "CPU"), [steady(T, T + S, "CPU:1")]) == []


def test_partial_cover_is_said():
    assert "50.0 %" in check_overlap(events(T, T + 2 * S), [steady(T, T + S)])[0]
    with pytest.raises(InputError, match="no events"):
        check_overlap(events(T, T).take(np.zeros(1, bool)), [])
    with pytest.raises(InputError, match="no interval"):
        check_overlap(events(T, T + S), [])


def test_spaces_after_commas_are_not_part_of_a_name(tmp_path):
    rows = [f"{1_790_000_000_000_000_000 + second * 10**9}, GPU:0, 5" for second in range(2)]
    (trace,) = read_power(csv(tmp_path, "t_ns, domain, power_w", *rows))
    assert trace.domain.name == "GPU:0"
