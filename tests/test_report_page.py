"""The report in a real browser: it draws, answers to mouse and keyboard, and says what ``show`` says."""

import json
import time

import pytest

from joulemap.api import account, load
from joulemap.report.assemble import assemble
from joulemap.report.contents import contents
from joulemap.units import fmt, fmt_pm
from joulemap.views.question import Question
from joulemap.views.show import to_json

from .calibrated_recordings import write_calibrated
from .command_line import joulemap
from .report_pages import box, make_pages, needs_chromium, open_page, shown, start_browser  # noqa: F401
from .report_recordings import EVIL, TAG, write_large, write_partly_traced
from .test_report import H200

pytestmark = needs_chromium


def test_it_draws_without_a_complaint_and_asks_nobody(page, pages):
    page.run("new Promise((done) => setTimeout(done, 200))")
    assert page.complaints == []
    assert page.requests == [(pages / "small.html").resolve().as_uri()]
    assert sorted(shown(page)) == ["adam", "net"]
    assert page.run("document.querySelectorAll('.flow').length") == 1


def test_the_policy_of_the_page_is_in_force(page):
    """A script that was not there when the page was made does not run, and nothing can be fetched."""
    blocked = page.run(
        "(async () => { window.ran = false; const one = document.createElement('script');"
        "one.textContent = 'window.ran = true'; document.body.append(one);"
        "let fetched = true; try { await fetch('http://127.0.0.1:9/'); } catch { fetched = false; }"
        "return [window.ran, fetched]; })()"
    )
    assert blocked == [False, False]
    page.complaints.clear()  # it complained of this test, as it should


def test_numbers_on_the_page_are_those_of_show_json(page, pages):
    said = json.loads(joulemap("show", pages / "small.joulemap", "--by", "phase", "--json").stdout)
    values = page.run(
        "Object.fromEntries([...document.querySelectorAll('#summary table')]"
        ".map((table) => [table.caption.textContent,"
        "[...table.tBodies[0].rows].map((row) => [row.cells[0].textContent,"
        "...[...row.querySelectorAll('data')].map((one) => [Number(one.value), one.textContent])])]))"
    )
    for row, (name, (energy_j, text)) in zip(said["rows"], values["By phase"], strict=True):
        assert (name, energy_j) == (row["name"], pytest.approx(row["energy_j"]))
        assert text == fmt_pm(
            row["energy_j"], "J", max(row["high_j"] - row["energy_j"], row["energy_j"] - row["low_j"])
        )
    ((name, (measured_j, _), (attributed_j, _), (idle_j, _)),) = values["By device"]
    (domain,) = said["domains"]
    assert name == domain["name"]
    head = page.run("document.querySelector('#summary table').tHead.rows[0].cells[1].textContent")
    assert head == domain["provenance"] == "measured"
    assert [measured_j, attributed_j, idle_j] == pytest.approx(
        [domain[key] for key in ("measured_j", "attributed_j", "idle_j")]
    )
    lead = page.run("document.querySelector('.lead').textContent")
    assert fmt(said["attributed_j"], "J", digits=4) in lead
    assert "The GPU waited for 10.0 % of its energy." in lead


def test_figures_are_gross_net_kwh_and_co2e(page):
    figures = page.run(
        "Object.fromEntries([...document.querySelectorAll('.figures data')]"
        ".map((one) => [one.dataset.key, Number(one.value)]))"
    )
    expected = {
        "drawn_j": 400,
        "net_j": 300,
        "mean_w": 200,
        "kwh": 400 / 3.6e6,
        "co2e_g": 400 / 3.6e6 * 400,
        "traced": 10,
    }
    assert figures == pytest.approx(expected)


def test_a_click_goes_in_and_the_breadcrumb_comes_out(page):
    page.click(box("net"))
    assert {"net/embed", "net/encoder"} <= set(shown(page))
    page.click(box("net/encoder"))
    assert sorted(shown(page)) == ["net/encoder/layer_0", "net/encoder/layer_1"]
    share = page.run(f"document.querySelector('{box('net/encoder/layer_0')} .share').textContent")
    assert share == "55.2 %"
    page.click(box("net/encoder/layer_0"))
    rounding = "[...document.querySelectorAll('.box rect')].map((rect) => Number(rect.getAttribute('rx')))"
    assert page.run(rounding) == [0, 0, 0]
    crumbs = page.run("[...document.querySelectorAll('.crumbs li')].map((one) => one.textContent)")
    assert crumbs == ["program", "net", "encoder", "layer_0"]
    page.click(".crumbs li:nth-child(2) button")
    assert {"net/embed", "net/encoder"} <= set(shown(page))
    assert all(radius > 0 for radius in page.run(rounding))


def test_keys_alone_go_in_move_and_come_out(page):
    page.run(f"document.querySelector('{box('net')}').focus()")
    page.press("Enter")
    assert "net/encoder" in shown(page)
    here = "document.activeElement.dataset.path"
    first = page.run(here)
    assert first in shown(page)
    for key in ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"):
        page.press(key)
    visited = {page.run(here)}
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown"):
        page.press(key)
        visited.add(page.run(here))
    assert len(visited) > 1
    assert visited <= set(shown(page))
    page.press("Escape")
    assert sorted(shown(page)) == ["adam", "net"]
    for _ in range(40):
        page.press("Tab")
        if page.run("document.activeElement.classList.contains('power')"):
            break
    else:
        pytest.fail("Tab does not reach the power chart")
    before = page.run("document.querySelector('.power .line').getAttribute('d')")
    page.press("+")
    assert page.run("document.querySelector('.power .line').getAttribute('d')") != before
    page.press("Escape")
    assert page.run("document.querySelector('.power .line').getAttribute('d')") == before


def test_the_switch_shows_one_phase(page):
    page.click("#diagram [data-value=optimizer]")
    assert shown(page) == ["adam"]
    page.click("#diagram [data-value=backward]")
    assert shown(page) == ["net"]
    page.click("#diagram [data-value=all]")
    assert sorted(shown(page)) == ["adam", "net"]


def test_what_is_pointed_at_says_its_interval_and_provenance(page, pages):
    page.point(box("adam"))
    tip = page.run("document.getElementById('tip').innerText")
    rows = to_json(account(load(pages / "small.joulemap")), Question(depth=1))["rows"]
    (adam,) = [row for row in rows if row["name"] == "adam"]
    assert fmt_pm(adam["energy_j"], "J", adam["high_j"] - adam["energy_j"]) in tip
    assert f"{fmt(adam['low_j'], 'J')} to {fmt(adam['high_j'], 'J')}" in tip
    assert "apportioned: measured by the meter" in tip


def test_where_data_flows_both_ways_the_first_way_is_drawn_down(page):
    """Of edges in the order of the program, also where what is between two boxes is not drawn."""
    order = "bridged([[1, 2], [2, 1], [3, 1], [1, 3], [3, 4], [4, 5]], new Set([1, 2, 3, 5]))"
    assert page.run(order) == [[1, 2], [2, 1], [3, 1], [1, 3], [3, 5]]
    placed = page.run(
        "Object.fromEntries(byDagre([1, 2, 3].map((node) => ({ node, width: 80, height: 40 })),"
        "[[3, 1], [1, 2], [2, 1], [1, 3]], { rankdir: 'TB' }).boxes.map(({ node, y }) => [node, y]))"
    )
    assert placed["3"] < placed["1"] < placed["2"]


def test_what_one_traced_step_stands_for_has_no_interval(browser, tmp_path):
    recording = load(write_partly_traced(tmp_path / "part.joulemap"))
    (tmp_path / "part.html").write_text(assemble([contents(recording, account(recording))]))
    browser.open(tmp_path / "part.html")
    bars = browser.run(
        "Object.fromEntries([...document.querySelectorAll('#tensors .columns > :first-child li')]"
        ".map((bar) =>"
        "[bar.querySelector('.qtn').textContent,"
        "[bar.querySelector('.amount').textContent.includes('±'), !!bar.querySelector('.whisker')]]))"
    )
    assert bars == {"net/MatMul": [True, True], "net/Rare": [False, False], "(start-up)": [True, True]}
    browser.click(box("net"))
    browser.point(box("net/Rare"))
    tip = browser.run("document.getElementById('tip').innerText")
    assert "not known" in tip
    assert "±" not in tip
    assert "one traced step, which stands for untraced ones" in tip
    assert "±" not in browser.run(f"document.querySelector('{box('net/Rare')}').getAttribute('aria-label')")
    assert browser.complaints == []


def test_an_operation_too_short_for_the_meter_says_so(browser, tmp_path):
    recording = load(write_calibrated(tmp_path / "run.joulemap"))
    (tmp_path / "run.html").write_text(assemble([contents(recording, account(recording))]))
    browser.open(tmp_path / "run.html")
    for shown_as in (box("net/MatMul"), "#tensors li"):
        browser.point(shown_as)
        assert "less than one update of the meter (100 ms)" in browser.run(
            "document.getElementById('tip').innerText"
        )
    browser.point('.block[data-path="net"]')
    assert "less than one update" not in browser.run("document.getElementById('tip').innerText")
    assert browser.complaints == []


def test_an_estimate_is_nowhere_called_measured(browser, tmp_path):
    path = write_calibrated(tmp_path / "run.joulemap", provenance="estimated")
    joulemap("report", path, "--rule", "calibrated", "-o", tmp_path / "run.html")
    browser.open(tmp_path / "run.html")
    shown_text = browser.run("document.getElementById('summary').innerText")
    assert "100 % of what was estimated" in shown_text
    assert "measured" not in shown_text
    browser.point("#summary table tbody data")
    assert "measured" not in browser.run("document.getElementById('tip').innerText").split("provenance")[0]
    assert browser.complaints == []


def test_what_calibration_changed_is_beside_it(browser, tmp_path):
    path = write_calibrated(tmp_path / "run.joulemap")
    more = write_calibrated(tmp_path / "more.joulemap", factor=1.5)
    joulemap("report", path, more, "--rule", "calibrated", "-o", tmp_path / "two.html")
    browser.open(tmp_path / "two.html")
    assert "By time: the change" in browser.run("document.getElementById('page').innerText")
    rows = "[...document.querySelectorAll('.compared tbody tr')]"
    cells = f"{rows}.find((one) => one.cells[0].innerText === 'net/Add').cells"
    assert browser.run(f"{cells}[6].innerText") == "+28.6 %"
    browser.click("[role=tab]:nth-child(2)")
    browser.point(box("net/MatMul"))
    tip = browser.run("document.getElementById('tip').innerText")
    assert "11.2 J (−65.0 %)" in tip
    assert "less than one update" not in tip
    first = browser.run("document.querySelector('#tensors tbody tr').innerText")
    assert first.split("\t")[::2] == ["net/MatMul", "11.2 J (−65.0 %)"]
    assert browser.complaints == []


def test_the_icicle_measures_what_is_asked_and_finds_what_is_sought(page):
    widths = (
        "Object.fromEntries([...document.querySelectorAll('.block')]"
        ".map((one) => [one.dataset.path, Number(one.style.getPropertyValue('--width'))]))"
    )
    by_energy = page.run(widths)
    assert by_energy["adam"] == pytest.approx(15 / 180, rel=1e-3)
    page.click("#tree [data-value=calls]")
    assert page.run(widths)["adam"] == pytest.approx(1 / 8, rel=1e-3)
    page.run("document.querySelector('#tree input').focus()")
    for letter in "matmul":
        page.press(letter)
    assert page.run("document.querySelector('.found').textContent") == "4 matches, 280 J, 77.8 %"
    bright = page.run("[...document.querySelectorAll('.block:not(.dim)')].map((one) => one.dataset.path)")
    assert bright
    assert all("MatMul" in path for path in bright)
    page.click('.block[data-path="net/encoder"]')
    assert sorted(shown(page)) == ["net/encoder/layer_0", "net/encoder/layer_1"]


def test_a_chosen_module_has_its_time_under_the_power(page):
    chosen = "document.querySelectorAll('.power .active.chosen').length"
    assert page.run(chosen) == 0
    page.click(box("net"))
    assert page.run(chosen) > 0
    assert page.run("document.querySelector('.power .what.chosen').textContent") == "net"
    top = page.place(".power svg")[1]
    left = page.run("document.querySelector('.power').getBoundingClientRect().left")
    page.drag((left + 300, top), (left + 500, top))
    ticks = page.run(
        "[...document.querySelectorAll('.power .middle')].map((one) => parseFloat(one.textContent))"
    )
    assert min(ticks) > 0.2
    assert max(ticks) < 1.2


def test_a_name_like_a_script_is_a_name(page):
    page.click(box("net"))
    names = page.run("[...document.querySelectorAll('.box .name')].map((one) => one.textContent)")
    assert "<script>alert(1)<" in names
    assert TAG in page.run("document.querySelector('#tensors').innerText")
    assert page.run("document.querySelectorAll('main script, main img, main b b').length") == 0
    assert "<b>markup</b>" in page.run("document.querySelector('.warnings').innerText")


def test_a_table_says_what_a_picture_shows_and_csv_is_a_click_away(page, tmp_path):
    page.click("#diagram details summary")
    page.wait_for("document.querySelectorAll('#diagram tbody tr').length === 2")
    page.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#diagram details button")
    deadline = time.monotonic() + 60
    while not (found := list(tmp_path.glob("*.csv"))):
        assert time.monotonic() < deadline, "no CSV was written"
        page.run("new Promise((done) => setTimeout(done, 50))")
    lines = found[0].read_text().splitlines()
    assert lines[0].startswith("name,phase,energy_j,low_j,high_j")
    name, phase, energy_j, *_ = lines[1].split(",")
    assert (name, phase, float(energy_j)) == ("net", "all", pytest.approx(330))


def test_calls_have_their_source_lines(page):
    rows = "[...document.querySelectorAll('#calls tbody tr')]"
    fit, matmul = page.run(f"{rows}.map((row) => [...row.cells].map((one) => one.innerText))")
    assert fit[:3] == ["fit model.fit", "train.py:7", "1"]
    assert matmul[:3] == ["matmul tf.matmul", "train.py:9", "2"]


def test_net_energy_is_in_cards_and_tables(page):
    page.point(box("adam"))
    tip = page.run("document.getElementById('tip').innerText")
    assert "net, above idle" in tip
    assert "22.5 J" in tip  # 30 J in 150 ms, at 50 W when idle
    heads = page.run("[...document.querySelectorAll('#summary thead tr')].map((row) => row.innerText)")
    assert all("net" in head.split("\t") for head in heads)


def test_several_recordings_have_tabs_and_what_compare_says(browser, pages):
    browser.send("Emulation.setEmulatedMedia", media="screen", features=[])
    browser.open(pages / "two.html")
    tabs = browser.run("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.textContent)")
    assert tabs == ["Side by side", "small.joulemap", "other.joulemap"]
    text = browser.run("document.getElementById('page').innerText")
    assert "400.0 J" in text
    assert "480.0 J" in text
    assert EVIL in text
    said = json.loads(
        joulemap("compare", pages / "small.joulemap", pages / "other.joulemap", "--json").stdout
    )
    compared = browser.run(
        "[...document.querySelectorAll('.compared tbody tr')]"
        ".map((row) => [row.cells[0], row.querySelector('data'), row.cells[5]])"
        ".map(([name, more, verdict]) => [name.textContent, Number(more.value), verdict.textContent])"
    )
    rows = said["comparisons"][0]["rows"]
    assert [(name, verdict) for name, _, verdict in compared] == [
        (row["name"], row["verdict"]) for row in rows
    ]
    assert [value for _, value, _ in compared] == pytest.approx([row["difference_j"] for row in rows])
    assert browser.run("document.querySelectorAll('.cell').length") >= 12
    browser.click("[role=tab]:nth-child(3)")
    assert "480.0 J" in browser.run("document.querySelector('.lead').textContent")
    browser.press("ArrowLeft")
    assert "400.0 J" in browser.run("document.querySelector('.lead').textContent")
    assert browser.complaints == []


def test_a_million_events_make_a_page_that_is_small_and_answers(browser, tmp_path):
    recording = write_large(tmp_path / "large.joulemap")
    page = tmp_path / "large.html"
    joulemap("report", recording, "-o", page)
    assert page.stat().st_size < 6e6
    browser.open(page)
    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('*').length") < 6000
    assert shown(browser)
    browser.click(".box")
    assert len(shown(browser)) > 1
    assert "700 W" in browser.run("document.querySelector('.power svg').getAttribute('aria-label')")


def test_the_real_recording_of_a_gpu(browser, tmp_path):
    joulemap("report", H200, "-o", tmp_path / "h200.html")
    browser.open(tmp_path / "h200.html")
    assert "The GPU waited for 78.8 % of its energy." in browser.run(
        "document.querySelector('.lead').textContent"
    )
    browser.click(box("bert"))
    browser.click(box("bert/encoder"))
    assert len(shown(browser)) == 12
    assert "no dataflow" in browser.run("document.querySelector('#diagram').innerText")
    assert browser.complaints == []
