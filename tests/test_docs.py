"""The documentation keeps its word: every command, option and public name is in it, and its examples run."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import joulemap
from joulemap.accounting import RULES
from joulemap.cli import COMMANDS, SECTIONS, commands
from joulemap.commands import show
from joulemap.views.question import BYS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def command(name):
    found = commands.get_command(click.Context(commands), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_with_all_its_options(name):
    page = (DOCS / f"{name}.md").read_text()
    assert page.startswith(f"# joulemap {name}")
    for option in command(name).params:
        if isinstance(option, click.Option):
            for spelling in option.opts:
                assert f"`{spelling}`" in page, f"{spelling} is not in docs/{name}.md"
    assert f"joulemap {name}: {name}.md" in (ROOT / "mkdocs.yml").read_text()


def test_every_command_is_listed_with_a_whole_line_of_what_it_does():
    shown = CliRunner().invoke(commands, ["--help"]).output
    assert len(set(COMMANDS)) == len(COMMANDS)
    for section in SECTIONS.values():
        for name, does in section.items():
            assert re.search(rf"^  {name} +{re.escape(does)}$", shown, re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name):
    assert command(name).help
    assert all(option.help for option in command(name).params if isinstance(option, click.Option))


@pytest.mark.parametrize("name", [name for name in joulemap.__all__ if not name.startswith("_")])
def test_every_public_name_is_documented_and_there(name):
    assert re.search(rf"`{name}\b", (DOCS / "python.md").read_text())
    assert getattr(joulemap, name).__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        joulemap.nothing  # noqa: B018
    assert "account" in dir(joulemap)


def test_choices_on_the_command_line_are_those_of_the_code():
    assert (*BYS, "call") == show.BYS
    assert set(show.RULES) <= set(RULES)


def test_the_python_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)
    own_traces = next(block for block in blocks if "from_columns" in block)
    exec(compile(own_traces, "python.md", "exec"), {})  # noqa: S102
    assert "model" in capsys.readouterr().out


def test_the_readme_shows_what_the_demo_prints():
    """The figures in the README are those of the recording that is shipped."""
    footprint = joulemap.account(ROOT / "src" / "joulemap" / "data" / "bert-h200.joulemap")
    readme = (ROOT / "README.md").read_text()
    assert f"attributed {footprint.attributed_j:.1f} J" in readme
    assert f"idle {footprint.idle_j:.1f} J" in readme


def test_the_design_considerations_name_tests_that_are_there():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (DOCS / "design-considerations.md").read_text())
    assert len(named) > 30
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file} has no {test}"
