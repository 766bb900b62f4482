"""The unit for systemd: what can be said of it without a system that runs it."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joulemap.commands.monitor import command
from joulemap.meters.remote import SYSTEM_SOCKET

from .monitor_daemon import Daemon, open_folder
from .monitor_meters import Feeder
from .recordings import REPOSITORY

UNIT = REPOSITORY / "packaging/joulemap-monitor.service"


def setting(name):
    (value,) = [
        line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith(f"{name}=")
    ]
    return value


def test_it_starts_a_monitor_where_programs_look_for_one():
    program, name, *arguments = shlex.split(setting("ExecStart"))
    assert (program.rpartition("/")[2], name) == ("joulemap", command.name)
    given = command.make_context(name, arguments).params
    assert given["socket"] == SYSTEM_SOCKET
    assert given["group"] == "joulemap"
    assert setting("RuntimeDirectory") == SYSTEM_SOCKET.parent.name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_it(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/joulemap", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []


def can_limit_itself():
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run(["setpriv", "--bounding-set", "-all", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_limit_itself(), reason="only root with setpriv can limit its capabilities")
def test_the_capabilities_that_it_leaves_are_enough(monkeypatch):
    """The service starts, gives its socket to a group and ends, with no other capability of root's."""
    pytest.importorskip("grpc")
    kept = [name.removeprefix("CAP_").lower() for name in setting("CapabilityBoundingSet").split()]
    bounds = ",".join(["-all", *(f"+{name}" for name in kept)])
    with open_folder() as folder:
        Feeder(folder / "package-0_uj")
        daemon = Daemon(folder, folder / "s", "--group", "daemon")
        limits = ["setpriv", "--no-new-privs", "--bounding-set", bounds, "--inh-caps", "-all"]
        monkeypatch.setattr(daemon, "_command", [*limits, *daemon._command])
        with daemon:
            assert (folder / "s").stat().st_mode & 0o777 == 0o660
            status = Path(f"/proc/{daemon.process.pid}/status").read_text()
            assert int(status.split("CapBnd:")[1].split()[0], 16).bit_count() == len(kept)
            assert daemon.stop(signal.SIGTERM) == 0
