"use strict";
// What it comes to, in words first.

function summarySection(data) {
  const { summary, about } = data;
  return el("section", { id: "summary", "aria-labelledby": "summary-title" },
    el("h1", { id: "summary-title" }, printable(data.name.replace(/\.joulemap$/, ""))),
    el("p", { class: "facts" }, facts(data).join(" · ")),
    el("p", { class: "lead" }, lead(summary)),
    balance(data),
    figures(data),
    warnings(summary.warnings),
    el("div", { class: "columns" }, domainsTable(data), phasesTable(data)),
    machine(about));
}

function facts({ about, timeline }) {
  const steps = timeline.steps;
  const device = about.host.gpu || about.host.processor;
  return [
    about.status === "complete" ? null : about.status,
    about.seconds === null ? null : duration(about.seconds),
    steps ? `${count(steps.count, "step")}, ${count(steps.traced_count)} traced` : null,
    count(about.events, "event"),
    device ? printable(device) : null,
    about.created_ns ? new Date(about.created_ns / 1e6).toISOString().slice(0, 16).replace("T", " ") + " UTC" : null,
  ].filter(Boolean);
}

function lead(summary) {
  const drawn = el("b", {}, quantity(summary.drawn_j, "J", 4));
  const words = summary.provenances.join(" and ") || "measured";
  return [
    drawn, ` drawn (${words}): `, quantity(summary.attributed_j, "J", 4), " by what the program ran and ",
    quantity(summary.idle_j, "J", 4), " while it ran nothing. ",
    el("span", { class: "waiting" }, summary.waiting.join(" ")),
  ];
}

// measured = attributed (by phase) + idle + other processes + outside, as one bar.
function balance(data) {
  const { summary } = data;
  const beside = [["idle", summary.idle_j], ["other processes", summary.other_processes_j], ["outside the recording", summary.outside_j]];
  const parts = [
    ...summary.phases.map((row) => [row.name, row.energy_j, "phase", () => energyCard(row.name, row)]),
    ...beside.map(([name, energy_j]) => [name, energy_j, name.split(" ")[0], null]),
  ].filter(([, energy_j]) => energy_j > 0);
  const whole = summary.measured_j || 1;
  const card = (name, energy_j) => () => ({ title: name, lines: [["energy", quantity(energy_j, "J", 4)], ["of all that was measured", percent(energy_j / whole)]] });
  const heat = Math.max(...summary.phases.map((row) => row.energy_j), 1e-12);
  const colour = (energy_j) => String(0.25 + 0.75 * energy_j / heat);
  return el("figure", { class: "balance" },
    el("div", { class: "stack", "aria-hidden": "true" }, parts.map(([name, energy_j, kind, tip]) =>
      el("span", { class: `part ${kind}`, "--part": String(energy_j / whole), "--heat": colour(energy_j), tip: tip || card(name, energy_j) }))),
    el("ul", { class: "legend" }, parts.map(([name, energy_j, kind]) =>
      el("li", {}, el("i", { class: `part ${kind}`, "--heat": colour(energy_j) }), `${name} `, el("b", {}, quantity(energy_j, "J")), ` ${percent(energy_j / whole)}`))));
}

function figure(label, text, value, card, key) {
  return el("div", {}, el("dt", {}, label), el("dd", {}, datum(text, value, card, { tabindex: "0", "data-key": key })));
}

function figures({ summary, timeline }) {
  const whole = summary.attributed, net = summary.net;
  const plain = (title, lines, note) => () => ({ title, lines, note });
  const words = ["provenance", summary.provenances.map((word) => `${word}: ${MEANING[word]}`).join("; ")];
  const found = [
    figure("Gross", quantity(summary.drawn_j, "J", 4), summary.drawn_j,
      plain("Gross energy", [["attributed", joules(whole)], ["95 % interval", range(whole.low_j, whole.high_j, "J")], ["idle", quantity(summary.idle_j, "J")], words], "Everything that was drawn while recording, idle included."), "drawn_j"),
    net
      ? figure("Net", quantity(summary.drawn_j - net.baseline_j, "J", 4), summary.drawn_j - net.baseline_j,
        plain("Net energy", [["attributed", joules(net.attributed)], ["95 % interval", range(net.attributed.low_j, net.attributed.high_j, "J")], ["idle", quantity(net.idle_j, "J")], ...Object.entries(net.baseline_w).map(([name, watts]) => [`idle power of ${printable(name)}`, quantity(watts, "W")]), words], "What was drawn above the idle baseline."), "net_j")
      : figure("Net", "not known", null, plain("Net energy", [], "There is no idle baseline: the recording has no quiet time to read it off. Give one with --baseline."), "net_j"),
    ...summary.domains.map((domain) => figure(summary.domains.length > 1 ? `${domain.name}, mean and peak` : "Mean and peak",
      domain.mean_w === null ? "not known" : `${quantity(domain.mean_w, "W")}, ${quantity(domain.peak_w, "W")}`, domain.mean_w,
      plain(`Power of ${printable(domain.name)}`, [["mean", quantity(domain.mean_w, "W", 4)], ["highest reading", quantity(domain.peak_w, "W", 4)], ["sensor", printable(domain.sensor || "not named")], ["updates every", duration(domain.update_period_s)], ["provenance", `${domain.provenance}: ${MEANING[domain.provenance]}`]], "A peak is the mean of one reading; shorter ones stay unseen."), "mean_w")),
    figure("Gross, in kWh", `${Number(summary.kwh.toPrecision(3))} kWh`, summary.kwh, plain("Gross energy", [["in joules", quantity(summary.drawn_j, "J", 4)], words]), "kwh"),
    summary.co2e_g === null ? null : figure("CO₂e", quantity(summary.co2e_g, "g"), summary.co2e_g,
      plain("CO₂ equivalent", [["intensity, as given", `${summary.intensity_g_per_kwh} g/kWh`], words]), "co2e_g"),
    timeline.steps ? figure("Coverage", `${count(timeline.steps.traced_count)} of ${count(timeline.steps.count, "step")}`, timeline.steps.traced_count,
      plain("Coverage", [["steps metered", count(timeline.steps.count)], ["of them traced", count(timeline.steps.traced_count)], ["projected", `${quantity(summary.projected_j, "J")}: ${MEANING.projected}`]]), "traced") : null,
  ];
  return el("dl", { class: "figures" }, found);
}

function warnings(sentences) {
  if (!sentences.length) return null;
  return el("aside", { class: "warnings", "aria-label": "Warnings" }, el("ul", {}, sentences.map((one) => el("li", {}, printable(one)))));
}

function domainsTable(data) {
  const rows = data.summary.domains;
  const records = () => rows.map(({ attributed, ...rest }) => ({ ...rest, attributed_j: attributed.energy_j, attributed_low_j: attributed.low_j, attributed_high_j: attributed.high_j }));
  const power = (watts) => (watts === null ? "" : quantity(watts, "W"));
  return el("div", {}, table("By device", [
    ["meter", (row) => printable(row.name)],
    ["measured", (row) => datum(quantity(row.measured_j, "J", 4), row.measured_j, () => ({ title: printable(row.name), lines: [["measured", quantity(row.measured_j, "J", 4)], ["sensor", printable(row.sensor || "not named")], ["updates every", duration(row.update_period_s)], ["provenance", `${row.provenance}: ${MEANING[row.provenance]}`]] })), true],
    ["attributed", (row) => datum(joules(row.attributed), row.attributed.energy_j, () => energyCard(row.name, row.attributed)), true],
    ["idle", (row) => datum(plusMinus(row.idle_j, "J", (row.idle_high_j - row.idle_low_j) / 2), row.idle_j, () => ({ title: `${printable(row.name)}, idle`, lines: [["95 % interval", range(row.idle_low_j, row.idle_high_j, "J")], ["provenance", row.provenance]] })), true],
    ["mean", (row) => power(row.mean_w), true],
    ["peak", (row) => power(row.peak_w), true],
  ], rows), el("p", { class: "tools" }, csvButton("devices.csv", records)));
}

function phasesTable(data) {
  const rows = data.summary.phases, whole = data.summary.attributed_j || 1;
  return el("div", {}, table("By phase", [
    ["phase", (row) => row.name],
    ["energy", (row) => datum(joules(row), row.energy_j, () => energyCard(row.name, row)), true],
    ["share", (row) => percent(row.energy_j / whole), true],
    ["provenance", (row) => row.provenance],
  ], rows), el("p", { class: "tools" }, csvButton("phases.csv", () => rows)));
}

function machine(about) {
  const pair = ([name, value]) => [el("dt", {}, printable(name)), el("dd", {}, printable(value))];
  return el("details", { class: "machine" }, el("summary", {}, "The command and the machine"),
    el("dl", {}, about.command.length ? pair(["command", about.command.join(" ")]) : null,
      pair(["recorded by", `joulemap ${about.source}`]),
      Object.entries(about.host).map(pair), Object.entries(about.versions).map(pair)));
}
