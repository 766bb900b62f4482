"use strict";
// Several recordings beside each other, and what `joulemap compare --json` says of them.

function overviewSection(recordings, comparison) {
  return el("section", { id: "overview", "aria-labelledby": "overview-title" },
    el("h1", { id: "overview-title" }, `${count(recordings.length)} recordings`),
    totalsTable(recordings), modulesTable(recordings),
    comparison ? [
      el("h2", {}, "What changed"),
      el("p", { class: "note" }, `Each against the first, as joulemap compare does it, corrected for many comparisons (${printable(comparison.correction)}). No difference seen: none beyond ${percent(comparison.margin)} of the base.`),
      comparison.comparisons.map(differences),
      el("h2", {}, "How alike they are"),
      el("p", { class: "note" }, "Over the tensors that both have, layers of a kind together. A row’s recording less the column’s."),
      similarities(comparison.similarity),
    ] : null);
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

const VERDICTS = { more: "more", less: "less" };

// One variant against the base: each module's difference with its interval and a verdict.
function differences({ base, variant, rows, only_in_base, only_in_variant, notes }) {
  const change = (row) => (row.relative === null ? "" : signed(row.relative, percent))
    + (row.relative_low === null ? "" : ` (${signed(row.relative_low, percent)} … ${signed(row.relative_high, percent)})`);
  const card = (row) => () => ({
    title: printable(row.name),
    lines: [
      ["difference", signed(row.difference_j, (value) => quantity(value, "J"))],
      ["95 % interval", `${signed(row.low_j, (value) => quantity(value, "J"))} to ${signed(row.high_j, (value) => quantity(value, "J"))}`],
      row.relative_low === null ? null : ["of the base", `${signed(row.relative_low, percent)} to ${signed(row.relative_high, percent)}`],
      ["chance of it without a change", row.p_corrected.toPrecision(2)],
    ],
  });
  const lone = [...only_in_base.map((one) => [one, base.label]), ...only_in_variant.map((one) => [one, variant.label])];
  return el("div", { class: "compared" },
    table(`${printable(variant.label)} against ${printable(base.label)}`, [
      ["module", (row) => printable(row.name)],
      [printable(base.label), (row) => quantity(row.base_j, "J"), true],
      [printable(variant.label), (row) => quantity(row.variant_j, "J"), true],
      ["difference", (row) => datum(signed(row.difference_j, (value) => quantity(value, "J")), row.difference_j, card(row)), true],
      ["change (95 %)", change, true],
      ["verdict", (row) => el("span", { class: `verdict ${VERDICTS[row.verdict] || ""}` }, row.verdict)],
    ], rows),
    lone.length ? el("p", { class: "note" }, "Without a counterpart: ", lone.map(([one, label]) => `${printable(one.name)} (${printable(label)}, ${quantity(one.energy_j, "J")})`).join(", ")) : null,
    notes.map((note) => el("p", { class: "note" }, printable(note))),
    el("p", { class: "tools" }, csvButton("comparison.csv", () => rows)));
}

function signed(value, text) {
  return value === 0 ? text(0) : `${value > 0 ? "+" : "−"}${text(Math.abs(value))}`;
}

// Figure 9 of the paper: how alike the variants are, tensor by tensor.
function similarities({ labels, stef_pcc, stpf_pcc, stef_med_j, stpf_med_w }) {
  return el("div", { class: "columns" },
    matrix("PCC of energy (STEF)", labels, stef_pcc, (value) => value.toFixed(4)), matrix("PCC of power (STPF)", labels, stpf_pcc, (value) => value.toFixed(4)),
    matrix("Mean difference of energy (MED)", labels, stef_med_j, (value) => signed(value, (one) => quantity(one, "J"))),
    matrix("Mean difference of power (MED)", labels, stpf_med_w, (value) => signed(value, (one) => quantity(one, "W"))));
}

// A heat map with its numbers in it; below zero it is blue.
function matrix(title, names, values, text) {
  const most = Math.max(...values.flat().map((value) => Math.abs(value || 0)), 1e-12);
  const cell = (at) => (row) => (row.values[at] === null ? "not defined" : el("span", { class: row.values[at] < 0 ? "cell below" : "cell", "--heat": String(Math.abs(row.values[at]) / most) }, text(row.values[at])));
  const rows = names.map((name, at) => ({ name, values: values[at] }));
  const records = () => rows.map(({ name, values: numbers }) => ({ name, ...Object.fromEntries(names.map((other, at) => [other, numbers[at]])) }));
  return el("div", {}, table(title, [["", ({ name }) => printable(name)], ...names.map((name, at) => [printable(name), cell(at), true])], rows), el("p", { class: "tools" }, csvButton("similarity.csv", records)));
}
