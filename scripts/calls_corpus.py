"""Do the test modules that libraries ship end as before with sites in them, and how much is measured? Each is
run plainly, under an oracle, and with sites.

    python scripts/calls_corpus.py --library keras --files 20
    python scripts/calls_corpus.py --library unittest,collections --tests-of test --files 200 --apart
    python scripts/calls_corpus.py --library logging --tests-of test --named test_logging,test_warnings
    python scripts/calls_corpus.py --library torch --static     all of its source, rewritten and not run

``test`` is the standard library's. Each test must end with sites as it does without anybody watching; one
that ends differently in two plain runs is said to differ by itself.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calls_oracle import Oracle, Span

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
WAYS = ("plain", "again", "oracle", "sites")
LIMIT_S = 600


def main() -> None:
    options = _options()
    if options.child:
        _child(options)
        return
    if options.static:
        print(json.dumps(static(options.library), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        tests_of = options.tests_of or options.library.split(",")[0]
        files = assemble(tests_of, Path(folder) / "corpus", _choice(options))
        runs = {way: _run(way, options, Path(folder), files) for way in WAYS if way not in options.without}
    print(json.dumps(_report(options.library, files, runs), indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="whose calls are measured: one or several, a,b")
    parser.add_argument("--tests-of", help="the package whose test modules are run; else the library")
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--match", default="", help="only files with this in their path")
    parser.add_argument("--named", default="", help="just the modules of these names, of any size: a,b")
    parser.add_argument("--static", action="store_true", help="only rewrite and patch, every file there is")
    parser.add_argument("--apart", action="store_true", help="a process for each module")
    parser.add_argument(
        "--without", nargs="*", default=(), choices=("again", "oracle"), help="leave out runs"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--module", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def static(library: str) -> dict[str, Any]:
    """Every source file and notebook of a package, rewritten in memory and as text: does it compile?"""
    from joulemap.calls.notebooks import patch_notebook
    from joulemap.calls.patching import patch_bytes
    from joulemap.calls.rewrite import rewrite

    root = _root_of(library)
    counts = {"files": 0, "notebooks": 0, "bytes": 0, "sites": 0, "patched": 0, "left": 0}
    failed, begin_s = [], time.process_time()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.ipynb")]):
        content = path.read_bytes()
        try:
            if path.suffix == ".ipynb":
                result = patch_notebook(content.decode(), path.name, [library])
            else:
                compile(content, str(path), "exec", dont_inherit=True)
                counts["sites"] += len(rewrite(content, str(path)).places)
                written, result = patch_bytes(content, path.name, [library])
                compile(written, str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            failed.append(f"{path.relative_to(root)}: {error}")
            continue
        counts["notebooks" if path.suffix == ".ipynb" else "files"] += 1
        counts["bytes"] += len(content)
        counts["patched"] += result.sites
        counts["left"] += len(result.left)
    return {"library": library, **counts, "cpu_s": round(time.process_time() - begin_s, 1), "failed": failed}


def _root_of(library: str) -> Path:
    spec = find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{library} is not installed.")
    return Path(spec.submodule_search_locations[0])


Choice = Callable[[list[Path]], list[Path]]


def _choice(options: argparse.Namespace) -> Choice:
    """Which of the test modules there are."""
    if options.named:
        names = options.named.split(",")
        return lambda found: [path for name in names for path in found if path.stem == name]

    def evenly(found: list[Path]) -> list[Path]:
        alone = [path for path in found if options.match in str(path) and _stands_alone(path)]
        return alone[:: max(len(alone) // options.files, 1)][: options.files]

    return evenly


def assemble(library: str, corpus: Path, choose: Choice) -> dict[str, str]:
    """Copies of some of a library's test modules."""
    root = _root_of(library)
    corpus.mkdir()
    names = {}
    for number, path in enumerate(choose(sorted([*root.rglob("*_test.py"), *root.rglob("test_*.py")]))):
        name = f"test_{number}_{path.stem}.py"
        shutil.copy(path, corpus / name)
        names[name] = str(path.relative_to(root.parent))
    return names


def _stands_alone(path: Path) -> bool:
    """Whether it needs nothing beside it, and is neither tiny nor huge."""
    source = path.read_text(errors="replace")
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return 2_000 < len(source) < 60_000 and not any(node.level for node in imports)


def _run(way: str, options: argparse.Namespace, folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """One run over the whole corpus, or over one module after the other."""
    total: dict[str, Any] = {"outcomes": {}, "spans": [], "cpu_s": 0.0}
    for module in files if options.apart else [""]:
        result = _run_in_process(way, options, folder, module)
        total["outcomes"].update(result["outcomes"])
        total["spans"] += result["spans"]
        total["cpu_s"] += result["cpu_s"]
    return total


def _run_in_process(way: str, options: argparse.Namespace, folder: Path, module: str) -> dict[str, Any]:
    result = folder / f"{way}.json"
    result.unlink(missing_ok=True)
    arguments = ["--child", way, "--library", options.library, "--folder", str(folder), "--module", module]
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if result.exists():
        return json.loads(result.read_text())  # type: ignore[no-any-return]
    return {"outcomes": {module: f"ended with {process.returncode}"}, "spans": [], "cpu_s": 0.0}


def _child(options: argparse.Namespace) -> None:
    """One run inside this process."""
    import pytest

    folder: Path = options.folder
    corpus = folder / "corpus"
    outcomes = _Outcomes()
    begin_s = time.process_time()
    watch = _watch(options.child, folder, options.library.split(","))
    sys.path[0] = str(corpus)
    arguments = ["-q", "--assert=plain", "--continue-on-collection-errors", "-c", os.devnull]
    plugins = ["no:randomly", "no:cacheprovider", "no:xdist", "no:cov", "no:warnings", "no:faulthandler"]
    chosen = [f"--rootdir={corpus}", *(f"-p{one}" for one in plugins), str(corpus / options.module)]
    os.chdir(corpus)
    watch.start()
    pytest.main([*arguments, *chosen], plugins=[outcomes])
    spans = sorted(watch.stop())
    result = {"outcomes": outcomes.ended, "spans": spans, "cpu_s": time.process_time() - begin_s}
    (folder / f"{options.child}.json").write_text(json.dumps(result))


def _watch(way: str, folder: Path, libraries: list[str]) -> _Watch:
    if way == "oracle":
        return _Profiled(folder, libraries)
    return _Sites(folder, libraries) if way == "sites" else _Watch()


class _Outcomes:
    """How each test ended."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.ended[report.nodeid] = report.outcome

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.ended[report.nodeid] = "not collected"


class _Watch:
    """Nobody: how the tests end by themselves."""

    def start(self) -> None: ...
    def stop(self) -> set[Span]:
        return set()


class _Sites(_Watch):
    """The calls that were recorded, by the span of what is called."""

    def __init__(self, folder: Path, libraries: list[str]) -> None:
        from joulemap.calls.loader import SiteLoader
        from joulemap.calls.runtime import CallMeter

        self._raw = Path(tempfile.mkdtemp(dir=folder))
        self._meter = CallMeter(self._raw, libraries, time.time_ns() - time.monotonic_ns(), print)
        root = str(folder / "corpus")
        self._loader = SiteLoader(self._meter.places, print, root=root, libraries=libraries)

    def start(self) -> None:
        self._meter.start()
        self._loader.start()

    def stop(self) -> set[Span]:
        from joulemap.calls.raw import read_calls

        self._loader.stop()
        self._meter.stop()
        calls = read_calls(self._raw, time.time_ns())
        assert calls is not None
        one = calls.sites
        spans = (one.line.tolist(), one.column.tolist(), one.end_line.tolist(), one.end_column.tolist())
        return set(zip((Path(file).name for file in one.file), *spans, strict=True))


class _Profiled(_Watch):
    """The calls that Python's profiler saw."""

    def __init__(self, folder: Path, libraries: list[str]) -> None:
        self._oracle = Oracle(str(folder / "corpus"), libraries, lambda file: Path(file).read_text())

    def start(self) -> None:
        self._oracle.start()

    def stop(self) -> set[Span]:
        return set(self._oracle.stop())


def _report(library: str, files: dict[str, str], runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    plain, sites = runs["plain"]["outcomes"], runs["sites"]["outcomes"]
    again = runs.get("again", runs["plain"])["outcomes"]
    fickle = {one for one in {*plain, *again} if plain.get(one) != again.get(one)}
    differ = [one for one in sorted({*plain, *sites} - fickle) if plain.get(one) != sites.get(one)]
    report: dict[str, Any] = {
        "library": library,
        "files": len(files),
        "tests": len(plain),
        "passed": sum(one == "passed" for one in plain.values()),
        "ended_differently": {one: [plain.get(one), sites.get(one)] for one in differ},
        "differ_by_themselves": sorted(fickle),
        "cpu_s": {how: round(run["cpu_s"], 1) for how, run in runs.items()},
    }
    return report if "oracle" not in runs else {**report, **_coverage(files, runs)}


def _coverage(files: dict[str, str], runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    real = {tuple(one) for one in runs["oracle"]["spans"]}
    measured = {tuple(one) for one in runs["sites"]["spans"]}
    return {
        "call_nodes_of_the_library": len(real),
        "measured": len(real & measured),
        "coverage": len(real & measured) / max(len(real), 1),
        "missed": [f"{files[one[0]]}:{one[1]}:{one[2]}" for one in sorted(real - measured)][:40],
    }


if __name__ == "__main__":
    main()
