"use strict";
// The tensors that cost most, layers of a kind together: STEF by energy, STPF by power, with whiskers.

function tensorsSection(data) {
  const energy = (row) => measured(row, 1, "J");
  const power = (row) => measured(row, row.active_s, "W");
  return el(
    "section",
    { id: "tensors", "aria-labelledby": "tensors-title" },
    el("h2", { id: "tensors-title" }, "Top tensors"),
    el(
      "p",
      { class: "note" },
      "Layers of a kind stand together (layer_*). Whiskers are 95 % intervals. ",
      `By power stand those with ${percent(data.tensors.least_share)} of the energy or more.`,
    ),
    el(
      "div",
      { class: "columns" },
      bars("By energy (STEF)", data.tensors.energy, energy, "stef.csv", data.summary),
      bars("By mean power (STPF)", data.tensors.power, power, "stpf.csv", data.summary),
    ),
    data.tensors.changed && changedTable(data.tensors.changed),
  );
}

// What calibration has changed, the largest differences first.
function changedTable(rows) {
  const columns = [
    ["tensor", (row) => qualifiedName(row.name)],
    ["calibrated", (row) => datum(joules(row), row.energy_j, () => energyCard(row.name, row)), true],
    ["by time alone", besideCalibrated, true],
    ["provenance", (row) => row.provenance],
  ];
  return withCsv(table("What calibration changed most", columns, rows), "calibrated.csv", () => rows.map(tensorRecord));
}

// What a bar shows; without a known interval its ends are the value itself.
function measured(row, seconds, unit) {
  const [low_j, high_j] = row.interval ? [row.low_j, row.high_j] : [row.energy_j, row.energy_j];
  return { value: row.energy_j / seconds, low: low_j / seconds, high: high_j / seconds, unit };
}

function bars(title, rows, measure, csvName, summary) {
  const largest = Math.max(...rows.map((row) => measure(row).value), 1e-12);
  const reach = Math.min(Math.max(...rows.map((row) => measure(row).high), largest), 1.6 * largest);
  const entries = rows.map((row) => bar(row, measure(row), largest, reach, mixed(row, summary)));
  const list = rows.length ? walkable(el("ol", { class: "bars" }, entries)) : el("p", { class: "nothing" }, "None.");
  return el(
    "div",
    {},
    el("h3", {}, title),
    withCsv(list, csvName, () => rows.map(tensorRecord)),
  );
}

function tensorRecord({ phases, ...row }) {
  return { ...row, power_w: row.active_s > 0 ? row.energy_j / row.active_s : null };
}

function qualifiedName(name) {
  const [, layers, operation] = printable(name).match(/^(.*\/)?(.*)$/s);
  const parts = (layers || "")
    .split("/")
    .slice(0, -1)
    .map((layer) => [`${layer}/`, el("wbr")]);
  return el("span", { class: "qtn" }, el("span", {}, parts), el("b", {}, operation));
}

function bar(row, { value, low, high, unit }, largest, reach, note) {
  const amount = plusMinus(value, unit, Math.max(high - value, value - low));
  const lines = [
    ["mean power", quantity(row.energy_j / row.active_s, "W")],
    ["active", duration(row.active_s)],
    ["executions", count(row.calls)],
    ["of all that was drawn", percent(row.share)],
    ...Object.entries(row.phases).map(([phase, energy_j]) => [phase, quantity(energy_j, "J")]),
  ];
  const card = () => energyCard(row.name, row, lines, note);
  return el(
    "li",
    { tip: card, "aria-label": `${printable(row.name)}, ${amount}` },
    qualifiedName(row.name),
    el("span", { class: "amount" }, amount),
    el(
      "span",
      {
        class: "track",
        "aria-hidden": "true",
        "--value": String(value / reach),
        "--low": String(low / reach),
        "--high": String(Math.min(high / reach, 1)),
        "--heat": String(value / largest),
      },
      el("i", { class: "fill" }),
      row.interval && el("i", { class: high > reach ? "whisker beyond" : "whisker" }),
    ),
  );
}
