"""The page's JavaScript, read as text: what a linter would say, and what keeps the page safe."""

import re
from importlib import resources

import pytest

from joulemap.report import assemble

PAGE = resources.files("joulemap.report") / "page"
SOURCES = {
    path.name: path.read_text(encoding="utf-8") for path in PAGE.iterdir() if path.name.endswith(".js")
}
ALL = "\n".join(SOURCES.values())
UNWANTED = {
    r"\bvar\b": "let and const know where they hold",
    r"[^=!]==[^=]|!=[^=]": "=== does not convert",
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML)\b|document\.write": "a name would become markup",
    r"\beval\(|new Function\(": "text would become code",
    r"\bconsole\.": "what is left of looking for a fault",
    r"\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon": "nothing leaves the machine",
}


def code(text):
    """Without comments, which may name anything, and without what stands between quotes."""
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)


@pytest.mark.parametrize("name", SOURCES)
def test_it_has_nothing_that_it_should_not(name):
    for pattern, why in UNWANTED.items():
        assert not (found := re.search(pattern, code(SOURCES[name]))), f"{found.group()}: {why}"
    assert SOURCES[name].startswith('"use strict";\n// '), "strict, and it says what it is for"


def test_every_source_is_on_the_page():
    assert sorted(SOURCES) == sorted(name for name in assemble._SCRIPTS if "/" not in name)


def test_everything_is_defined_once_and_used():
    defined = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", ALL, re.MULTILINE)
    assert len(defined) == len(set(defined))
    unused = [name for name in defined if len(re.findall(rf"\b{name}\b", ALL)) < 2]
    assert unused == []
    methods = set(re.findall(r"^  (\w+)\([^)]*\) \{$", ALL, re.MULTILINE)) - {"constructor"}
    keywords = {"if", "for", "while", "switch"}
    assert [name for name in methods - keywords if not re.search(rf"\.{name}\(", ALL)] == []
