"""The report for everyone: in light and dark, narrow, printed, read from a keyboard, and heard."""

import itertools
import json

import pytest

from joulemap.units import fmt_pm, fmt_seconds

from .report_pages import box, make_pages, needs_chromium, open_page, start_browser  # noqa: F401

pytestmark = needs_chromium


def test_light_and_dark(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.send(
        "Emulation.setEmulatedMedia",
        media="screen",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    dark = page.run(ground)
    assert light != dark
    page.click("#theme")
    assert page.run(ground) == light
    page.click("#theme")
    assert page.run(ground) == dark
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run(ground) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_names_can_be_read_on_every_heat(page, theme):
    """The contrast that the accessibility guidelines ask of large text, at the least."""
    page.run(f"document.documentElement.dataset.theme = '{theme}'")
    contrasts = page.run(
        "(() => { const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});"
        "const light = (colour) => { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);"
        "  const parts = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255)"
        "    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);"
        "  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };"
        "const box = document.querySelector('.box');"
        "return [...Array(101).keys()].map((part) => part / 100).map((heat) => {"
        "  box.setAttribute('class', `box layer ${heatClass(heat)}`); box.style.setProperty('--heat', heat);"
        "  const ends = [light(getComputedStyle(box.querySelector('rect')).fill),"
        "    light(getComputedStyle(box.querySelector('text')).fill)].sort();"
        "  return (Math.max(...ends) + 0.05) / (Math.min(...ends) + 0.05); }); })()"
    )
    assert min(contrasts) > 3.5, min(contrasts)
    assert sum(contrast > 4.5 for contrast in contrasts) > 80


def test_it_prints_and_fits_narrow_screens(page, pages):
    printed = page.send("Page.printToPDF", printBackground=True)["data"]
    assert len(printed) > 20_000
    for width in (800, 400):
        page.open(pages / "small.html", width=width)
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), width
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run("getComputedStyle(document.querySelector('.bar')).display") == "none"


def test_pictures_have_names_for_who_hears_them(page):
    unnamed = page.run(
        "[...document.querySelectorAll('button, input, nav, svg, [role=button], [role=treeitem], .power')]"
        ".filter((one) => !(one.getAttribute('aria-label') || one.textContent).trim()).length"
    )
    assert unnamed == 0
    stops = page.run(
        "['.box', '.block', '.bars li']"
        ".map((kind) => document.querySelectorAll(`${kind}[tabindex='0']`).length)"
    )
    assert stops == [1, 1, 2]


def accessible(page):
    """What assistive technology is told: role, name and properties of everything that it is told of."""
    page.send("Accessibility.enable")
    told = page.send("Accessibility.getFullAXTree")["nodes"]
    value = lambda node, key: node.get(key, {}).get("value", "")  # noqa: E731
    return [
        (value(node, "role"), value(node, "name"), {one["name"]: one["value"] for one in node["properties"]})
        for node in told
        if not node["ignored"] and "properties" in node
    ]


def test_everything_that_takes_the_focus_has_a_role_and_a_name(page):
    nodes = accessible(page)
    focusable = [(role, name) for role, name, properties in nodes if "focusable" in properties]
    assert {"button", "treeitem", "listitem", "searchbox", "group"} <= {role for role, _ in focusable}
    assert [role for role, name in focusable if not name or role == "generic"] == []
    headings = [int(properties["level"]["value"]) for role, _, properties in nodes if role == "heading"]
    assert headings[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings)), headings


def test_what_has_the_focus_is_described_by_its_card(page):
    page.press("Tab")  # a key, so that the focus is to be seen
    page.run(f"document.querySelector('{box('adam')}').focus()")
    page.wait_for("document.activeElement.getAttribute('aria-describedby') === 'tip'")
    assert page.run("document.getElementById('tip').innerText").startswith("adam")
    page.press("Tab")
    assert page.run(f"document.querySelector('{box('adam')}').getAttribute('aria-describedby')") is None


def test_quantities_are_written_as_in_the_terminal(page):
    cases = [
        (812.34, 9.1),
        (0.00123, 0.0004),
        (1531.2, 140.0),
        (0.0, 0.0),
        (42.0, 0.0),
        (999.96, 0.0),
        (-3.2, 0.11),
    ]
    values = page.run(f"{json.dumps(cases)}.map(([value, half]) => plusMinus(value, 'J', half))")
    assert values == [fmt_pm(value, "J", half) for value, half in cases]
    seconds = [0.00074, 5.42, 119.0, 130.0, 3840.0]
    assert page.run(f"{json.dumps(seconds)}.map(duration)") == [fmt_seconds(one) for one in seconds]
