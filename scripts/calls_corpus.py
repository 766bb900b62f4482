"""How much of what a program calls is measured, and does it still do the same? On real code: the test modules
that installed libraries ship, which are run twice, once plainly under an oracle and once with sites.

    python scripts/calls_corpus.py --library keras --files 20
    python scripts/calls_corpus.py --library numpy --files 20
    python scripts/calls_corpus.py --library torch --static     all of its source, rewritten and not run

The oracle is Python's own profiler (``sys.setprofile``): for every call instruction of a module it sees which
function, of Python or of C, was really called. A call node counts as the library's where that function's
file, module or class is. Measured is what the records of the second run have. Each test must end in both runs
as it does without anybody watching.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import dis
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Span = tuple[str, int, int, int, int]
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}


def main() -> None:
    options = _options()
    if options.child:
        _child(options)
        return
    if options.static:
        print(json.dumps(static(options.library), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = assemble(options.library, Path(folder) / "corpus", options.files, options.match)
        runs = {how: _run(how, options, Path(folder)) for how in ("plain", "oracle", "sites")}
    print(json.dumps(_report(options.library, files, runs), indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--match", default="", help="only files with this in their path")
    parser.add_argument("--static", action="store_true", help="only rewrite and patch, every file there is")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
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


def assemble(library: str, corpus: Path, most: int, match: str) -> dict[str, str]:
    """Copies of a library's test modules that need nothing beside them, evenly over all it has."""
    root = _root_of(library)
    found = sorted([*root.rglob("*_test.py"), *root.rglob("test_*.py")])
    found = [path for path in found if match in str(path) and _stands_alone(path)]
    corpus.mkdir()
    chosen = found[:: max(len(found) // most, 1)][:most]
    names = {}
    for number, path in enumerate(chosen):
        name = f"test_{number}_{path.stem}.py"
        shutil.copy(path, corpus / name)
        names[name] = str(path.relative_to(root.parent))
    return names


def _stands_alone(path: Path) -> bool:
    source = path.read_text(errors="replace")
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return 2_000 < len(source) < 60_000 and not any(node.level for node in imports)


def _run(how: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--child",
        how,
        "--library",
        options.library,
        "--folder",
        str(folder),
    ]
    environment = {**os.environ, **ENVIRONMENT, "JOULEMAP_CORPUS": str(folder / "corpus")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    try:
        return json.loads((folder / f"{how}.json").read_text())  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise SystemExit(f"{how}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}") from None


def _child(options: argparse.Namespace) -> None:
    """One run over the whole corpus."""
    import pytest

    folder: Path = options.folder
    corpus = folder / "corpus"
    outcomes = _Outcomes()
    begin_s = time.process_time()
    kinds: dict[str, type[_Watch]] = {"plain": _Watch, "oracle": _Oracle, "sites": _Sites}
    watch = kinds[options.child](folder, options.library)
    sys.path.insert(0, str(corpus))
    arguments = [
        "-q",
        "--assert=plain",
        "--continue-on-collection-errors",
        "-c",
        os.devnull,
        f"--rootdir={corpus}",
    ]
    plugins = ["no:randomly", "no:cacheprovider", "no:xdist", "no:cov", "no:warnings", "no:faulthandler"]
    watch.start()
    pytest.main([*arguments, *(f"-p{one}" for one in plugins), str(corpus)], plugins=[outcomes])
    spans = sorted(watch.stop())
    result = {"outcomes": outcomes.ended, "spans": spans, "cpu_s": time.process_time() - begin_s}
    (folder / f"{options.child}.json").write_text(json.dumps(result))


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

    def __init__(self, folder: Path, library: str) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> set[Span]:
        return set()


class _Sites(_Watch):
    """The calls that were recorded, by the span of what is called."""

    def __init__(self, folder: Path, library: str) -> None:
        from joulemap.calls.loader import SiteLoader
        from joulemap.calls.runtime import CallMeter

        self._raw = folder / "raw"
        self._raw.mkdir()
        self._meter = CallMeter(self._raw, [library], time.time_ns() - time.monotonic_ns(), print)
        root = str(folder / "corpus")
        self._loader = SiteLoader(self._meter.places, print, root=root, libraries=[library])

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


class _Oracle(_Watch):
    """What Python's profiler sees: the library's functions, and the instructions that called them."""

    def __init__(self, folder: Path, library: str) -> None:
        from joulemap.calls.names import packages_of

        self._corpus = str(folder / "corpus")
        self._packages = packages_of(library)
        specs = [find_spec(one) for one in self._packages]
        found = [one.submodule_search_locations for one in specs if one is not None]
        self._roots = tuple(f"{places[0]}/" for places in found if places)
        self._seen: set[tuple[CodeType, int]] = set()
        self._in_c: set[int] = set()

    def start(self) -> None:
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        caller = frame.f_back if event == "call" else frame
        if caller is None or not caller.f_code.co_filename.startswith(self._corpus):
            return
        if event == "call" and id(caller) in self._in_c:
            return  # called by a function of C, which is what the program called
        if event in ("c_call", "c_return", "c_exception"):
            (self._in_c.add if event == "c_call" else self._in_c.discard)(id(frame))
        key = caller.f_code, caller.f_lasti
        if key in self._seen or not self._is_librarys(frame, event, argument) or self._is_tracing():
            return
        self._seen.add(key)

    def _is_librarys(self, frame: FrameType, event: str, argument: Any) -> bool:
        if event == "call":
            return frame.f_code.co_filename.startswith(self._roots)
        if event != "c_call":
            return False
        owner = getattr(argument, "__self__", None)
        module = getattr(argument, "__module__", None) or type(owner).__module__
        return str(module).split(".")[0] in self._packages

    def _is_tracing(self) -> bool:
        """Sites are off inside a framework's trace, on purpose."""
        from joulemap.calls.tracing import tracers

        return any(tracing() for tracing in tracers())

    def stop(self) -> set[Span]:
        sys.setprofile(None)
        nodes: dict[str, dict[tuple[int, ...], Span]] = {}
        found = set()
        for code, at in self._seen:
            name = Path(code.co_filename).name
            if name not in nodes:
                nodes[name] = _calls_of(Path(code.co_filename))
            instruction = next((one for one in dis.get_instructions(code) if one.offset == at), None)
            if instruction is None or not instruction.opname.startswith(("CALL", "PRECALL")):
                continue
            places: Any = code
            span = nodes[name].get(list(places.co_positions())[at // 2])
            if span is not None:
                found.add(span)
        return found


def _calls_of(path: Path) -> dict[tuple[int, ...], Span]:
    """The call nodes of a file: where the compiler says they are, and the span of what they call. Of methods
    over several lines it says another start."""
    source = path.read_text()
    lines = source.split("\n")
    nodes: dict[tuple[int, ...], Span] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            callee = node.func
            if isinstance(callee, ast.Name) and callee.id in dir(builtins):
                continue  # str(e) is not the library's, whatever it calls
            assert callee.end_lineno is not None
            assert callee.end_col_offset is not None
            start = len(lines[callee.lineno - 1].encode()[: callee.col_offset].decode()) + 1
            end = len(lines[callee.end_lineno - 1].encode()[: callee.end_col_offset].decode()) + 1
            span = (path.name, callee.lineno, start, callee.end_lineno, end)
            nodes[_place(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)] = span
            if isinstance(callee, ast.Attribute):
                at = callee.end_col_offset - len(callee.attr.encode())
                nodes[_place(callee.end_lineno, node.end_lineno, at, node.end_col_offset)] = span
    return nodes


def _place(*numbers: int | None) -> tuple[int, ...]:
    return tuple(number or 0 for number in numbers)


def _report(library: str, files: dict[str, str], runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    real = {tuple(one) for one in runs["oracle"]["spans"]}
    measured = {tuple(one) for one in runs["sites"]["spans"]}
    plain, sites = runs["plain"]["outcomes"], runs["sites"]["outcomes"]
    differ = [one for one in sorted({*plain, *sites}) if plain.get(one) != sites.get(one)]
    return {
        "library": library,
        "files": len(files),
        "tests": len(plain),
        "passed": sum(one == "passed" for one in plain.values()),
        "ended_differently": {one: [plain.get(one), sites.get(one)] for one in differ},
        "call_nodes_of_the_library": len(real),
        "measured": len(real & measured),
        "coverage": len(real & measured) / max(len(real), 1),
        "missed": [f"{files[one[0]]}:{one[1]}:{one[2]}" for one in sorted(real - measured)][:40],
        "cpu_s": {how: round(run["cpu_s"], 1) for how, run in runs.items()},
    }


if __name__ == "__main__":
    main()
