"""How much of what real programs call is measured? On scripts and notebooks that packages ship with their
source, each run three times: plainly, under an oracle, and with sites.

    python scripts/calls_examples.py corpus/                      what calls_examples.txt names
    python scripts/calls_examples.py corpus/ --only gpytorch      of it what has this in its path

``corpus/`` keeps the source distributions, which are fetched from pip's index where they are not there yet.
Scripts are rewritten in memory, as by ``joulemap run --calls``, and notebooks patched, as by
``joulemap patch``.
Needed: Python 3.11 or later, IPython, and the packages that the examples import; what cannot be run here is
named in the result. Runs are forks of a process that has imported these packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urljoin

from calls_oracle import Oracle, Span

from joulemap.calls.notebooks import compile_cells, patch_notebook
from joulemap.calls.places import Places
from joulemap.calls.rewrite import rewrite

LIST = Path(__file__).with_suffix(".txt")
LIMITS_S = {"plain": 30, "oracle": 240, "sites": 90}
"""Processor time that a process may take."""
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "MPLBACKEND": "agg",
    "PYTHONHASHSEED": "0",
    "CI": "1",  # many examples are shorter then
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="where the source distributions are kept")
    parser.add_argument("--only", default="", help="only files with this in their path")
    parser.add_argument("--list", type=Path, default=LIST, help="names other examples")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    examples = [one for one in read_list(options.list) if options.only in one.path]
    results: list[dict[str, Any]] = []
    for _, some in groupby(examples, key=lambda one: one.distribution):
        results += in_fork(partial(measure_all, list(some), options.corpus), None) or []
    print(json.dumps(summary(results), indent=1))


def in_fork(work: Callable[[], Any], limit_s: int | None) -> Any:
    """What some work returns, done in a child that may take so much processor time; None where it died."""
    with tempfile.TemporaryFile() as answer:
        pid = os.fork()
        if not pid:
            if limit_s is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
            answer.write(json.dumps(work()).encode())
            answer.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        answer.seek(0)
        return json.loads(answer.read() or b"null")


@dataclass(frozen=True)
class Example:
    """A script or notebook of a source distribution, and whose calls are looked for in it."""

    distribution: str
    path: str
    libraries: tuple[str, ...]

    def fetch(self, corpus: Path) -> None:
        """Unpack the distribution, from PyPI where it is not here."""
        archive = corpus / f"{self.distribution}.tar.gz"
        if (corpus / self.path).exists():
            return
        if not archive.exists():
            corpus.mkdir(parents=True, exist_ok=True)
            archive.write_bytes(_downloaded(archive.name))
        with tarfile.open(archive) as packed:
            packed.extractall(corpus, filter="data")


def read_list(path: Path) -> list[Example]:
    """A line with a distribution and libraries, and below it the files."""
    examples: list[Example] = []
    libraries: list[str] = []
    for line in path.read_text().splitlines():
        if not line.startswith(" "):
            distribution, *libraries = line.split()
        else:
            file = f"{distribution}/{line.strip()}"
            examples.append(Example(distribution, file, tuple(libraries)))
    return examples


def _downloaded(name: str) -> bytes:
    """A source distribution from pip's index, as its hash says it is."""
    project = f"{_index()}/{name.rpartition('-')[0].lower().replace('_', '-')}/"
    with urllib.request.urlopen(project, timeout=60) as page:
        links = re.findall(r'href="([^"]+)"', page.read().decode())
    found = [link.split("#sha256=") for link in links if f"/{name}#" in link]
    if not found:
        raise SystemExit(f"{project} has no {name}.")
    (address, expected) = found[0]
    with urllib.request.urlopen(urljoin(project, address), timeout=300) as answer:
        content: bytes = answer.read()
    if hashlib.sha256(content).hexdigest() != expected:
        raise SystemExit(f"{address} is not what its hash says.")
    return content


def _index() -> str:
    """Where pip looks for packages here."""
    from pip._internal.models.index import PyPI

    ask = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    chosen = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    return (os.environ.get("PIP_INDEX_URL") or chosen or PyPI.simple_url).rstrip("/")


def measure_all(examples: Sequence[Example], corpus: Path) -> list[dict[str, Any]]:
    """The examples of one distribution, one after the other."""
    for example in examples:
        example.fetch(corpus)
    paths = [(corpus / example.path).resolve() for example in examples]
    for path in paths:
        _import_all(_runner(path).text())
    results = []
    for example, path in zip(examples, paths, strict=True):
        results.append({"path": example.path, **measure(path, example.libraries)})
        print(_line(results[-1]), file=sys.stderr, flush=True)
    return results


def measure(path: Path, libraries: tuple[str, ...]) -> dict[str, Any]:
    """One example: how it ended in each run, which call nodes are the libraries', and which were measured."""
    watches: dict[str, Callable[[], _Watch]] = {
        "plain": _Watch,
        "oracle": lambda: _Oracle(path, libraries),
        "sites": lambda: _Sites(path, libraries),
    }
    result: dict[str, Any] = {"ended": {}}
    for how, watch in watches.items():
        answer = in_fork(partial(_run, path, watch), LIMITS_S[how])
        result["ended"][how] = "not in time" if answer is None else answer["ended"]
        if answer is None:
            break
        result[how] = answer["found"]
    return result


def _run(path: Path, make_watch: Callable[[], _Watch]) -> dict[str, Any]:
    """Run an example in its own folder, with nobody to hear it."""
    os.chdir(path.parent)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    runner, watch = _runner(path), make_watch()
    watch.start(runner)
    ended = runner.run()
    return {"ended": ended, "found": watch.stop()}


class _Watch:
    """Nobody."""

    def start(self, runner: Runner) -> None: ...
    def stop(self) -> list[Any]:
        return []


class _Oracle(_Watch):
    """What is really called, and whose it is."""

    def __init__(self, path: Path, libraries: tuple[str, ...]) -> None:
        self._path, self._libraries = path, libraries

    def start(self, runner: Runner) -> None:
        self._oracle = Oracle(str(self._path), self._libraries, runner.source)
        self._oracle.start()

    def stop(self) -> list[Any]:
        return [[*span, library] for span, library in self._oracle.stop().items()]


class _Sites(_Watch):
    """What is recorded."""

    def __init__(self, path: Path, libraries: tuple[str, ...]) -> None:
        from joulemap.calls.loader import SiteLoader
        from joulemap.calls.runtime import CallMeter

        self._raw, self._libraries, self._name = Path(tempfile.mkdtemp()), libraries, path.name
        self._meter = CallMeter(self._raw, libraries, time.time_ns() - time.monotonic_ns(), print)
        self._loader = SiteLoader(self._meter.places, print, root=str(path.parent), libraries=libraries)

    def start(self, runner: Runner) -> None:
        runner.make_sites(self._meter.places, self._libraries)
        self._meter.start()
        self._loader.start()

    def stop(self) -> list[Any]:
        from joulemap.calls.raw import read_calls

        self._loader.stop()
        self._meter.stop()
        calls = read_calls(self._raw, time.time_ns())
        shutil.rmtree(self._raw)
        assert calls is not None
        one = calls.sites
        names = (Path(file).name for file in one.file)
        spans = (one.line.tolist(), one.column.tolist(), one.end_line.tolist(), one.end_column.tolist())
        return [span for span in zip(names, *spans, strict=True) if span[0].startswith(self._name)]


def _import_all(source: str) -> None:
    """What a program imports, as far as it is there."""
    for name in re.findall(r"^(?:import|from) ([a-zA-Z][\w.]*)", source, re.MULTILINE):
        with suppress(Exception):
            import_module(name)


class Runner(Protocol):
    """An example that can be run."""

    def text(self) -> str: ...
    def source(self, file: str) -> str:
        """The text of a code object's file."""
        ...

    def make_sites(self, places: Places, libraries: tuple[str, ...]) -> None: ...
    def run(self) -> str:
        """How it ended."""
        ...


def _runner(path: Path) -> Runner:
    return Notebook(path) if path.suffix == ".ipynb" else Script(path)


class Script:
    """A script, run as Python would."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._code = compile(path.read_bytes(), path, "exec", dont_inherit=True)

    def text(self) -> str:
        return self._path.read_text()

    def source(self, file: str) -> str:
        return Path(file).read_text()

    def make_sites(self, places: Places, libraries: tuple[str, ...]) -> None:
        rewritten = rewrite(self._path.read_bytes(), str(self._path), places.next)
        places.add(str(self._path), rewritten.places)
        self._code = rewritten.code

    def run(self) -> str:
        sys.argv = [str(self._path)]
        sys.path[0] = str(self._path.parent)
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__file__ = str(self._path)
        try:
            exec(self._code, vars(main))  # noqa: S102 - what examples are for
        except SystemExit as end:
            return f"exit {end.code or 0}"
        except Exception as error:  # noqa: BLE001 - how the example ends
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return "exit 0"


class Notebook:
    """A notebook, run cell by cell in IPython; shell commands are left out."""

    def __init__(self, path: Path) -> None:
        self._path, self._number = path, 0
        self._cells = _cells(path.read_text())
        self._sources: dict[str, str] = {}

    def text(self) -> str:
        return "\n".join(self._cells)

    def source(self, file: str) -> str:
        """A cell as Python, with its magics made calls; lines stay where they are."""
        return self._sources[file]

    def make_sites(self, places: Places, libraries: tuple[str, ...]) -> None:
        patched = patch_notebook(self._path.read_text(), self._path.name, libraries).text
        compile_cells(patched, self._path.name)
        self._cells = _cells(patched)

    def run(self) -> str:
        from IPython.core.interactiveshell import InteractiveShell

        sys.path[0] = str(self._path.parent)
        shell = InteractiveShell.instance()
        shell.system = shell.getoutput = shell.enable_gui = lambda *_, **__: None
        shell.compile.get_code_name = self._name
        errors = []
        for text in self._cells:
            self._number += 1
            error = shell.run_cell(text).error_in_exec
            if error is not None:
                errors.append(f"cell {self._number}: {type(error).__name__}")
        return ", ".join(errors) or "exit 0"

    def _name(self, raw_code: str, transformed_code: str, number: int) -> str:
        name = f"{self._path}[{self._number}]"
        self._sources.setdefault(name, transformed_code)
        return name


def _cells(notebook: str) -> list[str]:
    """The code of a notebook's cells."""
    code = (one["source"] for one in json.loads(notebook)["cells"] if one["cell_type"] == "code")
    return ["".join(one) if isinstance(one, list) else one for one in code]


def _line(result: dict[str, Any]) -> str:
    """What is seen while it runs."""
    nodes, missed = _found(result)
    where = ", ".join(f"{span[1]}:{span[2]}" for span in missed)
    return f"{len(nodes) - len(missed):4} of {len(nodes):4}  {result['path']}  {result['ended']} {where}"


def _found(result: dict[str, Any]) -> tuple[dict[Span, str], list[Span]]:
    """The call nodes of libraries, and those that were not measured."""
    nodes = {tuple(span): library for *span, library in result.get("oracle", ())}
    measured = {tuple(span) for span in result.get("sites", ())}
    return nodes, [span for span in nodes if span not in measured] if "sites" in result else list(nodes)


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Coverage by library; what was missed, what ended differently, and what could not be run."""
    ran = [one for one in results if "sites" in one and one["oracle"]]
    nodes: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    missed = []
    for one in ran:
        found, lost = _found(one)
        nodes.update(found.values())
        measured.update(found[span] for span in set(found) - set(lost))
        missed += [f"{one['path']} {span[0]}:{span[1]}:{span[2]} ({found[span]})" for span in lost]
    endings = {one["path"]: one["ended"] for one in ran}
    return {
        "scripts": sum(one["path"].endswith(".py") for one in ran),
        "notebooks": sum(one["path"].endswith(".ipynb") for one in ran),
        "call_nodes": nodes.total(),
        "measured": measured.total(),
        "coverage": measured.total() / max(nodes.total(), 1),
        "by_library": {one: [measured[one], nodes[one]] for one in sorted(nodes)},
        "missed": missed,
        "ended_differently": {
            path: ended for path, ended in endings.items() if ended["plain"] != ended["sites"]
        },
        "end_with_an_error_of_their_own": [path for path in endings if endings[path]["plain"] != "exit 0"],
        "not_measured": {one["path"]: one["ended"] for one in results if one not in ran},
    }


if __name__ == "__main__":
    main()
