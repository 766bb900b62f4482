"""``joulemap show --by call``: rows, tables and statistics over runs, from small recordings."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from joulemap.calls.protocol import ISOLATION, PROTOCOLS
from joulemap.calls.table import Calls, Sites
from joulemap.cli import commands
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace

S = 1_000_000_000
T0 = 1_790_000_000 * S
CPU = Domain("package-0", "CPU", sensor="rapl", update_period_s=0.01)
GPU = Domain("GPU:0", "GPU:0", sensor="nvml", update_period_s=0.1)
FIT, ADD, SAVE = "tensorflow.keras.Model.fit", "tensorflow.add", "tensorflow.keras.Model.save"


def recorded(
    path,
    seconds=(1.0, 6.0),
    isolated=False,
    watts=20.0,
    lines=(10, 4, 12, 13),
    apis=(FIT, ADD, ADD, ADD, SAVE),
):
    """``fit`` with two ``add`` at one site inside, an ``add`` at another, and a ``save`` that raised."""
    begin, end = seconds
    spans = [(begin, end, -1, 0), (begin + 1, begin + 2, 0, 1), (begin + 3, begin + 4, 0, 1)]
    spans += [(7.0, 7.5, -1, 2), (8.0, 8.25, -1, 3)]
    start, stop, parent, site = (np.array(column) for column in zip(*spans, strict=True))
    calls = Calls.from_columns(
        Sites.from_columns(
            site=[0, 1, 2, 3],
            file=["/home/me/train.py", "/home/me/model.py", "/home/me/train.py", "/home/me/train.py"],
            line=lines,
            column=[5, 9, 1, 3],
            end_line=lines,
            end_column=[14, 15, 7, 11],
            text=["model.fit", "tf.add", "tf.add", "model.save"],
            function=["main", "Model.call", "main", "main"],
        ),
        call=np.arange(5),
        parent=parent,
        site=site,
        api=apis,
        thread=np.ones(5, np.int64),
        start_ns=T0 + np.rint(start * S).astype(np.int64),
        end_ns=T0 + np.rint(stop * S).astype(np.int64),
        outcome=["returned"] * 4 + ["raised"],
        argument_bytes=[4000, 16, 16, 16, -1],
        gate_start_ns=T0 + np.array([int(0.5 * S), -T0, -T0, int(6.5 * S), -T0]) if isolated else None,
        gate_outcome=["stable", "", "", "timed out", ""] if isolated else "",
        tail_end_ns=T0 + np.array([int(6.4 * S), -T0, -T0, int(7.8 * S), -T0]) if isolated else None,
    )
    edges = T0 + np.arange(0, 10 * S + 1, S // 100)
    extra = {ISOLATION: PROTOCOLS["joulemap"].to_json()} if isolated else {}
    info = RecordingInfo(command=["joulemap", "run", "train.py"], window_ns=(T0, T0 + 10 * S), extra=extra)
    with RecordingWriter.create(path, info) as writer:
        writer.put_calls(calls)
        writer.put_power(PowerTrace(CPU, edges, np.full(1000, watts / 100)))
        writer.put_power(PowerTrace(GPU, edges[::10], np.full(100, 10.0)))
    return path


def show(*arguments):
    return CliRunner().invoke(
        commands, ["show", *map(str, arguments), "--by", "call"], catch_exceptions=False
    )


@pytest.fixture(autouse=True)
def no_stored_baselines(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def rec(tmp_path):
    return recorded(tmp_path / "run.joulemap")


def test_every_call_is_a_row_with_all_that_the_contract_names(rec):
    said = json.loads(show(rec, "--json").output)
    assert said["by"] == "call"
    assert len(said["rows"]) == 5
    row = said["rows"][0]
    contract = "api file line column parent outcome start_ns end_ns energy_j inclusive_j net_j low_j high_j"
    assert set(contract.split()) <= row.keys()
    assert (row["api"], row["file"], row["line"], row["column"]) == (FIT, "/home/me/train.py", 10, 5)
    assert row["energy_j"] == pytest.approx(3 * 120)
    assert row["inclusive_j"] == pytest.approx(5 * 120)
    assert row["package-0 energy_j"] == pytest.approx(60)
    assert row["parent"] is row["net_j"] is None
    assert said["rows"][-1]["outcome"] == "raised"
    assert said["rows"][-1]["argument_bytes"] is None


@pytest.mark.parametrize("rule", ["calibrated", "recency"])
def test_a_rule_that_shares_nothing_out_is_refused(rec, rule):
    with pytest.raises(InputError, match="shared by no rule") as raised:
        show(rec, "--rule", rule)
    assert raised.value.hint == f"Leave out --rule {rule}."


def test_calls_and_the_named_rest_are_all_that_was_measured(rec):
    said = json.loads(show(rec, "--json").output)
    parts = ("attributed_j", "idle_j", "other_processes_j", "outside_j")
    assert sum(said[part] for part in parts) == pytest.approx(said["measured_j"], rel=1e-9)
    rest = {row["name"]: row["energy_j"] for row in said["rest"]}
    assert rest == pytest.approx({"(start-up)": 120, "(between calls)": 180, "(after the last call)": 210})
    assert sum(rest.values()) == pytest.approx(said["idle_j"])


def test_a_baseline_makes_net_energy_known(rec):
    said = json.loads(show(rec, "--json", "--baseline", "package-0=5W", "--baseline", "GPU:0=100W").output)
    assert said["net"]
    assert said["rows"][0]["net_j"] == pytest.approx(3 * 15)
    assert said["rest"][0]["net_j"] == pytest.approx(15)


def test_net_that_is_not_known_is_refused_where_it_is_asked_for(rec):
    with pytest.raises(InputError, match="no idle baseline of package-0"):
        show(rec, "--net")
    with pytest.raises(InputError, match="no domain 'CPU'"):
        show(rec, "--baseline", "CPU=5W")


def test_csv_has_the_same_rows(rec):
    rows = list(csv.DictReader(io.StringIO(show(rec, "--csv", "--top", "2").output)))
    assert [row["api"] for row in rows] == [FIT, ADD]
    assert float(rows[0]["energy_j"]) == pytest.approx(360)


def test_the_table_is_by_api_with_its_sites_beneath(rec):
    said = show(rec).output
    lines = [line.split() for line in said.splitlines() if line.strip()]
    heads = [line[0] for line in lines]
    assert heads.index(FIT) < heads.index(ADD) < heads.index(SAVE) < heads.index("(start-up)")
    assert lines[heads.index(ADD) + 1][:2] == ["└─", "model.py:4"]
    assert "(1 raised)" in said
    assert "measured 1.200 kJ = calls 690.0 J + the rest 510.0 J" in said
    assert "└─" not in show(rec, "--depth", "1").output
    assert "… 2 more" in show(rec, "--top", "1").output


def test_two_sites_of_an_api_on_one_line_are_told_apart_by_their_columns(tmp_path):
    rec = recorded(tmp_path / "run.joulemap", lines=(10, 4, 12, 12), apis=[FIT, ADD, ADD, SAVE, SAVE])
    said = show(rec).output
    assert "train.py:12:1 " in said
    assert "train.py:12:3 " in said


def test_over_runs_every_site_has_a_mean_and_a_spread(tmp_path):
    runs = [recorded(tmp_path / f"{n}.joulemap", (1.0, 6.0), watts=20.0 + n) for n in range(3)]
    said = json.loads(show(*runs, "--json").output)
    assert said["runs"] == 3
    rows = {(row["api"], row["line"]): row for row in said["rows"]}
    assert rows.keys() == {(FIT, 10), (ADD, 4), (ADD, 12), (SAVE, 13)}
    fit = rows[FIT, 10]
    assert fit["energy_j"] == pytest.approx(3 * 121)
    assert fit["deviation_j"] == pytest.approx(3)
    assert fit["high_j"] - fit["energy_j"] == pytest.approx(4.302653 * 3 / 3**0.5)
    assert rows[ADD, 4]["calls"] == 2
    assert "Means over 3 runs" in show(*runs).output


def test_several_recordings_are_shown_by_call_only(tmp_path):
    runs = [recorded(tmp_path / f"{n}.joulemap") for n in range(2)]
    with pytest.raises(InputError, match="by call only"):
        CliRunner().invoke(commands, ["show", *map(str, runs)], catch_exceptions=False)


def test_isolated_calls_have_their_own_baseline_their_lag_and_how_the_gate_went(tmp_path):
    rec = recorded(tmp_path / "run.joulemap", isolated=True)
    said = json.loads(show(rec, "--json").output)
    rows = {row["start_ns"]: row for row in said["rows"]}
    late = rows[T0 + 7 * S]
    assert late["gate"] == "timed out"
    assert late["net_j"] == pytest.approx(0, abs=1e-6)  # as much as just before it: the power never changed
    assert late["lag_j"] == pytest.approx(0, abs=1e-6)
    assert {row["name"] for row in said["rest"]} >= {"(waiting for the gate)", "(waiting after the call)"}
    table = show(rec).output
    assert "1 call ran although" in table
    assert " net lag time " in " ".join(table.split())


def test_columns_that_nothing_is_known_for_are_not_shown(rec):
    assert " inclusive time calls " in " ".join(show(rec).output.split())
    known = show(rec, "--baseline", "package-0=5W", "--baseline", "GPU:0=100W").output
    assert " inclusive net time calls " in " ".join(known.split())


@pytest.mark.parametrize("option", ["--summarised", "--power"])
def test_what_does_not_apply_to_calls_is_refused(rec, option):
    with pytest.raises(InputError, match="no layers"):
        show(rec, option)


def test_a_recording_without_calls_says_how_to_record_them(tmp_path):
    with RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo(command=[])) as writer:
        writer.put_power(PowerTrace(CPU, [T0, T0 + S], [1.0]))
    with pytest.raises(InputError, match="has no calls") as raised:
        show(tmp_path / "r.joulemap")
    assert "--calls" in raised.value.hint


def test_no_call_at_all_is_an_answer(tmp_path):
    nothing = Calls.from_columns(
        Sites.from_columns(
            site=[], file=[], line=[], column=[], end_line=[], end_column=[], text=[], function=[]
        ),
        call=[],
        parent=[],
        site=[],
        api=[],
        thread=[],
        start_ns=[],
        end_ns=[],
    )
    info = RecordingInfo(command=[], window_ns=(T0, T0 + S))
    with RecordingWriter.create(tmp_path / "r.joulemap", info) as writer:
        writer.put_calls(nothing)
        writer.put_power(PowerTrace(CPU, [T0, T0 + S], [1.0]))
    assert "(the whole program)" in show(tmp_path / "r.joulemap").output
