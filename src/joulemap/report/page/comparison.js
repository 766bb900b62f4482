"use strict";
// What `joulemap compare --json` says: differences with intervals and verdicts, and how alike the variants are.

function comparedParts({ rule, correction, margin, comparisons, similarity }) {
  const note = (...sentences) => el("p", { class: "note" }, sentences.join(" "));
  return [
    el("h2", {}, "What changed"),
    note(
      `Each against the first, as joulemap compare does it, corrected for many comparisons (${printable(correction)}).`,
      `No difference seen: none beyond ${percent(margin)} of the base.`,
      rule === "calibrated" ? "By time: the change that sharing by time alone sees." : "",
    ),
    comparisons.map((one) => differences(one, rule)),
    el("h2", {}, "How alike they are"),
    note("Over the tensors that both have, layers of a kind together. A row’s recording less the column’s."),
    similarities(similarity),
  ];
}

// One variant against the base: each module's difference with its interval and a verdict.
function differences({ base, variant, rows, only_in_base, only_in_variant, notes }, rule) {
  const columns = [
    ["module", (row) => printable(row.name)],
    [printable(base.label), (row) => quantity(row.base_j, "J"), true],
    [printable(variant.label), (row) => quantity(row.variant_j, "J"), true],
    ["difference", (row) => datum(moreJoules(row.difference_j), row.difference_j, () => differenceCard(row)), true],
    ["change (95 %)", change, true],
    ["verdict", (row) => el("span", { class: `verdict ${row.verdict}` }, row.verdict)],
    rule === "calibrated" ? ["by time", timeBasedChange, true] : null,
  ].filter(Boolean);
  const compared = table(`${printable(variant.label)} against ${printable(base.label)}`, columns, rows);
  const lone = [...only_in_base.map(withoutCounterpart(base)), ...only_in_variant.map(withoutCounterpart(variant))];
  const sentences = [...(lone.length ? [`Without a counterpart: ${lone.join(", ")}.`] : []), ...notes.map(printable)];
  const said = sentences.map((sentence) => el("p", { class: "note" }, sentence));
  return el(
    "div",
    { class: "compared" },
    withCsv(compared, "comparison.csv", () => rows),
    said,
  );
}

function withoutCounterpart({ label }) {
  return ({ name, energy_j }) => `${printable(name)} (${printable(label)}, ${quantity(energy_j, "J")})`;
}

function change({ relative, relative_low, relative_high }) {
  if (relative === null) return "";
  const interval = relative_low === null ? "" : ` (${signedPercent(relative_low)} … ${signedPercent(relative_high)})`;
  return signedPercent(relative) + interval;
}

function timeBasedChange({ time_based_relative }) {
  return time_based_relative === null ? "" : signedPercent(time_based_relative);
}

function differenceCard(row) {
  const lines = [
    ["difference", moreJoules(row.difference_j)],
    ["95 % interval", `${moreJoules(row.low_j)} to ${moreJoules(row.high_j)}`],
    ["change", change(row)],
    ["chance of it without a change", row.p_corrected.toPrecision(2)],
    ["verdict", row.verdict],
  ];
  return { title: printable(row.name), lines };
}

function signed(value, text) {
  return value === 0 ? text(0) : `${value > 0 ? "+" : "−"}${text(Math.abs(value))}`;
}

function moreJoules(value) {
  return signed(value, (amount) => quantity(amount, "J"));
}

function moreWatts(value) {
  return signed(value, (amount) => quantity(amount, "W"));
}

// Figure 9 of the paper: how alike the variants are, tensor by tensor.
function similarities({ labels, stef_pcc, stpf_pcc, stef_med_j, stpf_med_w }) {
  const digits = (value) => value.toFixed(4);
  return el(
    "div",
    { class: "columns" },
    matrix("PCC of energy (STEF)", labels, stef_pcc, digits),
    matrix("PCC of power (STPF)", labels, stpf_pcc, digits),
    matrix("Mean difference of energy (MED)", labels, stef_med_j, moreJoules),
    matrix("Mean difference of power (MED)", labels, stpf_med_w, moreWatts),
  );
}

// A heat map with its numbers in it; below zero it is blue.
function matrix(title, names, values, text) {
  const most = Math.max(...values.flat().map((value) => Math.abs(value || 0)), 1e-12);
  const tile = (value) => {
    const heat = { class: value < 0 ? "cell below" : "cell", "--heat": String(Math.abs(value) / most) };
    return value === null ? "not defined" : el("span", heat, text(value));
  };
  const rows = names.map((name, at) => ({ name, values: values[at] }));
  const columns = names.map((name, at) => [printable(name), (row) => tile(row.values[at]), true]);
  const record = (row) => ({
    name: row.name,
    ...Object.fromEntries(names.map((name, at) => [name, row.values[at]])),
  });
  const shown = table(title, [["", ({ name }) => printable(name)], ...columns], rows);
  return withCsv(shown, "similarity.csv", () => rows.map(record));
}
