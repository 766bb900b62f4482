"""Whose energy: on a small /proc of our own, and with real processes pinned to processors."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from joulemap.devices import Domain
from joulemap.monitor import whose as whoses
from joulemap.monitor.whose import Whose, sockets

CPU0, CPU1 = Domain("package-0", "CPU:0"), Domain("package-1", "CPU:1")
S = 1_000_000_000


class Machine:
    """A /proc and a /sys in a folder, with two sockets of two processors, changed by the test."""

    def __init__(self, folder, lists_children=True):
        self.proc, self.sys, self.lists_children = folder / "proc", folder / "sys", lists_children
        for cpu in range(4):
            topology = self.sys / f"devices/system/cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{cpu // 2}\n")
        self.proc.mkdir()
        self.busy(0, 0, 0, 0)

    def busy(self, *ticks):
        lines = [f"cpu{n} {t} 0 0 999 5 0 0 77 {t} 0" for n, t in enumerate(ticks)]
        (self.proc / "stat").write_text("cpu  1 2 3 4 5 6 7 8 9 0\n" + "\n".join(lines) + "\nintr 5\n")

    def process(
        self,
        pid,
        parent,
        own,
        waited=0,
        cpu=0,
        started=1,
        children=(),
        threads=(),
        words=("python",),
        name="a ) name",
    ):
        folder = self.proc / str(pid)
        for thread, ticks, on in threads or [(pid, own, cpu)]:
            task = folder / "task" / str(thread)
            task.mkdir(parents=True, exist_ok=True)
            (task / "stat").write_text(self.line(thread, parent, ticks, 0, on, started))
        if self.lists_children:
            first = folder / "task" / str(pid)
            first.mkdir(parents=True, exist_ok=True)
            (first / "children").write_text("".join(f"{child} " for child in children))
        line = self.line(pid, parent, own, waited, cpu, started, max(len(threads), 1), name)
        (folder / "stat").write_text(line)
        (folder / "cmdline").write_text("\0".join(words) + "\0")

    def line(self, pid, parent, own, waited, cpu, started, threads=1, name="a ) name"):
        times = f"{own} 0 {waited} 0 20 0 {threads} 0 {started}"
        return f"{pid} ({name}) S {parent} 1 1 0 -1 4 1 2 3 4 {times}{' 0' * 16} {cpu} 0"

    def gone(self, pid):
        folder = self.proc / str(pid)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()

    def whose(self, pid=100, domains=(CPU0, CPU1)):
        return Whose(pid, domains, 0, self.proc, self.sys)


def shares(whose, t_ns):
    return {part.domain: pytest.approx(float(part.share[0]), abs=1e-9) for part in whose.shares(t_ns)}


def of_both(whose, t_ns):
    """The program's part of the first socket, and what loads data of it."""
    part = whose.shares(t_ns)[0]
    return pytest.approx((float(part.share[0]), float(part.loading[0])), abs=1e-9)


@pytest.fixture(params=[True, False], ids=["listed", "scanned"])
def machine(tmp_path, request):
    return Machine(tmp_path, request.param)


def test_a_process_against_all_busy_time_of_its_socket(machine):
    machine.process(100, 1, own=10, cpu=1)
    whose = machine.whose()
    machine.process(100, 1, own=40, cpu=1)
    machine.busy(20, 20, 50, 0)
    assert shares(whose, S) == {"package-0": 0.75, "package-1": 0.0}


def test_threads_count_on_the_socket_they_run_on(machine):
    machine.process(100, 1, own=0, threads=[(100, 0, 0), (101, 0, 3)])
    whose = machine.whose()
    machine.process(100, 1, own=80, threads=[(100, 20, 0), (101, 60, 3)])
    machine.busy(40, 0, 0, 60)
    assert shares(whose, S) == {"package-0": 0.5, "package-1": 1.0}


def test_children_and_those_that_came_and_went(machine):
    machine.process(100, 1, own=0, children=[200])
    machine.process(200, 100, own=5)
    whose = machine.whose()
    machine.process(100, 1, own=10, waited=30, children=[200, 300])  # one nobody saw: 30 ticks
    machine.process(200, 100, own=15)
    machine.process(300, 100, own=10)
    machine.busy(100, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 0.6
    machine.gone(200)  # had 15 when it was seen last, 20 in the end
    machine.process(100, 1, own=10, waited=50, children=[300])
    machine.busy(200, 0, 0, 0)
    assert shares(whose, 2 * S)["package-0"] == 0.05


def test_workers_that_end_together_with_their_own_children_are_counted_once(machine):
    """The program inherits the time of both, of which a part was counted while they lived."""
    machine.process(100, 1, own=0, children=[200])
    machine.process(200, 100, own=0, children=[300])
    machine.process(300, 200, own=0)
    whose = machine.whose()
    machine.process(200, 100, own=20, children=[300])
    machine.process(300, 200, own=30)
    machine.busy(100, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 0.5
    machine.gone(300)  # had 35 in the end
    machine.gone(200)  # had 25
    machine.process(100, 1, own=0, waited=60)
    machine.busy(200, 0, 0, 0)
    assert shares(whose, 2 * S)["package-0"] == 0.1


def test_a_program_of_many_threads_is_found_by_a_scan(machine):
    many = [(1000 + number, 0, 0) for number in range(20)]
    machine.process(100, 1, own=0, children=[200], threads=[(100, 0, 0), *many])
    machine.process(200, 100, own=0)
    whose = machine.whose()
    machine.process(100, 1, own=10, children=[200, 300], threads=[(100, 10, 0), *many])
    machine.process(300, 100, own=20)
    machine.busy(60, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 0.5


def test_looking_is_bounded_and_what_was_passed_over_is_in_the_next_part(machine, monkeypatch):
    machine.process(100, 1, own=0)
    whose = machine.whose()
    monkeypatch.setattr(whoses, "AT_ONCE_NS", 0)
    monkeypatch.setattr(whoses, "MOST_OF_A_CORE", 1e-9)
    machine.busy(100, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 0.0
    machine.process(100, 1, own=50)
    machine.busy(200, 0, 0, 0)
    assert whose.shares(2 * S) == []
    part = whose.shares(10**18)[0]
    assert part.edges_ns.tolist() == [S, 10**18]
    assert part.share.tolist() == [0.5]


def test_an_orphan_is_followed_and_its_end_takes_nothing_back(machine):
    machine.process(100, 1, own=0, children=[200])
    machine.process(200, 100, own=0)
    whose = machine.whose()
    machine.process(100, 1, own=0)
    machine.process(200, 1, own=50)
    machine.busy(100, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 0.5
    machine.gone(200)
    machine.process(100, 1, own=20)
    machine.busy(200, 0, 0, 0)
    assert shares(whose, 2 * S)["package-0"] == 0.2


def test_the_monitor_is_busy_but_never_the_program(machine):
    machine.process(100, 1, own=0, children=[200])
    machine.process(200, 100, own=0, words=("python", "-m", "joulemap.monitor", "{}"))
    whose = machine.whose()
    machine.process(100, 1, own=30, children=[200])
    machine.process(200, 100, own=10, words=("python", "-m", "joulemap.monitor", "{}"))
    machine.busy(50, 50, 0, 0)
    assert shares(whose, S)["package-0"] == 0.3
    assert whose.monitor_share == pytest.approx(0.1)
    machine.gone(200)  # the program waits for it, and inherits its time
    machine.process(100, 1, own=30, waited=10)
    machine.busy(100, 100, 0, 0)
    assert shares(whose, 2 * S)["package-0"] == 0.0


def test_what_loads_data_is_known_apart_by_the_name_that_it_takes(machine):
    """Workers are forked, and take their name a moment later; whatever they start works for them."""
    machine.process(100, 1, own=0, children=[200, 300])
    machine.process(200, 100, own=0)
    machine.process(300, 100, own=0)
    whose = machine.whose()
    machine.process(100, 1, own=10, children=[200, 300])
    machine.process(200, 100, own=20, children=[400], name="pt_data_worker")
    machine.process(300, 100, own=5)
    machine.process(400, 200, own=15, name="ffmpeg")
    machine.busy(100, 0, 0, 0)
    assert of_both(whose, S) == (0.5, 0.35)
    machine.process(200, 100, own=30, children=[], name="pt_data_worker")
    machine.process(400, 1, own=25, name="ffmpeg")  # its parent goes on without it
    machine.busy(200, 0, 0, 0)
    assert of_both(whose, 2 * S) == (0.2, 0.2)


def test_what_workers_do_in_their_last_moments_is_theirs(machine):
    """The program inherits it; where others have ended with them, by their number."""
    machine.process(100, 1, own=0, children=[200, 300])
    machine.process(200, 100, own=0, name="pt_data_worker")
    machine.process(300, 100, own=0)
    whose = machine.whose()
    machine.process(200, 100, own=20, name="pt_data_worker")
    machine.busy(100, 0, 0, 0)
    assert of_both(whose, S) == (0.2, 0.2)
    machine.gone(200)  # had 50 in the end
    machine.process(100, 1, own=10, waited=50, children=[300, 400])
    machine.process(400, 100, own=0, name="pt_data_worker")
    machine.busy(200, 0, 0, 0)
    assert of_both(whose, 2 * S) == (0.4, 0.3)
    machine.gone(300)
    machine.gone(400)
    machine.process(100, 1, own=10, waited=90)
    machine.busy(300, 0, 0, 0)
    assert of_both(whose, 3 * S) == (0.4, 0.2)


def test_a_share_never_exceeds_one(machine):
    machine.process(100, 1, own=0)
    whose = machine.whose()
    machine.process(100, 1, own=500)
    machine.busy(100, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 1.0


def test_a_number_that_is_used_again_is_another_process(machine):
    machine.process(100, 1, own=50)
    whose = machine.whose()
    machine.process(100, 1, own=90, started=2)
    machine.busy(100, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 0.0


def test_where_nothing_was_busy_the_last_share_goes_on(machine):
    machine.process(100, 1, own=0)
    whose = machine.whose()
    machine.process(100, 1, own=25)
    machine.busy(100, 0, 0, 0)
    assert shares(whose, S)["package-0"] == 0.25
    assert shares(whose, 2 * S)["package-0"] == 0.25
    assert whose.shares(2 * S) == []


def test_domains_of_all_sockets_and_of_none(machine):
    machine.process(100, 1, own=0)
    whose = machine.whose(domains=[Domain("all", "CPU"), Domain("gpu", "GPU:0")])
    machine.process(100, 1, own=50)
    machine.busy(50, 0, 50, 0)
    assert shares(whose, S) == {"all": 0.5}


def test_a_machine_that_says_nothing(tmp_path):
    assert set(sockets(tmp_path).values()) == {0}
    whose = Whose(1, [CPU0], 0, tmp_path, tmp_path)
    assert shares(whose, S) == {"package-0": 0.0}


BURN = """
import os, subprocess, sys, threading, time
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
begin = time.process_time()
kind = sys.argv[2]
if kind == "child":
    subprocess.run([sys.executable, "-c", sys.argv[3]])
else:
    exec(sys.argv[3])
"""
SPIN = "import time\nwhile time.process_time() < 30: pass"


@pytest.fixture
def burners():
    """Busy processes on a processor, ended afterwards."""
    started = []

    def start(cpu, kind="self"):
        burner = subprocess.Popen(
            [sys.executable, "-c", BURN, str(cpu), kind, SPIN], stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(burner)
        burner.stdout.readline()
        return burner

    yield start
    for burner in started:
        os.killpg(burner.pid, 9)
        burner.wait()
        burner.stdout.close()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be pinned here")
@pytest.mark.parametrize("kind", ["self", "child"])
def test_two_busy_processes_on_one_processor_have_half_each(burners, kind):
    """Compared with what the processes themselves and the whole machine used in the same time, which is known
    from just before and just after."""
    cpu = min(os.sched_getaffinity(0))
    burning = burners(cpu, kind), burners(cpu)

    def spent():
        return np.array([*map(used, burning), busy()])

    outer = spent()
    whose = [Whose(burner.pid, [Domain("all", "CPU")], 0) for burner in burning]
    inner = spent()
    time.sleep(2.5)
    inner = spent() - inner
    share = [float(one.shares(S)[0].share[0]) for one in whose]
    outer = spent() - outer
    assert (inner[:2] / outer[2] - 0.03 <= share).all()
    assert (share <= outer[:2] / inner[2] + 0.03).all()


CHURN = """
import resource, subprocess, sys
spin = "import time\\nwhile time.process_time() < 0.08: pass"
print(flush=True)
for _ in sys.stdin:
    for _ in range(6):
        subprocess.run([sys.executable, "-S", "-c", spin])
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(usage.ru_utime + usage.ru_stime for usage in used), flush=True)
"""


def test_processes_that_come_and_go_between_two_looks_are_counted(burners):
    """None of them lives when it is looked; what the system says the program used is the truth."""
    burners(min(os.sched_getaffinity(0)))
    program = subprocess.Popen(
        [sys.executable, "-S", "-c", CHURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        program.stdout.readline()
        begin_s, least_s, most_s = busy(), 0.0, 0.0
        whose, since_s = Whose(program.pid, [Domain("all", "CPU")], 0), (begin_s, busy())
        for second in range(1, 5):
            print(file=program.stdin, flush=True)
            used_s = float(program.stdout.readline())
            before_s, (part,), after_s = busy(), whose.shares(second * S), busy()
            least_s += float(part.share[0]) * (before_s - since_s[1])
            most_s += float(part.share[0]) * (after_s - since_s[0])
            since_s = before_s, after_s
        program.stdin.close()
    unsure_s = 0.03 * (since_s[1] - begin_s)
    assert used_s > 1.5
    assert least_s - unsure_s <= used_s <= most_s + unsure_s


def used(burner):
    """Seconds of a process and its only child, to the nanosecond."""
    children = Path(f"/proc/{burner.pid}/task/{burner.pid}/children").read_text().split()
    spent = [Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in [burner.pid, *children]]
    return sum(map(int, spent)) / 1e9


def busy():
    """Seconds that the processors of this machine were busy."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    ticks = [int(word) for word in first.split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")
