"""The report in a real browser: pages of small recordings, and fixtures that open them."""

import pytest

from joulemap.api import account, load
from joulemap.report.assemble import assemble
from joulemap.report.contents import contents

from . import chromium
from .command_line import joulemap
from .report_recordings import add_calls, write_small

needs_chromium = pytest.mark.skipif(
    chromium.found() is None, reason="there is no Chromium (make test installs one for root)"
)


@pytest.fixture(name="pages", scope="module")
def make_pages(tmp_path_factory):
    """The page of a small recording, and one of two of them."""
    folder = tmp_path_factory.mktemp("pages")
    found = []
    for name, watts in (("small", 200), ("other", 240)):
        recording = load(add_calls(write_small(folder / f"{name}.joulemap", watts)))
        found.append(contents(recording, account(recording), {"GPU:0": 50.0}, 400.0))
    (folder / "small.html").write_text(assemble(found[:1]))
    joulemap("report", folder / "small.joulemap", folder / "other.joulemap", "-o", folder / "two.html")
    return folder


@pytest.fixture(name="browser", scope="module")
def start_browser(tmp_path_factory):
    browser = chromium.Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(name="page")
def open_page(browser, pages):
    """The small recording's page, fresh; it must not have complained when the test is over."""
    browser.send("Emulation.setEmulatedMedia", media="screen", features=[])
    browser.open(pages / "small.html")
    yield browser
    assert browser.complaints == []


def box(path):
    return f'.box[data-path="{path}"]'


def shown(page):
    return page.run("[...document.querySelectorAll('.box')].map((box) => box.dataset.path)")
