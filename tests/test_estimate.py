"""The estimate of CPU and memory energy: on a small /proc, and on the real one."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from joulemap.errors import MeterError
from joulemap.meters import estimate
from joulemap.meters.cores import DEFAULT, PARTS, part_for, processor
from joulemap.meters.estimate import EstimateMeter
from joulemap.meters.readings import watch
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, Steps

S = 1_000_000_000
TICK = os.sysconf("SC_CLK_TCK")
XEON = "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz"


class Clock:
    """Time that passes when the test says so."""

    now_ns = 5 * S

    def __call__(self):
        return self.now_ns


def stat(proc, *, busy_s=0.0, idle_s=0.0, steal_s=0.0, cpus=2):
    """A /proc/stat after so much time of all CPUs together."""
    busy, idle, steal = (round(seconds * TICK) for seconds in (busy_s, idle_s, steal_s))
    lines = [f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0"] + [
        f"cpu{n} 0 0 0 0 0 0 0 0 0 0" for n in range(cpus)
    ]
    (proc / "stat").write_text("\n".join(lines) + "\nintr 1 2 3\n")


@pytest.fixture(name="proc")
def make_proc(tmp_path, monkeypatch):
    for variable in (estimate.WATTS_PER_CORE, estimate.WATTS_PER_GB):
        monkeypatch.delenv(variable, raising=False)
    proc = tmp_path / "proc"
    proc.mkdir()
    one = f"model name\t: {XEON}\nsiblings\t: 80\ncpu cores\t: 40\ncpu MHz\t\t: 2400.0\n"
    (proc / "cpuinfo").write_text(one + one.replace("2400", "2600"))
    (proc / "meminfo").write_text("MemTotal:        7812500 kB\nMemFree: 1 kB\n")
    stat(proc)
    return proc


def opened(proc, clock, **settings):
    meter = EstimateMeter(proc, proc.parent / "sys", clock_ns=clock, **settings)
    return meter.open()


def model(proc, **settings):
    """Of a machine whose /sys lies beside its /proc."""
    return EstimateMeter(proc, proc.parent / "sys", **settings).model()


def test_energy_is_idle_power_over_time_and_busy_power_over_cpu_time(proc):
    clock = Clock()
    cpu, dram = opened(proc, clock, watts_per_core=10.0)
    assert cpu.read() == dram.read() == 0
    clock.now_ns += 4 * S
    stat(proc, busy_s=3, idle_s=5)
    # Two threads share a core: 5 W busy, 1 W idle each.
    assert cpu.read() == pytest.approx(2 * 1.0 * 4 + (5.0 - 1.0) * 3)
    assert dram.read() == pytest.approx(8.0 * estimate.DRAM_WATTS_PER_GB * 4)
    for channel in (cpu, dram):
        assert channel.domain.provenance == "estimated"
        assert channel.domain.device == "CPU"
        assert channel.quantity == "energy_j"
        assert channel.schedule.period_s <= 0.1
        channel.close()


def test_the_total_is_the_same_however_often_it_is_read(proc):
    clock = Clock()
    often, seldom = opened(proc, clock)[0], opened(proc, clock)[0]
    for second in range(1, 11):
        clock.now_ns += S
        stat(proc, busy_s=0.7 * second, idle_s=1.3 * second)
        often.read()
    assert often.read() == seldom.read() > 0
    often.close()
    seldom.close()


def test_stolen_time_is_not_ours_and_the_total_never_falls(proc):
    clock = Clock()
    cpu = opened(proc, clock, watts_per_core=10.0)[0]
    clock.now_ns += S
    stat(proc, busy_s=1.0, steal_s=1.0)
    before = cpu.read()
    assert before == pytest.approx(2 * 1.0 + 4.0 * 1.0)
    stat(proc, busy_s=0.9)
    assert cpu.read() == before
    cpu.close()


def test_a_file_that_goes_bad_is_an_error_that_a_later_read_can_survive(proc):
    cpu = opened(proc, Clock())[0]
    (proc / "stat").write_text("nonsense\n")
    with pytest.raises(MeterError):
        cpu.read()
    stat(proc)
    assert cpu.read() == 0
    cpu.close()


def test_the_probe_says_what_is_assumed(proc, monkeypatch):
    said = EstimateMeter(proc).probe()
    assert said.available
    assert "Xeon Platinum 8380" in said.reason
    assert "taken for Xeon Platinum 8380" in said.reason
    assert "2 CPUs" in said.reason
    assert "±50 %" in said.reason
    assert estimate.WATTS_PER_CORE in said.remedy
    (proc / "stat").unlink()
    said = EstimateMeter(proc).probe()
    assert not said.available
    assert "container" in said.remedy
    with pytest.raises(MeterError):
        EstimateMeter(proc).open()


@pytest.mark.parametrize(("text", "busy_w"), [("4", 2.0), ("8 W", 4.0), ("", 270 / 40 / 2)])
def test_the_environment_sets_the_watts(proc, monkeypatch, text, busy_w):
    monkeypatch.setenv(estimate.WATTS_PER_CORE, text)
    found = model(proc)
    assert found.busy_w == pytest.approx(busy_w)
    assert found.idle_w == pytest.approx(estimate.IDLE_SHARE * busy_w)
    assert (found.part == "") == bool(text)


def test_the_environment_sets_the_watts_of_memory(proc, monkeypatch):
    clock = Clock()
    monkeypatch.setenv(estimate.WATTS_PER_GB, "0.25")
    cpu, dram = opened(proc, clock)
    clock.now_ns += 4 * S
    assert dram.read() == pytest.approx(8.0 * 0.25 * 4)
    cpu.close()
    monkeypatch.setenv(estimate.WATTS_PER_GB, "-1")
    assert estimate.WATTS_PER_GB in EstimateMeter(proc).probe().remedy


def test_every_number_says_how_rough_it_is(proc):
    for channel in opened(proc, Clock()):
        assert "roughly ±50 %" in channel.domain.sensor
        assert channel.domain.provenance == "estimated"
        channel.close()


def group(proc, controllers="", **files):
    """This process in a control group ``/jobs/ours``: version 2 without controllers, else version 1."""
    (proc / "self").mkdir(exist_ok=True)
    line = f"{'4' if controllers else '0'}:{controllers}:/jobs/ours\n"
    (proc / "self" / "cgroup").write_text(line)
    folder = proc.parent / "sys/fs/cgroup" / controllers.split(",")[0]
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("controllers", "files", "cpus"),
    [
        ("", {"cpu.max": "200000 100000"}, 2),
        ("", {"jobs/ours/cpu.max": "150000 100000"}, 1.5),
        ("", {"jobs/cpu.max": "300000 100000", "jobs/ours/cpu.max": "max 100000"}, 3),
        ("", {"jobs/ours/cpuset.cpus.effective": "0-1,8"}, 3),
        ("", {"cpu.max": "max 100000", "cpuset.cpus.effective": "0-63"}, 64),
        ("", {"cpu.max": "9900000 100000"}, 64),
        ("", {"cpu.max": "nonsense", "cpuset.cpus.effective": ""}, 64),
        ("cpu,cpuacct", {"jobs/ours/cpu.cfs_quota_us": 50_000, "jobs/ours/cpu.cfs_period_us": 100_000}, 0.5),
        ("cpu", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100_000}, 64),
        ("cpuset", {"cpuset.effective_cpus": "4-7"}, 4),
    ],
)
def test_a_container_with_some_of_the_cores_idles_on_those(proc, controllers, files, cpus):
    stat(proc, cpus=64)
    group(proc, controllers, **files)
    assert model(proc).cpus == cpus


def test_two_of_64_cores_cost_what_two_cores_cost(proc):
    """Idle power is that of two; busy time is whatever the machine shows, and the program has its share."""
    clock = Clock()
    stat(proc, cpus=64)
    group(proc, **{"cpu.max": "200000 100000"})
    cpu = opened(proc, clock, watts_per_core=10.0)[0]
    clock.now_ns += 10 * S
    stat(proc, busy_s=20, idle_s=620, cpus=64)
    # Two threads share a core: 5 W busy, 1 W idle each; both of ours were busy for ten seconds.
    assert cpu.read() == pytest.approx(2 * 5.0 * 10)
    cpu.close()


@pytest.mark.parametrize(
    ("controllers", "name", "text", "memory_gb"),
    [
        ("", "memory.max", 2_000_000_000, 2.0),
        ("", "memory.max", "max", 8.0),
        ("memory", "jobs/ours/memory.limit_in_bytes", 3_000_000_000, 3.0),
        ("memory", "memory.limit_in_bytes", 9_223_372_036_854_771_712, 8.0),
    ],
)
def test_memory_is_that_which_we_may_use(proc, controllers, name, text, memory_gb):
    group(proc, controllers, **{name: text})
    assert model(proc).memory_gb == pytest.approx(memory_gb)


@pytest.mark.parametrize("text", ["lots", "-3", "0", "5 J"])
def test_bad_watts_are_refused_with_a_hint(proc, monkeypatch, text):
    monkeypatch.setenv(estimate.WATTS_PER_CORE, text)
    said = EstimateMeter(proc).probe()
    assert not said.available
    assert said.remedy


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("AMD EPYC 7763 64-Core Processor", "EPYC 7763"),
        ("AMD EPYC 9654 96-Core Processor", "EPYC 9654"),
        ("Intel Xeon Platinum 8480C", "Xeon Platinum 8480+"),
        ("Intel Xeon Processor @ 2.80GHz", "Xeon Platinum 8380, for a Xeon whose model is hidden"),
        ("ARM 0xd4f", "NVIDIA Grace (Neoverse V2), its memory included"),
        ("VIA Nano", DEFAULT.which),
    ],
)
def test_processors_are_found_in_the_table(name, which):
    assert part_for(name).which == which


def test_the_table_is_of_named_parts_that_draw_what_cores_draw():
    assert len({part.which for part in PARTS}) == len(PARTS)
    assert all(1 < part.busy_core_w < 15 for part in (*PARTS, DEFAULT))
    watts = sorted(part.busy_core_w for part in PARTS)
    assert watts[0] < DEFAULT.busy_core_w < watts[-1]
    assert processor("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n") == "ARM 0xd4f"
    assert processor("") == "unknown processor"


def test_the_table_is_in_the_documentation():
    page = (Path(__file__).parents[1] / "docs" / "meters.md").read_text()
    for part in (*PARTS, DEFAULT):
        assert f"| {part.which} | {part.tdp_w:g} W | {part.cores} | {part.busy_core_w:.1f} W |" in page


def test_facts_explain_the_energy(proc):
    meter = EstimateMeter(proc, proc.parent / "sys")
    assert meter.facts() == {"CPU clock_mhz": 2500.0}
    stat(proc, busy_s=3, idle_s=1)
    assert meter.facts()["CPU load_percent"] == pytest.approx(75)
    (proc / "stat").unlink()
    assert "CPU load_percent" not in meter.facts()


def test_without_memory_information_there_is_no_memory_domain(proc):
    (proc / "meminfo").unlink()
    (cpu,) = opened(proc, Clock())
    assert cpu.domain.name == "CPU"
    cpu.close()


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs Linux")  # noqa: PTH110
def test_on_this_machine_a_busy_process_costs_energy():
    cpu, *rest = EstimateMeter().open()
    spin = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    first = cpu.read()
    subprocess.run([sys.executable, "-c", spin], check=True)
    assert cpu.read() > first
    for channel in (cpu, *rest):
        channel.close()


@pytest.fixture(name="estimated", scope="module")
def record_this_machine(tmp_path_factory):
    """A recording of this machine's own estimate, with two events on its CPU."""
    path = tmp_path_factory.mktemp("estimated") / "run.joulemap"
    channels = EstimateMeter().open()
    start_ns = time.time_ns()
    traces = [readings.to_trace() for readings in watch(channels, 0.5)]
    for channel in channels:
        channel.close()
    edges = start_ns + np.array([S // 10, S // 5, 3 * S // 10])
    events = EventTrace.from_columns(
        name=["a/MatMul", "b/Relu"], device=["CPU:0"] * 2, start_ns=edges[:2], end_ns=edges[1:], step=[0, 0]
    )
    with RecordingWriter.create(path, RecordingInfo(window_ns=(int(edges[0]), int(edges[-1])))) as writer:
        writer.put_events(events)
        writer.put_steps(Steps.from_columns(start_ns=edges[:1], end_ns=edges[-1:], traced=[True]))
        for trace in traces:
            writer.put_power(trace)
        writer.finish()
    return path


def shown(path, *arguments):
    command = [sys.executable, "-m", "joulemap", "show", str(path), "--all", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("by", ["module", "op", "phase", "device", "step", "kind"])
def test_every_output_says_that_it_is_estimated(estimated, by):
    content = json.loads(shown(estimated, "--by", by, "--json"))
    assert [domain["provenance"] for domain in content["domains"]] == ["estimated"] * 2
    assert all("roughly ±50 %" in domain["sensor"] for domain in content["domains"])
    assert content["rows"]
    assert {row["provenance"] for row in content["rows"]} == {"estimated"}
    rows = list(csv.DictReader(io.StringIO(shown(estimated, "--by", by, "--csv"))))
    assert len(rows) == len(content["rows"])
    assert {row["provenance"] for row in rows} == {"estimated"}
    table = shown(estimated, "--by", by)
    assert "measured" not in table.replace("not measured", "")
    assert "roughly ±50 %" in table
