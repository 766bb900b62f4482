"""Comparing variants: verdicts that hold as often as they say, names that match, limits, matrices."""

import io
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from joulemap.accounting.student import student_975, two_sided_p, two_sided_t
from joulemap.cli import main
from joulemap.commands import compare as compare_command
from joulemap.comparing import variant as variants
from joulemap.comparing.comparison import Limit
from joulemap.comparing.difference import CHANCE, differences, holm
from joulemap.comparing.heatmap import heat_map
from joulemap.comparing.names import matched, rename_rules
from joulemap.comparing.outline import percent
from joulemap.comparing.similarity import Similarity, med, pcc
from joulemap.comparing.variant import WHOLE, Amount
from joulemap.errors import InputError

from .variants import write_variant

DOCS = Path(__file__).parents[1] / "docs"
REPEATS = 4


def amount(energy_j, error_j, known):
    """An energy that was shared out by time."""
    return Amount(energy_j, error_j, known, energy_j)


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """A base, the same again, one that draws more and is spelled otherwise, and a deeper one."""
    folder = tmp_path_factory.mktemp("compare")
    for run in range(REPEATS):
        (folder / "deep").mkdir(exist_ok=True)
        write_variant(folder / f"base-{run}.joulemap", run)
        write_variant(folder / f"same-{run}.joulemap", 10 + run)
        write_variant(folder / f"more-{run}.joulemap", 20 + run, factor=1.5, layer="layer/{}", adapter=True)
        write_variant(folder / "deep" / f"{run}.joulemap", 30 + run, layers=5)
    return folder


def run(folder, *arguments, check=0):
    """What a command prints to somebody who is no terminal."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "stdout", said)
        with pytest.raises(SystemExit) as ended:
            main(["compare", *map(str, arguments)])
    assert ended.value.code == check
    return said.getvalue()


def repeats(name):
    return [f"{name}-{run}.joulemap" for run in range(REPEATS)]


@pytest.fixture(name="report", scope="module")
def make_report(folder):
    arguments = (*repeats("base"), "--against", *repeats("same"), "--against", *repeats("more"), "--json")
    return json.loads(run(folder, *arguments))


def rows_of(comparison):
    return {row["name"]: row for row in comparison["rows"]}


def test_what_was_made_to_draw_more_draws_more_and_the_rest_does_not(report):
    same, more = report["comparisons"]
    assert {row["verdict"] for row in same["rows"]} <= {"no difference seen", "cannot tell"}
    rows = rows_of(more)
    assert rows["bert/encoder/layer_1"]["verdict"] == "more"
    true = 1.5 * 6 * 400 + 4 * 500, 6 * 400 + 4 * 500
    assert rows["bert/encoder/layer_1"]["relative"] == pytest.approx(true[0] / true[1] - 1, abs=0.05)
    assert rows["bert/encoder/layer_0"]["verdict"] == "no difference seen"
    assert rows[WHOLE]["verdict"] == "more"
    assert more["rows"][0]["name"] == WHOLE
    assert all(row["low_j"] <= row["difference_j"] <= row["high_j"] for row in more["rows"])
    assert all(row["relative_low"] <= row["relative"] <= row["relative_high"] for row in more["rows"])


def test_names_match_by_rule_and_what_does_not_is_shown(report):
    same, more = report["comparisons"]
    assert same["only_in_base"] == same["only_in_variant"] == more["only_in_base"] == []
    assert [lone["name"] for lone in more["only_in_variant"]] == ["bert/adapter"]
    assert more["only_in_variant"][0]["energy_j"] == pytest.approx(12 * 0.6, rel=0.1)


def test_rows_add_up_as_the_program_does(report):
    for comparison in report["comparisons"]:
        rows = rows_of(comparison)
        assert rows["bert"]["base_j"] + rows["GPU:0 idle"]["base_j"] == pytest.approx(rows[WHOLE]["base_j"])


def test_the_documented_json(report):
    page = (DOCS / "json.md").read_text()
    (comparison, _), alike = report["comparisons"], report["similarity"]
    keys = [*report, *comparison, *comparison["rows"][0], *alike, *comparison["base"]]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_similarity_of_variants(report):
    alike = report["similarity"]
    assert alike["labels"] == ["base", "same", "more"]
    for name in ("stef_pcc", "stpf_pcc"):
        matrix = np.array(alike[name])
        assert np.diag(matrix) == pytest.approx(1.0)
        assert matrix == pytest.approx(matrix.T)
    for name in ("stef_med_j", "stpf_med_w"):
        matrix = np.array(alike[name])
        assert matrix == pytest.approx(-matrix.T)
    assert alike["stef_med_j"][2][0] > 10 * abs(alike["stef_med_j"][1][0])


def test_the_paper_s_worked_example():
    """Figure 6: a footprint, and the one with half the sampling rate."""
    stef_1 = [21, 21, 54, 54, 118, 118, 184, 100, 200]
    stef_2 = [15, 15, 23, 23, 59, 59, 92, 50, 100]
    assert pcc(stef_1, stef_2) == pytest.approx(0.9958, abs=5e-5)
    assert med(stef_1, stef_2) == pytest.approx((870 - 436) / 9)


def test_similarity_is_not_made_up():
    assert pcc([1], [2]) is None
    assert pcc([1, 1], [1, 2]) is None
    assert med([], []) is None


def test_student_s_t_is_that_of_the_tables():
    freedom = np.array([1.0, 2.0, 5.0, 10.0, 30.0, np.inf])
    tables = np.array([12.7062, 4.3027, 2.5706, 2.2281, 2.0423, 1.9600])
    assert two_sided_t(np.full(6, 0.05), freedom) == pytest.approx(tables, abs=5e-5)
    assert two_sided_p(tables, freedom) == pytest.approx(0.05, abs=1e-5)
    assert [student_975(one) for one in (1, 9, 0)] == pytest.approx([12.706, 2.262, np.inf], abs=5e-4)
    assert two_sided_p(np.array([0.0, 1e9]), np.array([3.0, 3.0])) == pytest.approx([1.0, 0.0], abs=1e-9)


def test_holm_steps_down():
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1.0, 1.0])


def drawn(rng, names, runs, mean=100.0, between=1.0):
    return [
        {name: amount(float(rng.normal(mean, between)), 0.0, True) for name in names} for _ in range(runs)
    ]


@pytest.mark.parametrize(("base", "variant"), [(5, 5), (3, 8), (1, 6)])
def test_intervals_and_verdicts_are_wrong_as_rarely_as_they_say(base, variant):
    """Where nothing differs: 95 % of intervals hold zero, and 95 % of tables have no verdict at all."""
    rng, tables, names = np.random.default_rng(7), 150, list("abcdefgh")
    covered, wrong = 0, 0
    for _ in range(tables):
        rows = differences(names, drawn(rng, names, base), drawn(rng, names, variant), 0.05)
        covered += sum(row.low_j <= 0 <= row.high_j for row in rows)
        wrong += any(row.verdict in ("more", "less") for row in rows)
    assert 0.93 <= covered / tables / len(names) <= 0.98
    assert wrong / tables <= CHANCE + 0.04


def test_the_four_verdicts():
    names = ["up", "down", "same", "unclear"]
    base = [dict.fromkeys(names, amount(100.0, 0.0, True)) for _ in range(5)]
    spread = np.linspace(-1, 1, 5)
    base = [{name: amount(100.0 + value, 0.0, True) for name in names} for value in spread]
    variant = [
        {
            "up": amount(120 + value, 0, True),
            "down": amount(80 + value, 0, True),
            "same": amount(100.2 + value, 0, True),
            "unclear": amount(101 + 30 * value, 0, True),
        }
        for value in spread
    ]
    rows = differences(names, base, variant, 0.05)
    assert [row.verdict for row in rows] == ["more", "less", "no difference seen", "cannot tell"]


def test_one_recording_each_uses_what_is_known_inside_it():
    base = [{"a": amount(100.0, 1.0, True), "b": amount(100.0, 1.0, False), "c": amount(100.0, 0.0, True)}]
    variant = [{"a": amount(110.0, 1.0, True), "b": amount(110.0, 1.0, True), "c": amount(100.0, 0.0, True)}]
    rows = differences(["a", "b", "c"], base, variant, 0.05)
    assert [row.verdict for row in rows] == ["more", "cannot tell", "no difference seen"]
    assert [row.spread for row in rows] == [True, False, True]
    assert Limit("b", 0.01, rows[1]).verdict == "cannot tell"
    assert Limit("a", 0.01, rows[0]).verdict == "exceeded"
    assert Limit("a", 0.50, rows[0]).verdict == "holds"
    assert rows[0].high_j - rows[0].difference_j == pytest.approx(1.96 * 2**0.5, rel=1e-3)


@pytest.mark.parametrize("runs", [1, 3])
def test_of_costs_that_both_have_only_the_difference_is_off(runs):
    """By 5 % each: what has grown from 100 to 140 J is off by 2 J where costs are the same, else by 8.6."""

    def one(energy_j, *costs):
        return {"mm": Amount(energy_j, 0.0, True, energy_j, 0.05 * energy_j, frozenset(costs))}

    found = {}
    for name, costs in {"same": ["a"], "other": ["b"], "more": ["a", "b"]}.items():
        [found[name]] = differences(["mm"], [one(100.0, "a")] * runs, [one(140.0, *costs)] * runs, 0.05)
    halves = {name: (row.high_j - row.low_j) / 2 for name, row in found.items()}
    assert halves["same"] / halves["other"] == pytest.approx(2 / np.hypot(5, 7))
    assert halves["more"] == halves["other"]
    assert found["same"].relative_low == pytest.approx(0.4)
    assert found["other"].relative_low < 0.3
    [itself] = differences(["mm"], [one(100.0, "a")] * runs, [one(100.0, "a")] * runs, 0.05)
    assert (itself.low_j, itself.high_j, itself.verdict) == (0.0, 0.0, "no difference seen")


def test_of_one_traced_step_the_whole_program_can_be_told(tmp_path):
    """Every step is metered, so how the program as a whole varies is known; how its modules do is not."""
    paths = [
        write_variant(tmp_path / f"{name}.joulemap", seed, traced=1, factor=factor)
        for seed, (name, factor) in enumerate((("base", 1.0), ("more", 3.0)))
    ]
    (comparison,) = json.loads(run(tmp_path, *paths, "--json"))["comparisons"]
    whole, *modules = comparison["rows"]
    assert (whole["verdict"], whole["spread"]) == ("more", True)
    assert {row["verdict"] for row in modules} == {"cannot tell"}
    assert whole["relative_low"] < whole["relative"] < whole["relative_high"]


def test_what_drew_nothing_has_no_relative_change():
    (row,) = differences(["a"], [{}], [{"a": amount(1.0, 0.1, True)}], 0.05)
    assert row.relative is row.relative_low is row.relative_high is None
    assert row.verdict == "more"
    assert not Limit("a", 0.05, row).exceeded
    assert differences([], [], [], 0.05) == []


def test_what_has_become_many_times_as_much_is_a_factor():
    changes = {
        None: "–",
        0.0: "0.0 %",
        -1e-5: "0.0 %",
        -0.5: "-50.0 %",
        0.048: "+4.8 %",
        8.99: "+899 %",
        9.0: "×10",
        20948.09: "×20,900",
    }
    assert {one: percent(one) for one in changes} == changes


SPELLINGS = {
    "bert/encoder/layer/0/attention/self/query/addmm": "bert/encoder/layer_0/attention/self/query/addmm",
    "tf_model/bert/encoder/layer_._11/output/dense": "bert/encoder/layer_11/output/dense",
    "bert/encoder/layer/1/output/layer_normalization/mul": "bert/encoder/layer_1/output/LayerNorm/mul",
    "adam_w/mul": "optimizer/AdamW/mul",
    "pretraining/cls/predictions/x": "cls/predictions/x",
    "bert/encoder/layer_0/output": "bert/encoder/layer_0/output",
    "elsewhere/layer/3": "elsewhere/layer/3",
}


def test_frameworks_spell_bert_in_their_own_ways():
    base = [
        "bert/encoder/layer_0/attention/self/query/MatMul",
        "bert/encoder/layer_0/output",
        "bert/encoder/layer_11/output/dense/MatMul",
        "bert/encoder/layer_1/output/LayerNorm",
        "optimizer/AdamW",
        "cls/predictions/transform",
    ]
    assert dict(zip(SPELLINGS, matched(list(SPELLINGS), base, rename_rules([])), strict=True)) == SPELLINGS


def test_a_user_s_rules_come_first():
    rules = rename_rules([r"tower/block_(\d+)=model/h/\1"])
    assert matched(["tower/block_3/mlp"], ["model/h/3/mlp"], rules) == ["model/h/3/mlp"]
    assert matched(["tower/block_3/mlp"], ["model/h/3/mlp"], rename_rules([])) == ["tower/block_3/mlp"]


@pytest.mark.parametrize("rule", ["nothing", "(=x", r"a=\1"])
def test_rules_that_are_none_are_refused(rule):
    with pytest.raises(InputError):
        rename_rules([rule])


def test_a_limit_fails_only_where_the_interval_lies_beyond_it(folder, report):
    groups = (*repeats("base"), "--against", *repeats("more"), "--fail-above")
    low = rows_of(report["comparisons"][1])[WHOLE]["relative_low"]
    assert "exceeded" in run(folder, *groups, f"{100 * low - 0.5:.3f}%", check=1)
    assert ": cannot tell" in run(folder, *groups, f"{100 * low + 0.5:.3f}%", check=0)
    assert "exceeded" in run(folder, *groups, "5%", "--module", "bert/encoder/layer_1", check=1)
    assert "holds" in run(folder, *groups, "5%", "--module", "bert/encoder/layer_0", check=0)
    run(folder, *groups, "5%", "--module", "nowhere", check=2)
    run(folder, *groups[:-1], "--module", "bert", check=2)


def test_markdown_for_a_pull_request(folder):
    said = run(
        folder, *repeats("base"), "--against", *repeats("more"), "--markdown", "--fail-above", "1%", check=1
    )
    assert said.startswith("**❌ exceeded**: whole program of more")
    lines = said.splitlines()
    header = lines.index("|---|--:|--:|--:|--:|---|")
    assert all(line.count(" | ") == 5 for line in lines[header + 1 : header + 5])
    assert any("layer\\_1" in line and "🔺 more" in line for line in lines)
    assert "<details><summary>1 only in more</summary>" in said


def test_folders_are_variants_and_steps_can_be_the_measure(folder):
    per_step = json.loads(run(folder, "base-0.joulemap", "deep", "--summarised", "--per", "step", "--json"))
    (comparison,) = per_step["comparisons"]
    assert comparison["variant"]["label"] == "deep"
    assert len(comparison["variant"]["recordings"]) == REPEATS
    row = rows_of(comparison)["bert/encoder/layer_*"]
    assert row["relative"] == pytest.approx(5 / 3 - 1, abs=0.05)
    assert row["base_j"] == pytest.approx(3 * 4.4, rel=0.05)


def test_the_table_is_plain_where_nobody_looks(folder):
    said = run(folder, "base-0.joulemap", "same-0.joulemap", "deep/0.joulemap", "--heatmap", "h.svg")
    assert "\x1b[" not in said
    assert "PCC of energy (STEF)" in said
    assert "note: One recording each" in said
    picture = ET.parse(folder / "h.svg")
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}rect"))) == 4 * 9


def test_a_heat_map_of_what_is_not_defined():
    nothing = ((None, None), (None, None))
    alike = Similarity(("<a>", "b" * 40), ((0, 0), (0, 0)), nothing, nothing, nothing, nothing)
    assert "&lt;a&gt;" in heat_map(alike)
    ET.fromstring(heat_map(alike))


@pytest.mark.parametrize(
    "arguments",
    [
        ("base-0.joulemap",),
        ("base-0.joulemap", "nowhere.joulemap"),
        ("base-0.joulemap", "--against"),
        ("base-0.joulemap", "same-0.joulemap", "--json", "--markdown"),
        ("base-0.joulemap", "same-0.joulemap", "--fail-above", "many"),
        ("base-0.joulemap", "."),
    ],
)
def test_what_cannot_be_compared_is_refused(folder, arguments):
    (folder / "empty").mkdir(exist_ok=True)
    where = folder / "empty" if arguments[-1] == "." else folder
    first = (f"../{arguments[0]}", *arguments[1:]) if arguments[-1] == "." else arguments
    run(where, *first, check=2)


def test_choices_on_the_command_line_are_those_of_the_code():
    assert compare_command.BYS == variants.BYS


def test_an_error_far_beyond_the_energy_has_no_relative_interval():
    (row,) = differences(["a"], [{"a": amount(1e-6, 1.0, True)}], [{"a": amount(2e-6, 1.0, True)}], 0.05)
    assert (row.relative_low, row.relative_high) == (None, None)
    assert row.verdict == "cannot tell"
