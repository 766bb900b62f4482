"""joulemap as a user runs it: a real process, in a pipe or on a terminal."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys

from joulemap.cli import main


def said(*arguments, check=0):
    """What a command prints and complains of, in this process: for what need not be a process of its own."""
    out = io.StringIO()
    code = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main([*map(str, arguments)])
    except SystemExit as ended:
        code = ended.code
    assert (code or 0) == check, out.getvalue()
    return out.getvalue()


def joulemap(*arguments, check=0, columns=None, **env):
    """Run a command; its exit code must be ``check``."""
    done = subprocess.run(
        [sys.executable, "-m", "joulemap", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": str(columns or ""), **env},
        timeout=120,
        check=False,
    )
    assert done.returncode == check, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def on_a_terminal(*arguments, columns):
    """What a command prints when it believes that people are looking."""
    out = b""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
        os.execve(sys.executable, [sys.executable, "-m", "joulemap", *map(str, arguments)], environment)
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return left_on_screen(out.decode().replace("\r\n", "\n"))


def left_on_screen(text):
    """What is there when the command has ended, with its colours: where work takes long, and that depends on
    the machine, a progress bar was there before and has gone."""
    lines = [""]
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Zhl]|\n|\r)", text):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[1A":
            lines.pop()
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif not re.fullmatch(r"\x1b\[\?25[hl]|\r", part):
            lines[-1] += part
    return "\n".join(lines)
