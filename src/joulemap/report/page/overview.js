"use strict";
// Several recordings beside each other, and what was found by comparing them.

function overviewSection(recordings, comparison) {
  const title = el("h1", { id: "overview-title" }, `${count(recordings.length)} recordings`);
  const compared = comparison ? comparedParts(comparison) : null;
  const attributes = { id: "overview", "aria-labelledby": "overview-title" };
  return el("section", attributes, title, totalsTable(recordings), modulesTable(recordings), compared);
}

function totalsTable(recordings) {
  const attributed = ({ summary }) =>
    datum(joules(summary.attributed), summary.attributed.energy_j, () =>
      energyCard("Attributed", summary.attributed),
    );
  const columns = [
    ["recording", ({ name }) => printable(name)],
    ["drawn", ({ summary }) => quantity(summary.drawn_j, "J", 4), true],
    ["attributed", attributed, true],
    ["idle", ({ summary }) => percent(summary.drawn_j ? summary.idle_j / summary.drawn_j : 0), true],
    ["time", ({ about }) => duration(about.seconds), true],
    ["provenance", ({ summary }) => summary.provenances.join(", ")],
  ];
  return withCsv(table("Totals", columns, recordings), "recordings.csv", () => recordings.map(totalsRecord));
}

function totalsRecord({ name, summary, about }) {
  const { drawn_j, attributed_j, idle_j, attributed } = summary;
  return {
    name,
    drawn_j,
    attributed_j,
    low_j: attributed.low_j,
    high_j: attributed.high_j,
    idle_j,
    seconds: about.seconds,
  };
}

// The outermost modules of all of them, with bars to one scale.
function modulesTable(recordings) {
  const rows = outermostModules(recordings);
  const largest = rows.length ? rows[0].most_j : 1;
  const scaled = (name, row) => {
    const bar = { class: "scaled", "--value": String(row.energy_j / largest) };
    return datum(joules(row), row.energy_j, () => energyCard(name, row), bar);
  };
  const columns = recordings.map(({ name: heading }, at) => {
    const cell = ({ name, found }) => (found[at] ? scaled(name, found[at]) : "");
    return [printable(heading), cell, true];
  });
  const shown = table("The outermost modules", [["module", ({ name }) => printable(name)], ...columns], rows);
  const energy = (found, data, at) => [`${data.name} energy_j`, found[at] ? found[at].energy_j : null];
  const record = ({ name, found }) => ({
    name,
    ...Object.fromEntries(recordings.map((data, at) => energy(found, data, at))),
  });
  return withCsv(shown, "modules.csv", () => rows.map(record));
}

// The largest twenty by name, each with its row in every recording that has it.
function outermostModules(recordings) {
  const modules = new Map();
  recordings.forEach((data, at) => {
    const model = new Model(data);
    for (const node of model.children(PROGRAM, "all")) {
      const name = model.names[node],
        row = model.row(node, "all");
      const module = modules.get(name) || { name, found: [], most_j: 0 };
      module.found[at] = row;
      module.most_j = Math.max(module.most_j, row.energy_j);
      modules.set(name, module);
    }
  });
  return [...modules.values()].sort((a, b) => b.most_j - a.most_j).slice(0, 20);
}
