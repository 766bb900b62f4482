"use strict";
// Several recordings beside each other; and what `joulemap compare` found, where the page holds it.

function overviewSection(recordings, comparison) {
  return el("section", { id: "overview", "aria-labelledby": "overview-title" },
    el("h1", { id: "overview-title" }, `${count(recordings.length)} recordings`),
    el("p", { class: "note" }, "Beside each other, as each was accounted. Whether a difference is one is for a comparison to say."),
    totalsTable(recordings), modulesTable(recordings),
    comparison ? [comparison.tables.map(comparedTable), comparison.matrices.map(matrix)] : null);
}

function totalsTable(recordings) {
  const records = () => recordings.map(({ name, summary, about }) => ({ name, drawn_j: summary.drawn_j, attributed_j: summary.attributed_j, low_j: summary.attributed.low_j, high_j: summary.attributed.high_j, idle_j: summary.idle_j, seconds: about.seconds }));
  return el("div", {}, table("Totals", [
    ["recording", ({ name }) => printable(name)],
    ["drawn", ({ summary }) => quantity(summary.drawn_j, "J", 4), true],
    ["attributed", ({ summary }) => datum(joules(summary.attributed), summary.attributed.energy_j, () => energyCard("Attributed", summary.attributed)), true],
    ["idle", ({ summary }) => percent(summary.drawn_j ? summary.idle_j / summary.drawn_j : 0), true],
    ["time", ({ about }) => duration(about.seconds), true],
    ["provenance", ({ summary }) => summary.provenances.join(", ")],
  ], recordings), el("p", { class: "tools" }, csvButton("recordings.csv", records)));
}

// The outermost modules of all of them, with bars to one scale.
function modulesTable(recordings) {
  const models = recordings.map((data) => new Model(data)), energies = new Map();
  models.forEach((model, at) => model.children(PROGRAM, "all").forEach((node) => {
    const name = model.names[node];
    if (!energies.has(name)) energies.set(name, models.map(() => null));
    energies.get(name)[at] = model.row(node, "all");
  }));
  const rows = [...energies].map(([name, values]) => ({ name, values, most: Math.max(...values.map((row) => (row ? row.energy_j : 0))) })).sort((a, b) => b.most - a.most).slice(0, 20);
  const largest = rows.length ? rows[0].most : 1;
  const cell = (at) => ({ name, values }) => (values[at] ? datum(joules(values[at]), values[at].energy_j, () => energyCard(name, values[at]), { class: "scaled", "--value": String(values[at].energy_j / largest) }) : "");
  return table("The outermost modules", [["module", ({ name }) => printable(name)], ...recordings.map((data, at) => [printable(data.name), cell(at), true])], rows);
}

// {title, note, columns: [[key, heading, unit]], rows}: what has a unit is a quantity.
function comparedTable({ title, note, columns: keys, rows }) {
  const cell = (key, unit) => (row) => (row[key] === null || row[key] === undefined ? "" : unit === "%" ? percent(row[key]) : unit ? quantity(row[key], unit) : printable(String(row[key])));
  return el("div", {}, table(title, keys.map(([key, heading, unit]) => [heading, cell(key, unit), Boolean(unit)]), rows), note ? el("p", { class: "note" }, note) : null, el("p", { class: "tools" }, csvButton("comparison.csv", () => rows)));
}

// {title, note, names, values}: a heat map with its numbers in it.
function matrix({ title, note, names, values }) {
  const most = Math.max(...values.flat().map((value) => Math.abs(value || 0)), 1e-12);
  const cell = (at) => (row) => (row.values[at] === null ? "" : el("span", { class: row.values[at] < 0 ? "cell below" : "cell", "--heat": String(Math.abs(row.values[at]) / most) }, row.values[at].toPrecision(4)));
  const rows = names.map((name, at) => ({ name, values: values[at] }));
  return el("div", {}, table(title, [["", ({ name }) => printable(name)], ...names.map((name, at) => [printable(name), cell(at), true])], rows), note ? el("p", { class: "note" }, note) : null);
}
