"""The perf meter on trees that describe its events; the system call itself on software events."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from joulemap.devices import roots
from joulemap.errors import MeterError
from joulemap.meters import Meter
from joulemap.meters.perf import PerfMeter, open_counter, parse_cpus, read_counter
from tests.sysfs import cpu_package, perf_power, write

SOFTWARE = 1
CPU_CLOCK = 0


def allowed() -> str:
    """Why this machine does not let us count for all processes; empty where it does."""
    try:
        os.close(open_counter(SOFTWARE, CPU_CLOCK, cpu=0))
    except OSError as error:
        return str(error.strerror)
    return ""


needs_perf = pytest.mark.skipif(bool(allowed()), reason=f"perf events for all processes: {allowed()}")


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """A unit whose package event is the kernel's CPU clock in nanoseconds: a joule is a busy second."""
    folder = perf_power(tmp_path, scale="1e-9")
    write(folder, type=SOFTWARE)
    write(folder / "events", **{"energy-pkg": f"event=0x{CPU_CLOCK:02x}", "energy-ram": "event=0x01"})
    cpu_package(tmp_path, 0, 0)
    return tmp_path


def test_cpu_masks() -> None:
    assert parse_cpus("0") == [0]
    assert parse_cpus("0,18") == [0, 18]
    assert parse_cpus("0-2,8") == [0, 1, 2, 8]
    assert parse_cpus("") == parse_cpus("x") == [0]


def test_the_system_call_counts_the_time_of_this_process() -> None:
    try:
        descriptor = open_counter(SOFTWARE, CPU_CLOCK, cpu=-1, pid=0)
    except OSError as error:
        pytest.skip(f"perf events: {error.strerror}")
    try:
        before, start = read_counter(descriptor), time.thread_time_ns()
        while time.thread_time_ns() - start < 20_000_000:
            pass
        spent, counted = time.thread_time_ns() - start, read_counter(descriptor) - before
        assert counted == pytest.approx(spent, rel=0.3)
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_the_system_call_says_why_it_refuses() -> None:
    with pytest.raises(OSError, match=r".+"):
        open_counter(event_type=987_654, config=0, cpu=0)


@needs_perf
def test_a_channel_counts_in_its_unit_and_can_be_reopened(clock: Path) -> None:
    meter: Meter = PerfMeter(clock, proc=clock / "none")
    package, memory = meter.open()
    assert (package.domain.name, memory.domain.name) == ("package-0", "dram-0")
    assert package.quantity == "energy_j"
    assert package.wraps_at_j is None
    began_s, first = time.monotonic(), package.read()
    time.sleep(0.02)
    assert 0 < package.read() - first < time.monotonic() - began_s + 0.001
    closed_s = time.monotonic()
    for channel in (package, memory):
        channel.close()
    assert package.read() < time.monotonic() - closed_s + 0.001  # from the beginning
    package.close()
    assert meter.probe().available
    assert meter.facts() == {}


@needs_perf
def test_every_socket_is_opened_and_only_roots_add_up(clock: Path) -> None:
    folder = clock / "bus" / "event_source" / "devices" / "power"
    for name in ("energy-cores", "energy-gpu"):
        write(folder / "events", **{name: "event=0x00", f"{name}.scale": "1e-9", f"{name}.unit": "Joules"})
    domains = [channel.domain for channel in PerfMeter(clock).open()]
    assert {domain.name for domain in domains} == {"package-0", "dram-0", "core-0", "uncore-0"}
    assert {domain.name for domain in roots(domains)} == {"package-0", "dram-0"}
    write(
        folder / "events",
        **{"energy-psys": "event=0", "energy-psys.scale": "1", "energy-psys.unit": "Joules"},
    )
    domains = [channel.domain for channel in PerfMeter(clock).open()]
    assert {domain.name for domain in roots(domains)} == {"psys"}


@needs_perf
def test_a_platform_event_that_never_counts_does_not_hide_the_packages(clock: Path) -> None:
    """The kernel's dummy event, which stays at zero, as an unwired ``energy-psys`` does."""
    folder = clock / "bus" / "event_source" / "devices" / "power" / "events"
    write(folder, **{"energy-psys": "event=9", "energy-psys.scale": "1", "energy-psys.unit": "Joules"})
    domains = [channel.domain for channel in PerfMeter(clock).open()]
    assert {domain.name: domain.parent for domain in domains} == {"package-0": None, "dram-0": None}


@needs_perf
def test_events_of_which_none_counts_are_no_meter(clock: Path) -> None:
    folder = clock / "bus" / "event_source" / "devices" / "power" / "events"
    write(folder, **{"energy-pkg": "event=9", "energy-ram": "event=9"})
    assert "none of them ever counts" in PerfMeter(clock).probe().reason


@needs_perf
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_two_sockets_are_two_devices(clock: Path) -> None:
    write(clock / "bus" / "event_source" / "devices" / "power", cpumask="0-1")
    cpu_package(clock, 1, 1)
    devices = {channel.domain.name: channel.domain.device for channel in PerfMeter(clock).open()}
    assert devices == {"package-0": "CPU:0", "dram-0": "CPU:0", "package-1": "CPU:1", "dram-1": "CPU:1"}


@needs_perf
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_two_dies_of_one_socket_are_one_device(clock: Path) -> None:
    write(clock / "bus" / "event_source" / "devices" / "power", cpumask="0,1")
    cpu_package(clock, 1, 0)
    write(clock / "devices" / "system" / "cpu" / "cpu1" / "topology", die_id=1)
    devices = {channel.domain.name: channel.domain.device for channel in PerfMeter(clock).open()}
    names = ("package-0-die-0", "dram-0-die-0", "package-0-die-1", "dram-0-die-1")
    assert devices == dict.fromkeys(names, "CPU:0")


def test_an_event_in_another_unit_is_left_out(tmp_path: Path) -> None:
    folder = perf_power(tmp_path)
    for name in ("energy-pkg", "energy-ram"):
        write(folder / "events", **{f"{name}.unit": "Calories"})
    assert "No energy events" in PerfMeter(tmp_path).probe().reason


def test_a_machine_without_the_events_says_so(tmp_path: Path) -> None:
    probe = PerfMeter(tmp_path).probe()
    assert not probe.available
    assert "No energy events" in probe.reason
    assert probe.remedy
    with pytest.raises(MeterError, match="No energy events"):
        PerfMeter(tmp_path).open()


def test_events_that_the_kernel_does_not_know_are_refused(tmp_path: Path) -> None:
    write(perf_power(tmp_path), type=987_654)
    probe = PerfMeter(tmp_path).probe()
    assert not probe.available
    assert "cannot be read" in probe.reason or "not permitted" in probe.reason


PROBE_AS_NOBODY = """
import os
from pathlib import Path
import joulemap.meters.perf as perf
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
probe = perf.PerfMeter(Path("."), proc=Path("proc")).probe()
print(probe.available, probe.reason, probe.remedy)
"""


@needs_perf
def test_without_the_capability_the_probe_names_it(clock: Path) -> None:
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 1:
        pytest.skip("this machine lets everyone count for all processes")
    write(clock / "proc" / "sys" / "kernel", perf_event_paranoid=2)
    clock.chmod(0o755)
    command = [sys.executable, "-c", PROBE_AS_NOBODY]
    done = subprocess.run(command, cwd=clock, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False")
    assert "perf_event_paranoid is 2" in done.stdout
    assert "CAP_PERFMON" in done.stdout
