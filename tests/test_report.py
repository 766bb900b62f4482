"""What the report's page holds: the figures of ``show --json``, in a file that no name can break out of."""

import base64
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulemap
from joulemap.accounting import attribute
from joulemap.devices import Domain
from joulemap.recording import RecordingWriter
from joulemap.report.activity import BINS, activity
from joulemap.report.assemble import assemble
from joulemap.report.contents import contents
from joulemap.report.nodes import folded
from joulemap.report.summary import _spoken, _waiting
from joulemap.report.timeline import MOST_INTERVALS, power_line
from joulemap.traces import EventTrace, PowerTrace
from joulemap.views.question import Question
from joulemap.views.show import to_json

from .command_line import joulemap as run
from .recordings import REPOSITORY, T0, unsynced
from .report_recordings import EVIL, FLOW, MS, SMALL, TAG, add_calls, write_small
from .small_traces import one_watt, trace
from .test_summarise import footprint_of

H200 = REPOSITORY / "src/joulemap/data/bert-h200.joulemap"


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def made(path, **options):
    recording = joulemap.load(path)
    return contents(recording, joulemap.account(recording), **options)


@pytest.fixture(name="small", scope="module")
def make_small(tmp_path_factory):
    return made(write_small(tmp_path_factory.mktemp("report") / "small.joulemap"))


@pytest.fixture(name="h200", scope="module")
def make_h200():
    return made(H200)


def paths(nodes):
    found = []
    for name, parent in zip(nodes["name"], nodes["parent"], strict=True):
        found.append(name if parent < 0 else f"{found[parent]}/{name}")
    return found


def test_every_node_has_the_figures_of_show(h200):
    footprint = joulemap.account(H200)
    rows = {
        row["name"]: row for row in to_json(footprint, Question(depth=2))["rows"] if row["phase"] == "forward"
    }
    view = h200["nodes"]["views"]["forward"]
    names = paths(h200["nodes"])
    found = {names[node]: at for at, node in enumerate(view["node"])}
    assert rows.keys() <= found.keys()
    for name, row in rows.items():
        for column in ("energy_j", "low_j", "high_j", "active_s", "calls"):
            assert view[column][found[name]] == pytest.approx(row[column], rel=1e-6), (name, column)
        assert view["provenances"][view["provenance"][found[name]]] == row["provenance"]


def test_the_summary_has_the_sums_of_show(h200):
    shown = to_json(joulemap.account(H200), Question(by="phase"))
    summary = h200["summary"]
    for key in ("measured_j", "attributed_j", "idle_j", "other_processes_j", "outside_j"):
        assert summary[key] == shown[key]
    assert summary["phases"] == shown["rows"]
    assert summary["drawn_j"] == pytest.approx(summary["attributed_j"] + summary["idle_j"])
    assert summary["kwh"] == pytest.approx(summary["drawn_j"] / 3.6e6)
    assert summary["waiting"] == ["The GPU waited for 78.8 % of its energy."]
    assert summary["attributed"]["low_j"] < summary["attributed_j"] < summary["attributed"]["high_j"]


def test_co2e_only_where_an_intensity_is_given(small, tmp_path):
    assert small["summary"]["co2e_g"] is None
    given = made(write_small(tmp_path / "a.joulemap"), intensity_g_per_kwh=360.0)["summary"]
    assert given["co2e_g"] == pytest.approx(400 / 3.6e6 * 360)


def test_net_energy_is_that_above_the_baseline(small, tmp_path):
    assert small["summary"]["net"] is None
    net = made(write_small(tmp_path / "a.joulemap"), baseline_w={"GPU:0": 50.0})["summary"]["net"]
    assert net["attributed"]["energy_j"] == pytest.approx(360 * 0.75)
    assert net["idle_j"] == pytest.approx(40 * 0.75)


def test_mean_and_peak_are_of_the_recording(small):
    (gpu,) = small["summary"]["domains"]
    assert (gpu["mean_w"], gpu["peak_w"]) == pytest.approx((200, 200))


@pytest.mark.parametrize(
    ("device", "until_s", "said"),
    [
        ("CPU", 4, []),
        ("CPU", 3, ["The CPU waited for 25.0 % of its energy."]),
        ("GPU:0", 4, ["The GPU waited for 0.0 % of its energy."]),
    ],
)
def test_a_cpu_that_never_waits_is_not_worth_a_word(device, until_s, said):
    spans = trace(("A", 0, until_s), device=device)
    assert _waiting(attribute(spans, one_watt(4, Domain(device, device)))) == said


def test_waiting_is_said_of_devices_not_of_meters():
    assert _spoken("GPU:0", ["GPU:0", "CPU"]) == "The GPU"
    assert _spoken("GPU:1", ["GPU:0", "GPU:1"]) == "GPU:1"


def test_the_dataflow_is_that_of_the_diagram(small):
    names = paths(small["nodes"])
    flows = {
        names[level] if level >= 0 else "": ends for level, *ends in small["nodes"]["views"]["all"]["edges"]
    }
    pairs = {
        path: {(names[a], names[b]) for a, b in zip(ends[::2], ends[1::2], strict=True)}
        for path, ends in flows.items()
    }
    assert ("net", "adam") in pairs[""]
    assert pairs["net/encoder/layer_0"] == {FLOW[1]}
    assert ("net/encoder/layer_0", "net/encoder/layer_1") in pairs["net/encoder"]
    assert ("net/embed", "net/encoder") in pairs["net"]


def test_phases_have_views_of_their_own(small):
    assert small["phases"] == ["forward", "backward", "optimizer"]
    names = paths(small["nodes"])
    for phase in small["phases"]:
        leaves = {name for name, (its, _) in SMALL.items() if its == phase}
        assert leaves <= {names[node] for node in small["nodes"]["views"][phase]["node"]}
    assert sum(view["energy_j"][0] for phase, view in small["nodes"]["views"].items() if phase != "all") > 0


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map("/".join), st.integers(1, 9), min_size=1
    ),
    st.integers(1, 5),
)
def test_small_names_fold_without_losing_a_joule(energies, most):
    footprint = footprint_of(energies)
    less = folded(footprint, most)
    assert less.attributed_j == pytest.approx(footprint.attributed_j)
    own = [name for name in less.name.used().words if "smaller)" not in name]
    assert len(own) <= most
    together = sum(
        int(re.search(r"\((\d+) smaller\)", name)[1]) for name in less.name.words if "smaller)" in name
    )
    assert len(own) + together == len(energies)


@pytest.mark.parametrize("seed", range(5))
def test_a_thinned_trace_keeps_its_peaks_and_its_energy(seed):
    rng = np.random.default_rng(seed)
    count = MOST_INTERVALS + int(rng.integers(1, 3000))
    edges = T0 + np.concatenate(([0], np.cumsum(rng.integers(1, 2_000_000, count))))
    energy = rng.random(count)
    peak = int(rng.integers(count))
    energy[peak] = 1000 * (edges[peak + 1] - edges[peak])
    trace = PowerTrace(Domain("GPU:0", "GPU:0"), edges, energy)
    line = power_line(trace, T0)
    assert len(line["mean_w"]) <= MOST_INTERVALS // 2
    assert max(line["high_w"]) == pytest.approx(trace.power_w.max(), rel=1e-6)
    assert min(line["low_w"]) == pytest.approx(trace.power_w.min(), rel=1e-6)
    assert all(
        low <= mean * (1 + 1e-5) and mean <= high * (1 + 1e-5)
        for low, mean, high in zip(line["low_w"], line["mean_w"], line["high_w"], strict=True)
    )
    seconds = (
        np.diff(
            trace.edges_ns[0]
            + np.arange(MOST_INTERVALS // 2 + 1) * int(edges[-1] - edges[0]) // (MOST_INTERVALS // 2)
        )
        / 1e9
    )
    assert float(np.dot(line["mean_w"], seconds)) == pytest.approx(trace.total_j, rel=1e-4)


def test_a_gap_in_the_readings_stays_a_gap():
    edges = T0 + MS * np.arange(10_001)
    watts, gap = np.full(10_000, 5.0), np.zeros(10_000, bool)
    gap[4000:6000], watts[4000:6000] = True, 0.0
    trace = PowerTrace(Domain("GPU:0", "GPU:0"), edges, watts * 1e-3, gap=gap)
    line = power_line(trace, T0)
    unknown = [at for at, mean in enumerate(line["mean_w"]) if mean is None]
    assert len(unknown) == pytest.approx(600, abs=3)
    assert line["low_w"][unknown[0]] is None
    assert min(low for low in line["low_w"] if low is not None) == 5.0


def test_activity_marks_when_a_module_ran():
    events = EventTrace.from_columns(
        name=["a/x", "a/y", "b"],
        device="GPU:0",
        start_ns=[T0, T0 + BINS // 2, T0 + BINS - 1],
        end_ns=[T0 + 10, T0 + BINS // 2 + 5, T0 + BINS],
        phase=["forward", "backward", "forward"],
    )
    found = activity(events, (T0, T0 + BINS), ["a", "a/y", "b"])

    def active(text):
        return np.flatnonzero(np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))).tolist()

    half = list(range(BINS // 2, BINS // 2 + 5))
    assert active(found["modules"]["a"]) == [*range(10), *half]
    assert active(found["modules"]["a/y"]) == active(found["phases"]["backward"]) == half
    assert active(found["modules"]["b"]) == [BINS - 1]


def test_calls_stand_by_their_source_line(tmp_path):
    path = write_small(tmp_path / "calls.joulemap")
    add_calls(path)
    fit, matmul = made(path)["calls"]["sites"]
    assert (fit["api"], fit["file"], fit["line"], fit["calls"]) == ("fit", "train.py", 7, 1)
    assert (matmul["api"], matmul["line"], matmul["calls"]) == ("matmul", 9, 2)
    assert (fit["energy_j"], fit["inclusive_j"], matmul["energy_j"]) == pytest.approx((160, 200, 40))


def test_no_name_breaks_out_of_the_page(small):
    page = assemble([small | {"name": f"{EVIL}.joulemap"}])
    assert data_of(page)["recordings"][0]["nodes"]["name"] == small["nodes"]["name"]
    assert TAG in small["nodes"]["name"]
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 2


def test_the_page_lets_nothing_in(small):
    page = assemble([small])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)


def test_the_command_writes_one_file_and_never_over_another(tmp_path):
    recording, page = write_small(tmp_path / "run.joulemap"), tmp_path / "page.html"
    said = run("report", recording, "-o", page, "--intensity", "380 g/kWh").stdout
    assert str(page) in said
    assert data_of(page.read_text())["recordings"][0]["summary"]["intensity_g_per_kwh"] == 380
    before = page.read_bytes()
    assert "exists" in run("report", recording, "-o", page, check=2).stderr
    assert page.read_bytes() == before
    run("report", recording, "-o", page, "--overwrite", "--baseline", "GPU:0=50W")
    assert data_of(page.read_text())["recordings"][0]["summary"]["net"]["baseline_w"] == {"GPU:0": 50}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--intensity", "much"), "is not an intensity"),
        (("--baseline", "GPU:7=50W"), "has no domain 'GPU:7'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(arguments, complaint, tmp_path):
    page = tmp_path / "page.html"
    assert complaint in run("report", H200, "-o", page, *arguments, check=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_named_after_the_recording(tmp_path):
    write_small(tmp_path / "run.joulemap")
    command = [sys.executable, "-m", "joulemap", "report", "run.joulemap"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "run.html").is_file()


def test_several_recordings_are_in_one_page(small, h200):
    page = data_of(assemble([small, h200]))
    assert [recording["name"] for recording in page["recordings"]] == ["small.joulemap", "bert-h200.joulemap"]
    assert page["comparison"] is None


def test_an_empty_recording_has_a_page(tmp_path):
    from joulemap.recording import RecordingInfo

    with unsynced():
        RecordingWriter.create(tmp_path / "empty.joulemap", RecordingInfo(created_ns=T0)).finish()
    empty = made(tmp_path / "empty.joulemap")
    assert empty["nodes"]["name"] == []
    assert empty["summary"]["drawn_j"] == 0
    assert data_of(assemble([empty]))


def test_what_is_vendored_is_what_is_named():
    import hashlib

    vendor = REPOSITORY / "src/joulemap/report/page/vendor"
    digest = hashlib.sha256((vendor / "dagre.min.js").read_bytes()).hexdigest()
    assert digest in (vendor / "README.md").read_text()
