"""``joulemap run`` around real programs: each behaves as it does without us, and nothing is lost."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import joulemap
from joulemap.recording.folder import RAW

IDENTITY = """
    import json, os, sys
    main = sys.modules["__main__"]
    print(json.dumps({
        "names": sorted(vars(main)), "name": __name__, "file": globals().get("__file__"), "doc": __doc__,
        "package": __package__, "spec": __spec__ and __spec__.name, "loader": type(__loader__).__name__,
        "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "flags": str(sys.flags),
        "environ": {k: v for k, v in os.environ.items() if k not in ("_", "COV_CORE_DATAFILE")},
        "numpy": "numpy" in sys.modules, "cwd": os.getcwd(), "tty": sys.stdin.isatty(),
    }))
"""


def program(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def plainly(folder: Path, *arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, *map(str, arguments)], folder, **options)


def recorded(folder: Path, *arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", *map(str, arguments)]
    return _run(command, folder, **options)


def _run(command: Sequence[str], folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    settings = {"cwd": folder, "capture_output": True, "text": True, "timeout": 300, **options}
    return subprocess.run(command, **settings)  # type: ignore[call-overload, no-any-return]


def same(folder: Path, *arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run it both ways: output, errors and exit code must not differ."""
    plain, ours = plainly(folder, *arguments, **options), recorded(folder, *arguments, **options)
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode
    return ours


def recording(folder: Path) -> joulemap.Recording:
    found = joulemap.load(folder / "r.joulemap")
    joulemap.account(found).check()
    return found


def test_a_script_is_the_main_program_it_would_have_been(tmp_path: Path) -> None:
    script = program(tmp_path, IDENTITY, "here/program.py")
    said = json.loads(same(tmp_path, script, "a", "--b", "-c").stdout)
    assert said["argv"] == [str(script), "a", "--b", "-c"]
    assert not said["numpy"]
    assert recording(tmp_path).info.status == "complete"


def test_a_module_is_the_main_program_it_would_have_been(tmp_path: Path) -> None:
    program(tmp_path, "", "package/__init__.py")
    program(tmp_path, IDENTITY, "package/tool.py")
    same(tmp_path, "-m", "package.tool", "--x", "1")


def test_a_folder_and_an_archive_run_too(tmp_path: Path) -> None:
    import zipfile

    program(tmp_path, IDENTITY, "folder/__main__.py")
    same(tmp_path, "folder", "1")
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.write(tmp_path / "folder/__main__.py", "__main__.py")
    plain, ours = (
        plainly(tmp_path, "archive.pyz"),
        _run([sys.executable, "-m", "joulemap", "run", "-q", "-o", "z.joulemap", "archive.pyz"], tmp_path),
    )
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)


def test_the_users_own_path_and_sitecustomize_are_kept(tmp_path: Path) -> None:
    program(tmp_path, "import sys; sys.theirs = 'here'", "theirs/sitecustomize.py")
    script = program(tmp_path, IDENTITY + "    print(sys.theirs)")
    theirs = os.pathsep.join([str(tmp_path / "theirs"), str(Path(joulemap.__file__).parents[1])])
    said = same(tmp_path, script, env={**os.environ, "PYTHONPATH": theirs})
    assert said.stdout.endswith("here\n")
    assert json.loads(said.stdout.splitlines()[0])["environ"]["PYTHONPATH"] == theirs


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("def f():\n    raise ValueError('deep')\nf()", 1),
        ("def (", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import sys\nsys.excepthook = lambda *a: print('mine', len(a))\nraise OSError", 1),
        ("import atexit; atexit.register(print, 'bye'); print('hello')", 0),
    ],
)
def test_the_end_is_the_programs_own(tmp_path: Path, text: str, code: int) -> None:
    assert same(tmp_path, program(tmp_path, text)).returncode == code
    assert recording(tmp_path).info.status == "complete"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import os; print('x', flush=True); os._exit(5)", 5),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(42)'])", 0),
    ],
)
def test_an_end_without_exit_handlers_is_said_and_nothing_is_lost(
    tmp_path: Path, text: str, code: int
) -> None:
    assert same(tmp_path, program(tmp_path, text)).returncode == code
    found = recording(tmp_path)
    assert found.info.status == "interrupted"
    assert any("exit handlers" in warning or "ended by SIG" in warning for warning in found.info.warnings)
    assert found.power()


def test_standard_input_is_the_programs(tmp_path: Path) -> None:
    script = program(tmp_path, "import sys; print(sys.stdin.read()[::-1])")
    assert same(tmp_path, script, input="abc").stdout == "cba\n"


def test_forked_children_leave_the_recording_alone(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import os, sys, atexit
        import joulemap
        child = os.fork()
        with joulemap.measure("child" if not child else "parent"):
            pass
        if not child:
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    assert recorded(tmp_path, script).stdout == "7\n"
    table = recording(tmp_path).table("regions")
    assert table is not None
    assert table["name"].to_pylist() == ["parent"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_as_before(tmp_path: Path, method: str) -> None:
    script = program(
        tmp_path,
        f"""
        import multiprocessing, sys
        def work(n):
            return n * n, "joulemap.recorder.inside" in sys.modules and "{method}" == "spawn"
        if __name__ == "__main__":
            multiprocessing.set_start_method("{method}")
            with multiprocessing.Pool(2) as pool:
                print(pool.map(work, range(5)))
        """,
    )
    assert "(16, False)" in same(tmp_path, script).stdout


def test_a_signal_for_joulemap_reaches_the_program(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import os, signal, sys, time
        def bye(number, frame):
            os.write(1, b"caught %d\\n" % number)  # the signal may come before print has returned
            sys.exit(9)
        signal.signal(signal.SIGTERM, bye)
        print("ready", flush=True)
        time.sleep(60)
        """,
    )
    command = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", str(script)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == f"caught {signal.SIGTERM}\n"
        assert process.wait(60) == 9
    assert recording(tmp_path).info.status == "complete"


def test_ctrl_c_at_the_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import signal, time
        heard = []
        signal.signal(signal.SIGINT, lambda *_: heard.append(1))
        print("ready", flush=True)
        until_s = time.monotonic() + 60
        while not heard and time.monotonic() < until_s:
            time.sleep(0.05)
        time.sleep(1)
        print("interrupted", len(heard), "times", flush=True)
        """,
    )
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        arguments = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", str(script)]
        os.execv(sys.executable, arguments)
    said = _read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    said += _read_until(terminal, b"times")
    assert b"interrupted 1 times" in said
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def _read_until(terminal: int, text: bytes) -> bytes:
    said, until = b"", time.monotonic() + 60
    while text not in said and time.monotonic() < until:
        said += os.read(terminal, 1024)
    return said


def test_when_joulemap_itself_is_killed_the_recording_can_still_be_read(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import time
        import joulemap
        with joulemap.measure("early"):
            time.sleep(0.1)
        time.sleep(0.6)
        with joulemap.measure("later"):
            pass
        print("ready", flush=True)
        time.sleep(2)
        """,
    )
    command = [sys.executable, "-m", "joulemap", "run", "-o", "r.joulemap", str(script)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait()
        process.stdout.read()  # until the program has ended, too
    found = recording(tmp_path)
    table = found.table("regions")
    assert table is not None
    assert table["name"].to_pylist()[0] == "early"
    assert not (tmp_path / "r.joulemap" / RAW).exists()


def test_the_summary_goes_to_standard_error_and_says_what_to_do_next(tmp_path: Path) -> None:
    script = program(tmp_path, "print('output')")
    done = _run([sys.executable, "-m", "joulemap", "run", str(script)], tmp_path)
    assert done.stdout == "output\n"
    assert "(the whole program)" in done.stderr
    assert "joulemap show program-" in done.stderr
    [made] = tmp_path.glob("program-*.joulemap")
    assert joulemap.load(made).info.host["machine"]


def test_the_exit_code_is_the_programs_where_nobody_reads_the_summary(tmp_path: Path) -> None:
    script = program(tmp_path, "import sys; sys.exit(3)")
    gone, pipe = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "joulemap", "run", "-o", "r.joulemap", str(script)]
    done = subprocess.run(command, cwd=tmp_path, stderr=pipe, timeout=120, check=False)
    os.close(pipe)
    assert done.returncode == 3


@pytest.mark.parametrize("count", ["float('nan')", "-1", "'many'", "[1, 2]"])
def test_what_cannot_be_counted_is_refused_recorded_or_not(tmp_path: Path, count: str) -> None:
    source = f"""
        import joulemap
        with joulemap.measure("decode", unit="token") as tokens:
            tokens.add(3)
            try:
                tokens.add({count})
            except (TypeError, ValueError) as error:
                print(type(error).__name__)
        print(tokens.count)
        """
    script = program(tmp_path, source)
    plain = subprocess.check_output([sys.executable, script], text=True)
    assert plain.endswith("Error\n3.0\n")
    assert recorded(tmp_path, script).stdout == plain
    table = recording(tmp_path).table("regions")
    assert table is not None
    assert table["count"].to_pylist() == [3.0]


def test_threads_and_tasks_count_what_is_theirs(tmp_path: Path) -> None:
    """In one part of a program, which both are in at once: the first to come is the first to leave."""
    source = """
        import asyncio, threading
        import joulemap
        serve = joulemap.measure("serve", unit="request")
        came, left = threading.Event(), threading.Event()
        def first():
            with serve as requests:
                came.wait()
                requests.add(1)
            left.set()
        def second():
            with serve as requests:
                came.set()
                left.wait()
                requests.add(10)
        threads = [threading.Thread(target=one) for one in (first, second)]
        for one in threads: one.start()
        for one in threads: one.join()
        async def task(count, before, after):
            with serve as requests:
                after.set()
                await before.wait()
                requests.add(count)
        async def both():
            early, late = asyncio.Event(), asyncio.Event()
            one = asyncio.create_task(task(100, late, early))
            await early.wait()
            await asyncio.gather(one, task(1000, early, late))
        asyncio.run(both())
        import contextvars
        open_too = contextvars.Context()
        def begin():
            global stale
            serve.__enter__()
            stale = contextvars.copy_context()
            serve.__exit__(None, None, None)
        open_too.run(begin)
        serve.__enter__().add(10000)  # and ends where another one was open once
        stale.run(serve.__exit__, None, None, None)
        """
    done = recorded(tmp_path, program(tmp_path, source))
    assert done.returncode == 0, done.stderr
    table = recording(tmp_path).table("regions")
    assert table is not None
    assert sorted(table["count"].to_pylist()) == [0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0]


def test_what_a_part_of_a_program_counts_has_its_energy_each(tmp_path: Path) -> None:
    source = """
        import joulemap, time
        for count in (3, 5):
            with joulemap.measure("decode", unit="token") as tokens:
                tokens.add(1)
                time.sleep(0.2)
                tokens.add(count - 1)
        with joulemap.measure("load"):
            time.sleep(0.2)
        print(tokens.count)
        """
    script = program(tmp_path, source)
    assert subprocess.check_output([sys.executable, script], text=True) == "5.0\n"
    assert recorded(tmp_path, script).stdout == "5.0\n"
    table = recording(tmp_path).table("regions")
    assert table is not None
    assert list(zip(*(table[name].to_pylist() for name in ("count", "unit")), strict=True)) == [
        (3.0, "token"),
        (5.0, "token"),
        (None, None),
    ]
    show = [sys.executable, "-m", "joulemap", "show", "r.joulemap", "--by", "region"]
    said = subprocess.check_output(show, cwd=tmp_path, text=True)
    decode, load = (next(line for line in said.splitlines() if name in line) for name in ("decode ", "load "))
    assert "/token" in decode
    assert "/" not in load
    rows = json.loads(subprocess.check_output([*show, "--json"], cwd=tmp_path, text=True))["rows"]
    assert {(row["region"], row.get("count"), row.get("unit")) for row in rows} == {
        ("decode", 8.0, "token"),
        ("load", None, None),
    }


def test_steps_and_regions_that_the_program_marks_are_kept(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import time
        import joulemap
        @joulemap.measure("loading")
        def load():
            time.sleep(0.05)
        load()
        for number in range(4):
            with joulemap.step("train"):
                with joulemap.step("inner"):
                    sum(range(20_000_000))
        """,
    )
    assert recorded(tmp_path, script).returncode == 0
    found = recording(tmp_path)
    steps = found.steps()
    assert steps is not None
    assert list(steps.label) == ["train"] * 4
    names = set(joulemap.account(found).name)
    assert {"(start-up)", "(between steps)", "(untraced)"} <= names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "does not exist"),
        (["--overhead", "much", "x.py"], "is not a share"),
        (["--steps", "5-2", "x.py"], "are not steps"),
        ([], "PROGRAM"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "x.py").write_text("print('ran')")
    done = _run([sys.executable, "-m", "joulemap", "run", *arguments], tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert not done.stdout


def test_an_existing_recording_is_not_overwritten_unasked(tmp_path: Path) -> None:
    script = program(tmp_path, "print('ran')")
    assert recorded(tmp_path, script).returncode == 0
    again = recorded(tmp_path, script)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert recorded(tmp_path, "--overwrite", script).returncode == 0


def test_without_any_meter_the_program_still_runs(tmp_path: Path) -> None:
    script = program(tmp_path, "print('ran')")
    done = recorded(tmp_path, script, env={**os.environ, "JOULEMAP_METERS": "builtins:list"})
    assert done.stdout == "ran\n"
    assert done.returncode == 0
    found = joulemap.load(tmp_path / "r.joulemap")
    assert any("Nothing is metered" in warning for warning in found.info.warnings)


def test_a_program_of_a_moment_has_its_energy(tmp_path: Path) -> None:
    assert recorded(tmp_path, program(tmp_path, "sum(range(6_000_000))")).returncode == 0
    footprint = joulemap.account(recording(tmp_path))
    drawn_j = footprint.measured_j - footprint.outside_j - footprint.other_processes_j
    assert footprint.attributed_j > 0.05 * drawn_j > 0  # beside whatever else runs here


def test_regions_have_the_energy_of_their_time(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import joulemap
        with joulemap.measure("outer"):
            for _ in range(2):
                with joulemap.measure("inner"):
                    sum(range(10_000_000))
        """,
    )
    assert recorded(tmp_path, script).returncode == 0
    shown = _run(
        [sys.executable, "-m", "joulemap", "show", "r.joulemap", "--by", "region", "--json"], tmp_path
    )
    rows = {(row["region"], row["domain"]): row for row in json.loads(shown.stdout)["rows"]}
    outer, inner = rows["outer", "CPU"], rows["inner", "CPU"]
    assert (outer["calls"], inner["calls"]) == (1, 2)
    assert 0 < inner["energy_j"] <= outer["energy_j"] <= outer["high_j"]
    assert inner["active_s"] <= outer["active_s"]
    footprint = joulemap.account(recording(tmp_path))
    assert (
        sum(row["energy_j"] for (name, _), row in rows.items() if name == "outer")
        <= footprint.attributed_j * 1.001
    )
