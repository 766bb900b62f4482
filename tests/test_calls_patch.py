"""``joulemap patch``: the copy is the same program, byte by byte but for its sites, and is metered."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from joulemap.calls.notebooks import IN_MAGIC, NOT_PYTHON, UNREADABLE, compile_cells, patch_notebook
from joulemap.calls.patching import (
    CROWDED,
    HOOK,
    MARK,
    SHOWN,
    called_at,
    header,
    patch_bytes,
    patch_file,
)
from joulemap.calls.project import NO_PYTHON, patch_project
from joulemap.errors import InputError
from joulemap.recording import Recording

from .calls_programs import LIBRARY, WAYS, texts
from .test_calls_sites import EVERYWHERE
from .test_run import plainly, program


def without_sites(text: str) -> str:
    """Take out the definition and the sites by another way than they were put in."""
    start = text.find("try:  # call sites of joulemap")
    if start >= 0:
        lines = text[start:].splitlines(keepends=True)
        text = text[:start] + "".join(lines[4:])
    while HOOK in text:
        at = text.rindex(f"{HOOK}(")  # the innermost of those that begin here
        comma = at + [i for i, c in enumerate(text[at:]) if c == ","][3] + 2
        depth, end = 1, comma
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[:at] + text[comma : end - 1] + text[end:]
    return text


SOURCES = {
    "everywhere": EVERYWHERE,
    "docstring and future": '"""Doc."""\n# comment\nfrom __future__ import annotations\n\nf(1)\n',
    "shebang": "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n\n# licence\n@decorate(1)\ndef f(): g(2)\n",
    "tabs and form feeds": "if x:\n\tf(1)\n\x0c\ndef g():\n\treturn (h\n\t\t.i(2))\n",
    "no newline at the end": "f(1)",
    "chain": "a.b(1).c(2).d(3)\n(a\n .b(1)  # one\n .c(2)  # two\n)\n",
    "continuation": "x = f \\\n  (1)\n",
    "strange callees": "(f)(1); (f := g)(2); x[0](3); f(1)(2)(3); (a or b)(1); (f if x else g)(1)\n",
    "wide letters": "größe = 'ß' + f('é', gß(1)); ñ.ü(2)\n",
    "string": 'x = \'f(1)\'  # f(2)\ny = g("""h(3)\n i(4)""")\n',
}


@pytest.mark.parametrize("text", SOURCES.values(), ids=SOURCES)
def test_all_but_the_sites_stays_byte_by_byte(text):
    patched = patch_file(text, "p.py", ["lib"])
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert patched.sites == len(calls)
    assert patched.text.count(f"{HOOK}(") - 1 == patched.sites + 1  # those of the definition are two
    assert without_sites(patched.text) == text
    ast.parse(patched.text)


@pytest.mark.parametrize(
    ("encoding", "ending"),
    [("utf-8", "\r\n"), ("utf-8", "\r"), ("utf-8-sig", "\n"), ("latin-1", "\n"), ("latin-1", "\r\n")],
)
def test_encodings_and_line_ends_stay(encoding, ending):
    cookie = "# coding: latin-1" if encoding == "latin-1" else "# none"
    source = ending.join([cookie, "x = f('é')", "g(x, 'ü'); h(1)", ""]).encode(encoding)
    written, patched = patch_bytes(source, "p.py", ["lib"])
    assert patched.sites == 3
    assert written.startswith(source[: source.index(b"x = ")])
    text = written.decode(encoding)
    assert text.replace(ending, "").count("\n") == text.replace(ending, "").count("\r") == 0
    compile(written, "p.py", "exec")


def test_a_yield_can_be_what_is_called():
    patched = patch_file("def f():\n    (yield)(1)\n    (yield from x)(2)\n", "p.py", ["lib"])
    assert patched.sites == 2
    compile(patched.text, "p", "exec")


def test_fstrings_are_patched_where_that_cannot_be_seen():
    patched = patch_file('x = f"{f(1)} {g(2):>{h(3)}}"\ny = f"{f(4)=}"\nz = f"a={f(5)}"\n', "p.py", ["lib"])
    reasons = [one.reason for one in patched.left]
    assert f"{{{HOOK}(1, 8, 1, 9, f)(1)}}" in patched.text
    assert 'f"{f(4)=}"' in patched.text
    assert SHOWN in reasons
    compile(patched.text, "p", "exec")


def test_a_first_line_that_is_shared_is_left_alone():
    patched = patch_file('"""Doc."""; f(1)\n', "p.py", ["lib"])
    assert patched.text == '"""Doc."""; f(1)\n'
    assert [one.reason for one in patched.left] == [CROWDED]


def test_what_is_called_can_be_read_from_the_patched_text():
    text = "\n(a\n .b(1).c(2))\n"
    patched = patch_file(text, "p.py", ["lib"]).text
    assert called_at(patched, (2, 2, 3, 4)) == "a.b"
    assert called_at(patched, (2, 2, 3, 9)) == "a.b(1).c"
    assert called_at(patched, (9, 9, 9, 9)) == ""


def notebook(*cells: str | list[str], language: str = "python", **layout: object) -> str:
    content = {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["f(1) é\n"]},
            *(
                {"cell_type": "code", "execution_count": 3, "metadata": {}, "outputs": [], "source": cell}
                for cell in cells
            ),
        ],
        "metadata": {"kernelspec": {"language": language}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    options = {"indent": 1, "ensure_ascii": False, **layout}
    return json.dumps(content, **options) + "\n"  # type: ignore[arg-type]


def cells_of(text: str) -> list[str]:
    cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell) for cell in cells]


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"ensure_ascii": True}, {"indent": None}])
def test_only_the_source_of_python_cells_changes(layout):
    text = notebook(["x = f(1)\n", "y = g(x)"], "h(y)\n", **layout)
    patched = patch_notebook(text, "n.ipynb", ["lib"])
    assert patched.sites == 3
    first, second = cells_of(patched.text)
    definition = header("n.ipynb", ["lib"], kind="cells")
    assert first == f"{definition}x = {HOOK}(1, 1, 5, 1, 6, f)(1)\ny = {HOOK}(1, 2, 5, 2, 6, g)(x)"
    assert second == f"{HOOK}(2, 1, 1, 1, 2, h)(y)\n"
    restored = json.loads(patched.text)
    for cell, original in zip(restored["cells"], json.loads(text)["cells"], strict=True):
        cell["source"] = original["source"]
    options = {"indent": 1, "ensure_ascii": False, **layout}
    assert json.dumps(restored, **options) + "\n" == text


MAGICS = """%matplotlib inline
!pip install {package}
import lib
files = !ls
%time lib.f(1)
if files:
    %cd elsewhere
    lib.f(2)
lib.f?
x = await lib.f(3)"""


def test_magics_stay_and_what_is_between_them_is_patched():
    patched = patch_notebook(notebook(MAGICS), "n.ipynb", ["lib"])
    (cell,) = cells_of(patched.text)
    assert patched.sites == 2
    for line in MAGICS.splitlines():
        if "lib.f(2)" not in line and "lib.f(3)" not in line:
            assert line in cell.splitlines()
    assert f"    {HOOK}(1, 8, 5, 8, 10, lib.f)(2)" in cell.splitlines()
    assert [one.reason for one in patched.left] == [IN_MAGIC]


def test_every_cell_of_a_patched_notebook_is_compiled():
    patched = patch_notebook(notebook(MAGICS, "%%bash\nls (", "%%time\nlib.f(1)"), "n.ipynb", ["lib"]).text
    compile_cells(patched, "n.ipynb")
    with pytest.raises(SyntaxError, match="return"):
        compile_cells(patched.replace("lib.f)(1)", "lib.f)(1)\\nreturn"), "n.ipynb")
    with pytest.raises(SyntaxError, match="with sites"):
        compile_cells(patched.replace("lib.f)(1)", "lib.f)(1"), "n.ipynb")


def test_cell_magics_are_kept_and_those_of_python_are_patched():
    cells = ["%%bash\necho $(f 1)", "%%time\nf(1)", "f(2)", "%%html\n<b>f(3)</b>", "what is f(4)?\nno python"]
    patched = patch_notebook(notebook(*cells), "n.ipynb", ["lib"])
    written = cells_of(patched.text)
    assert written[0] == cells[0]
    assert written[1] == f"%%time\n{HOOK}(2, 1, 1, 1, 2, f)(1)"
    assert MARK in written[2]
    assert written[3:] == cells[3:]
    assert [one.reason for one in patched.left] == [NOT_PYTHON, NOT_PYTHON, UNREADABLE]


def test_a_notebook_of_another_language_is_left_alone():
    text = notebook("f(1)", language="julia")
    patched = patch_notebook(text, "n.ipynb", ["lib"])
    assert patched.text == text
    assert [one.reason for one in patched.left] == [NOT_PYTHON]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    program(folder, LIBRARY, "fakelib.py")
    program(folder, WAYS)
    program(folder, "import fakelib\ndef go(): return fakelib.add(1)", "package/part.py")
    program(folder, "print 'two'", "old.py")
    program(folder, "", "package/__init__.py")
    (folder / "data.bin").write_bytes(b"\x00\xff")
    (folder / "program.py").chmod(0o755)
    (folder / "package" / "__pycache__").mkdir()
    (folder / "package" / "__pycache__" / "part.pyc").write_bytes(b"old")
    (folder / "n.ipynb").write_text(notebook("import fakelib\nfakelib.add(1)"))
    return folder


def patch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "joulemap", "patch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_patched_project_runs_as_before_and_is_metered(project, tmp_path):
    ran = patch(project, "-o", tmp_path / "metered", "--library", "fakelib", "--check")
    assert ran.returncode == 0, ran.stderr
    assert "Every result compiles." in ran.stdout
    assert f"Next: joulemap run {tmp_path / 'metered'}/…" in ran.stdout
    there = tmp_path / "metered"
    plain, copy = plainly(project, "program.py"), plainly(there, "program.py")
    assert copy.stderr == plain.stderr == ""
    assert copy.stdout.splitlines()[:3] == plain.stdout.splitlines()[:3]
    without = plainly(
        there, "-I", "-S", "-c", "import sys; sys.path[:0] = ['.']; import package.part as p; p.go()"
    )
    assert without.returncode == 0, without.stderr  # joulemap is not to be found there
    command = [sys.executable, "-m", "joulemap", "run", "-q", "-o", "r.joulemap", "program.py"]
    metered = subprocess.run(command, cwd=there, capture_output=True, text=True)
    assert metered.stdout == copy.stdout
    calls = Recording.open(there / "r.joulemap").calls()
    assert calls is not None
    assert ("functools.partial(plus, 1)", "fakelib.add") in zip(texts(calls), calls.api, strict=True)
    assert "program.py" in set(calls.sites.file)


def test_a_copy_has_everything_but_what_python_makes_itself(project, tmp_path):
    there = tmp_path / "metered"
    result = patch_project(project, there, ("fakelib",))
    assert (there / "data.bin").read_bytes() == b"\x00\xff"
    assert (there / "program.py").stat().st_mode == (project / "program.py").stat().st_mode
    assert (there / "old.py").read_bytes() == (project / "old.py").read_bytes()
    assert not (there / "package" / "__pycache__").exists()
    found = {one.file: one for one in result.files}
    assert [one.reason for one in found["old.py"].left] == [NO_PYTHON]
    assert found["package/part.py"].sites == found["n.ipynb"].sites == 1
    assert result.others == 1


def test_what_is_patched_is_refused(project, tmp_path):
    patch_project(project, tmp_path / "metered", ("fakelib",))
    ran = patch(tmp_path / "metered", "-o", tmp_path / "again", "--library", "fakelib")
    assert ran.returncode == 2
    assert "patched already" in ran.stderr
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("source", "target"),
    [("nothing", "t"), ("data.bin", "t"), (".", "inside"), (".", "package"), ("program.py", "old.py")],
)
def test_wrong_use_is_refused_and_nothing_is_written(project, source, target):
    before = sorted(project.rglob("*"))
    with pytest.raises(InputError):
        patch_project(project / source, project / target, ("fakelib",))
    assert sorted(project.rglob("*")) == before


def test_a_single_file_and_json(project, tmp_path):
    ran = patch(project / "program.py", "-o", tmp_path / "one.py", "--library", "fakelib", "--json")
    said = json.loads(ran.stdout)
    assert (tmp_path / "one.py").read_text().count(HOOK) > said["sites"] > 10
    assert said["files"][0]["file"] == "program.py"
    assert sum(said["left"].values()) == len(said["files"][0]["left"])
    assert said["copied"] == 0
    looked = patch(project / "program.py", "--library", "fakelib", "--json", "--check")
    assert json.loads(looked.stdout)["output"] is None


def test_recording_from_inside_meters_what_was_imported_before(project, tmp_path):
    patch_project(project / "package" / "part.py", tmp_path / "part.py", ("fakelib",))
    program(
        tmp_path,
        """
        import part, joulemap
        part.go()
        with joulemap.record("r.joulemap"):
            part.go(); part.go()
        part.go()
    """,
    )
    ran = plainly(tmp_path, "program.py", env={"PYTHONPATH": str(project)})
    assert ran.returncode == 0, ran.stderr
    calls = Recording.open(tmp_path / "r.joulemap").calls()
    assert calls is not None
    assert list(calls.api) == ["fakelib.add"] * 2
