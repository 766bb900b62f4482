"use strict";
// What it comes to, in words first.

function summarySection(data) {
  const { summary, about } = data;
  return el(
    "section",
    { id: "summary", "aria-labelledby": "summary-title" },
    el("h1", { id: "summary-title" }, printable(data.name.replace(/\.joulemap$/, ""))),
    el("p", { class: "facts" }, facts(data).join(" · ")),
    el("p", { class: "lead" }, lead(summary)),
    balance(data),
    figures(data),
    sentences("warnings", "Warnings", summary.warnings),
    sentences("notes", "Notes", summary.notes),
    el("div", { class: "columns" }, domainsTable(data), phasesTable(data)),
    machine(about),
  );
}

function facts({ about, summary, timeline }) {
  const steps = timeline.steps;
  const device = about.host.gpu || about.host.processor;
  return [
    about.status === "complete" ? null : about.status,
    about.seconds === null ? null : duration(about.seconds),
    steps ? `${count(steps.count, "step")}, ${count(steps.traced_count)} traced` : null,
    count(about.events, "event"),
    device ? printable(device) : null,
    summary.rule === "exact" ? null : `shared out by the ${summary.rule} rule`,
    about.created_ns ? new Date(about.created_ns / 1e6).toISOString().slice(0, 16).replace("T", " ") + " UTC" : null,
  ].filter(Boolean);
}

function lead(summary) {
  const drawn = el("b", {}, quantity(summary.drawn_j, "J", 4));
  const words = summary.provenances.join(" and ") || "measured";
  return [
    drawn,
    ` drawn (${words}): `,
    quantity(summary.attributed_j, "J", 4),
    " by what the program ran and ",
    quantity(summary.idle_j, "J", 4),
    " while it ran nothing. ",
    el("span", { class: "waiting" }, summary.waiting.join(" ")),
  ];
}

// measured = attributed (by phase) + idle + other processes + outside, as one bar.
function balance({ summary }) {
  const whole = summary.measured_j || 1;
  const hottest = Math.max(...summary.phases.map((row) => row.energy_j), 1e-12);
  const parts = balanceParts(summary).filter(({ energy_j }) => energy_j > 0);
  const heat = (energy_j) => String(0.25 + (0.75 * energy_j) / hottest);
  const stretch = ({ energy_j, kind, card }) =>
    el("span", { class: `part ${kind}`, "--part": String(energy_j / whole), "--heat": heat(energy_j), tip: card });
  const entry = ({ name, energy_j, kind }) => {
    const swatch = el("i", { class: `part ${kind}`, "--heat": heat(energy_j) });
    return el("li", {}, swatch, `${name} `, el("b", {}, quantity(energy_j, "J")), ` ${percent(energy_j / whole)}`);
  };
  return el(
    "figure",
    { class: "balance", "aria-label": "Where the measured energy went" },
    el("div", { class: "stack", "aria-hidden": "true" }, parts.map(stretch)),
    el("ul", { class: "legend" }, parts.map(entry)),
  );
}

function balanceParts({ phases, idle_j, other_processes_j, outside_j, measured_j }) {
  const beside = (name, kind, energy_j) => {
    const lines = [
      ["energy", quantity(energy_j, "J", 4)],
      ["of all that was measured", percent(energy_j / (measured_j || 1))],
    ];
    return { name, kind, energy_j, card: () => ({ title: name, lines }) };
  };
  return [
    ...phases.map((row) => ({ ...row, kind: "phase", card: () => energyCard(row.name, row) })),
    beside("idle", "idle", idle_j),
    beside("other processes", "other", other_processes_j),
    beside("outside the recording", "outside", outside_j),
  ];
}

function sentences(kind, label, texts) {
  if (!texts.length) return null;
  return el(
    "aside",
    { class: kind, "aria-label": label },
    el(
      "ul",
      {},
      texts.map((one) => el("li", {}, printable(one))),
    ),
  );
}

function machine(about) {
  const pair = ([name, value]) => [el("dt", {}, printable(name)), el("dd", {}, printable(value))];
  return el(
    "details",
    { class: "machine" },
    el("summary", {}, "The command and the machine"),
    el(
      "dl",
      {},
      about.command.length ? pair(["command", about.command.join(" ")]) : null,
      pair(["recorded by", `joulemap ${about.source}`]),
      Object.entries(about.host).map(pair),
      Object.entries(about.versions).map(pair),
    ),
  );
}
