"""What people see in a real terminal: colours by share, progress that goes away; and what a pipe gets."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from joulemap.accounting.watching import part, tell, watched
from joulemap.views.table import laid_out

from .calibrated_recordings import write_calibrated
from .command_line import left_on_screen, on_a_terminal
from .variants import write_variant

H200 = Path(__file__).parents[1] / "src" / "joulemap" / "data" / "bert-h200.joulemap"
COLOUR = re.compile(r"\x1b\[[\d;]*m")
IMPATIENT = "import joulemap.commands.output as o; o.LONG_S = 0.0; from joulemap.cli import main; main()"
"""Every work is long enough for a progress bar."""


@pytest.fixture(name="pair", scope="module")
def make_pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    return [
        write_variant(folder / "base.joulemap", 1, steps=4),
        write_variant(folder / "more.joulemap", 2, steps=4, factor=2.0),
    ]


def watched_on_a_terminal(*arguments):
    """All that a command sends to a terminal, where every work is long."""
    reading, writing = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, *map(str, arguments)],
        stdout=writing,
        stderr=writing,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"},
    )
    os.close(writing)
    out = b""
    while True:
        try:
            chunk = os.read(reading, 1 << 16)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    os.close(reading)
    assert done.wait() == 0, out
    return out.decode()


def test_shares_are_coloured_where_people_look():
    shown = on_a_terminal("show", H200, "--depth", 1, columns=110)
    idle = next(line for line in shown.splitlines() if "GPU:0 idle" in line)
    small = next(line for line in shown.splitlines() if "(unnamed)" in line)
    assert re.search(r"\x1b\[1;31m *78\.8 %", idle)
    assert re.search(r"\x1b\[2m *0\.0 %", small)
    assert "████" in idle


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_a_comparison_fits_its_terminal(pair, columns):
    shown = COLOUR.sub("", on_a_terminal("compare", *pair, columns=columns))
    assert max(map(len, shown.splitlines())) <= columns
    row = next(line for line in shown.splitlines() if "layer_1" in line)
    assert "more" in row
    assert not re.search(r"[\d%]…", shown), "a number that is cut short"
    assert (" … " in row) == (columns > 80), "the interval of the change, where there is room"


def test_calibrated_beside_time_based_fits_too(tmp_path):
    pair = [write_calibrated(tmp_path / f"{one}.joulemap", factor=one) for one in (1, 3)]
    for command, columns in (("compare", 80), ("show", 60)):
        given = pair if command == "compare" else pair[:1]
        shown = COLOUR.sub("", on_a_terminal(command, *given, "--rule", "calibrated", columns=columns))
        assert max(map(len, shown.splitlines())) <= columns
        assert " by time" in shown
        assert not re.search(r"[\d%]…", shown)


@pytest.mark.parametrize("width", [30, 60, 200])
def test_long_names_give_way_in_their_middle(width):
    """Where people look and in a pipe: what inductor calls its kernels differs at the end."""
    columns = [("energy", ["1.00 J", "2.00 J", "3.00 J"]), ("share", ["1 %", "2 %", "97 %"])]
    long = "cpp_fused_" + "native_dropout_" * 20
    names = [Text(f"{long}_3"), Text(f"{long}_8"), Text("dense")]
    said = Console(width=width, file=io.StringIO(), color_system=None)
    said.print(laid_out("module", names, columns, width))
    _, third, eighth, dense = rows = said.file.getvalue().splitlines()
    assert re.match(r"cpp_f.*…\w*_3 +1\.00 J +1 %", third)
    assert re.match(r"cpp_f.*…\w*_8 +2\.00 J +2 %", eighth)
    assert re.match(r"dense +3\.00 J +97 %", dense)
    assert max(map(len, rows)) <= width


def test_verdicts_have_colours(pair):
    shown = on_a_terminal("compare", *pair, columns=120)
    assert "\x1b[1;31mmore" in shown


def test_long_work_has_a_progress_bar_with_an_estimate_that_goes_away(pair, tmp_path):
    for arguments, what in (
        (("show", H200), "accounting"),
        (("compare", *pair), "comparing"),
        (("precision", *pair), "accounting"),
        (("export", H200, "--to", "perfetto", "-o", tmp_path / "t.json"), "writing perfetto"),
    ):
        shown = watched_on_a_terminal(*arguments)
        assert re.search(rf"{what} .*%", COLOUR.sub("", shown)), arguments
        assert re.search(r"\d:\d\d:\d\d|-:--:--", COLOUR.sub("", shown))
        last = COLOUR.sub("", shown).rsplit("\x1b[2K", 1)[1]
        assert "━" not in last, arguments


def test_nothing_of_it_is_in_a_pipe(pair):
    for arguments in (("show", H200), ("compare", *pair), ("precision", *pair)):
        done = subprocess.run(
            [sys.executable, "-c", IMPATIENT, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        assert "\x1b" not in done.stdout


def test_a_bar_that_has_gone_leaves_nothing():
    shown = watched_on_a_terminal("show", H200, "--depth", 1).replace("\r\n", "\n")
    assert "━" in shown
    left = left_on_screen(shown)
    assert left.startswith("\x1b[1mbert-h200.joulemap")
    assert not re.search(r"━|\x1b\[[^m]*[A-Zhl]", left)


def test_an_accounting_says_how_far_it_is():
    told = []
    with watched(told.append):
        tell(0.5)
        with part(1, 2):
            tell(0.5)
            tell(7.0)
    tell(0.1)
    assert told == [0.5, 0.75, 1.0]
