"""A program run twice, once plainly and once under ``joulemap run``: what can be seen of it is the same, and
the recording opens, conserves, and knows its steps and layers."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import joulemap

from .environment import uncovered
from .gloo import unaborted

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent / "examples"


@dataclass(frozen=True)
class Case:
    """A program, how it ends, and what its recording must know: labels of steps, and paths of layers."""

    script: str
    steps: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    code: int = 0
    dated: str = ""
    """A pattern for files that differ between two plain runs: there is a time in them, or chance."""
    timed: str = ""
    """What the program prints that differs between two plain runs, as a regular expression."""
    arguments: tuple[str, ...] = ("one", "--two")
    options: tuple[str, ...] = ("--trace-all",)

    @property
    def name(self) -> str:
        return self.script.removesuffix(".py")


@dataclass(frozen=True)
class Seen:
    """All that can be seen of a program from outside."""

    code: int
    out: bytes
    errors: list[str]
    files: dict[str, str]


@dataclass(frozen=True)
class Home:
    """Where the programs of a framework are, and the environment that they run in."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    made_up: str = r"0x[0-9a-f]{6,}"
    """What differs in messages from run to run anyway: addresses, names made by chance."""
    said_once: str = r"(?!)"
    """Lines that a process says once, to whoever is first to use what they are about."""

    def check(self, case: Case, folder: Path) -> None:
        """Run it both ways and compare."""
        recording = folder / "r.joulemap"
        program = [str(self._path(case)), *case.arguments]
        ours = ["-m", "joulemap", "run", "--quiet", "--overwrite", *case.options, "-o", str(recording)]
        plain = self._unaborted(program, folder / "plain", case)
        recorded = self._unaborted([*ours, *program], folder / "recorded", case)
        assert plain.code == case.code, plain.errors
        assert recorded.code == plain.code, recorded.errors
        assert recorded.out == plain.out
        assert recorded.errors == plain.errors
        assert recorded.files == plain.files
        _check(joulemap.load(recording), case)

    def _path(self, case: Case) -> Path:
        return next(path for at in (self.folder, EXAMPLES) if (path := at / case.script).exists())

    def _unaborted(self, command: list[str], folder: Path, case: Case) -> Seen:
        return unaborted(
            lambda turn: self._run(command, folder.with_name(f"{folder.name}-{turn}"), case),
            lambda seen: "\n".join(seen.errors),
        )

    def _run(self, command: list[str], folder: Path, case: Case) -> Seen:
        """In a folder of its own, with something to read."""
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**uncovered(), **self.environment},
            input=b"1\n2\n3\n",
            capture_output=True,
            timeout=300,
            check=False,
        )
        out = re.sub(case.timed.encode(), b"", done.stdout) if case.timed else done.stdout
        return Seen(done.returncode, out, self._without_chance(done.stderr), _written(folder, case.dated))

    def _without_chance(self, errors: bytes) -> list[str]:
        """Lines less what differs from run to run anyway: times, process ids, addresses, made-up names."""
        text = errors.decode(errors="replace")
        text = re.sub(r"(?m)^([IWEF])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ ", r"\1 ", text)
        text = re.sub(rf"(?m)^{self.said_once}.*\n", "", text)
        return re.sub(self.made_up, "…", text).splitlines()


def _written(folder: Path, dated: str) -> dict[str, str]:
    """What files there are, and a digest of each that can be the same twice."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        re.sub(r"(tfevents)\.\S+", r"\1", name): "" if _by_chance(name, dated) else _digest(path)
        for name, path in files.items()
    }


def _by_chance(name: str, dated: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in ("*tfevents*", *dated.split("|")))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check(recording: joulemap.Recording, case: Case) -> None:
    """It is complete, conserves, and knows the program's steps and layers."""
    assert recording.info.status == "complete"
    footprint = joulemap.account(recording)
    footprint.check()
    assert footprint.measured_j > 0
    assert set(case.steps) <= set(recording.steps().label.words)
    names = {row["name"] for row in footprint.to_records()}
    assert [layer for layer in case.layers if not any(name.startswith(f"{layer}/") for name in names)] == []
