"use strict";
// The figures under the summary. Each says more about itself when it is pointed at.

function figures({ summary, timeline }) {
  const words = summary.provenances.map((word) => `${word}: ${MEANING[word]}`).join("; ");
  const provenance = ["provenance", words];
  const found = [
    grossFigure(summary, provenance),
    summary.net ? netFigure(summary, provenance) : unknownNetFigure(),
    ...summary.domains.map((domain) => powerFigure(domain, summary.domains.length > 1)),
    energyInKwhFigure(summary, provenance),
    summary.co2e_g === null ? null : carbonFigure(summary, provenance),
    timeline.steps ? coverageFigure(summary, timeline.steps) : null,
  ];
  return el("dl", { class: "figures" }, found.filter(Boolean).map(figure));
}

function figure({ key, label, text, value, card }) {
  const named = { role: "group", "aria-label": `${label}: ${text}` };
  const shown = datum(text, value, () => card, { tabindex: "0", "data-key": key, ...named });
  return el("div", {}, el("dt", {}, label), el("dd", {}, shown));
}

function attributedLines(row, idle_j) {
  return [
    ["attributed", joules(row)],
    ["95 % interval", interval(row)],
    ["idle", quantity(idle_j, "J")],
  ];
}

function grossFigure({ drawn_j, attributed, idle_j }, provenance) {
  const note = "Everything that was drawn while recording, idle included.";
  const card = { title: "Gross energy", lines: [...attributedLines(attributed, idle_j), provenance], note };
  return { key: "drawn_j", label: "Gross", text: quantity(drawn_j, "J", 4), value: drawn_j, card };
}

function netFigure({ drawn_j, net }, provenance) {
  const value = drawn_j - net.baseline_j;
  const baselines = Object.entries(net.baseline_w).map(([name, watts]) => [
    `idle power of ${printable(name)}`,
    quantity(watts, "W"),
  ]);
  const lines = [...attributedLines(net.attributed, net.idle_j), ...baselines, provenance];
  const card = { title: "Net energy", lines, note: "What was drawn above the idle baseline." };
  return { key: "net_j", label: "Net", text: quantity(value, "J", 4), value, card };
}

function unknownNetFigure() {
  const note = "There is no idle baseline: the recording has no quiet time to read it off. Give one with --baseline.";
  return {
    key: "net_j",
    label: "Net",
    text: "not known",
    value: null,
    card: { title: "Net energy", lines: [], note },
  };
}

function powerFigure(domain, isOneOfSeveral) {
  const { name, mean_w, peak_w } = domain;
  const lines = [
    ["mean", quantity(mean_w, "W", 4)],
    ["highest reading", quantity(peak_w, "W", 4)],
    ...meterLines(domain),
  ];
  const note = "A peak is the mean of one reading; shorter ones stay unseen.";
  return {
    key: "mean_w",
    label: isOneOfSeveral ? `${printable(name)}, mean and peak` : "Mean and peak",
    text: mean_w === null ? "not known" : `${quantity(mean_w, "W")}, ${quantity(peak_w, "W")}`,
    value: mean_w,
    card: { title: `Power of ${printable(name)}`, lines, note },
  };
}

function energyInKwhFigure({ kwh, drawn_j }, provenance) {
  const card = { title: "Gross energy", lines: [["in joules", quantity(drawn_j, "J", 4)], provenance] };
  return { key: "kwh", label: "Gross, in kWh", text: `${Number(kwh.toPrecision(3))} kWh`, value: kwh, card };
}

function carbonFigure({ co2e_g, intensity_g_per_kwh }, provenance) {
  const card = {
    title: "CO₂ equivalent",
    lines: [["intensity, as given", `${intensity_g_per_kwh} g/kWh`], provenance],
  };
  return { key: "co2e_g", label: "CO₂e", text: quantity(co2e_g, "g"), value: co2e_g, card };
}

function coverageFigure({ projected_j }, steps) {
  const lines = [
    ["steps metered", count(steps.count)],
    ["of them traced", count(steps.traced_count)],
    ["projected", `${quantity(projected_j, "J")}: ${MEANING.projected}`],
  ];
  const text = `${count(steps.traced_count)} of ${count(steps.count, "step")}`;
  return { key: "traced", label: "Coverage", text, value: steps.traced_count, card: { title: "Coverage", lines } };
}
