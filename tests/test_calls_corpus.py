"""A little of the corpus that ``scripts/calls_corpus.py`` and ``scripts/calls_examples.py`` run: what an
oracle of Python's own sees a program call is what was recorded, and tests of others end as before."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .test_calls_patch import notebook
from .test_run import program

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no columns before 3.11")


def run(script: str, *arguments: str | Path) -> dict[str, Any]:
    command = [sys.executable, SCRIPTS / script, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


EXAMPLE = """
    import functools, json
    import numpy as np
    from collections import OrderedDict

    class Mine(np.ndarray):
        def own(self): return self.sum()

    class Words(dict): pass

    @functools.lru_cache(maxsize=np.int64(3).item())
    def cached(n=np.int64(2)): return np.zeros(
        n).view(Mine).own()

    with np.errstate(all="ignore"), open(__file__) as file:
        table = [np.full(3, x) for x in (lambda n: np.arange(n))(2)]
    try:
        np.linalg.inv(np.zeros((2, 2)))
    except np.linalg.LinAlgError as error:
        text = str(error) + f"{np.sqrt(4.0):.1f}"
    finally:
        (np.random
            .default_rng(0)
            .normal(size=2)
            .mean())
    print(json.loads(json.dumps(Words(a=1))).keys(), cached(), list(map(np.abs, [1])), len(table), text)
    raise SystemExit(3)
"""


def test_what_the_oracle_sees_is_what_is_recorded(tmp_path):
    program(tmp_path / "own-1", EXAMPLE, "script.py")
    (tmp_path / "list.txt").write_text("own-1 numpy json\n script.py\n")
    found = run("calls_examples.py", tmp_path, "--list", tmp_path / "list.txt")
    assert found["missed"] == []
    assert found["by_library"]["json"] == [2, 2]
    assert found["by_library"]["numpy"][1] > 8  # Python's profiler does not see ufuncs and C classes
    assert found["ended_differently"] == found["not_measured"] == {}
    assert found["end_with_an_error_of_their_own"] == ["own-1/script.py"]


def test_notebooks_are_run_and_measured_by_their_cells(tmp_path):
    pytest.importorskip("IPython")
    (tmp_path / "own-1").mkdir()
    cells = (
        "%matplotlib inline\nimport numpy as np\nx = np.ones(3)",
        "%%time\nnp.sum(x)",
        "raise KeyError(np.abs(1))",
    )
    (tmp_path / "own-1" / "n.ipynb").write_text(notebook(*cells))
    (tmp_path / "list.txt").write_text("own-1 numpy\n n.ipynb\n")
    found = run("calls_examples.py", tmp_path, "--list", tmp_path / "list.txt")
    assert (found["measured"], found["missed"], found["notebooks"]) == (3, [], 1)


def test_tests_of_numpy_end_as_before_and_their_calls_are_measured():
    found = run(
        "calls_corpus.py", "--library", "numpy", "--match", "lib/tests/test_twodim_base", "--without", "again"
    )
    assert found["files"] == 1
    assert found["passed"] == found["tests"] > 5
    assert found["ended_differently"] == {}
    assert found["measured"] == found["call_nodes_of_the_library"] > 50


@pytest.mark.skipif(find_spec("test.test_bisect") is None, reason="Python came without its tests")
def test_tests_of_the_standard_library_end_as_before():
    found = run(
        "calls_corpus.py",
        "--library",
        "unittest,bisect",
        "--tests-of",
        "test",
        "--match",
        "test_bisect",
        "--without",
        "again",
    )
    assert found["passed"] > 20
    assert found["ended_differently"] == {}
    assert found["measured"] == found["call_nodes_of_the_library"] > 50
