"use strict";
// The summary by device and by phase.

function meterLines({ sensor, update_period_s, provenance }) {
  return [
    ["sensor", printable(sensor || "not named")],
    ["updates every", duration(update_period_s)],
    ["provenance", `${provenance}: ${MEANING[provenance]}`],
  ];
}

function measuredDatum(row) {
  const text = quantity(row.measured_j, "J", 4);
  return datum(text, row.measured_j, () => ({
    title: printable(row.name),
    lines: [[row.provenance, text], ...meterLines(row)],
  }));
}

function idleDatum({ name, idle_j, idle_low_j, idle_high_j, provenance }) {
  return datum(plusMinus(idle_j, "J", (idle_high_j - idle_low_j) / 2), idle_j, () => ({
    title: `${printable(name)}, idle`,
    lines: [
      ["95 % interval", range(idle_low_j, idle_high_j, "J")],
      ["provenance", `${provenance}: ${MEANING[provenance]}`],
    ],
  }));
}

function attributedDatum({ name, attributed }) {
  return datum(joules(attributed), attributed.energy_j, () => energyCard(name, attributed));
}

function domainRecord({ attributed, ...rest }) {
  return {
    ...rest,
    attributed_j: attributed.energy_j,
    attributed_low_j: attributed.low_j,
    attributed_high_j: attributed.high_j,
  };
}

function domainsTable({ summary }) {
  const power = (watts) => (watts === null ? "" : quantity(watts, "W"));
  const columns = [
    ["meter", (row) => printable(row.name)],
    [summary.provenances.join(" or "), measuredDatum, true],
    ["attributed", attributedDatum, true],
    netColumn(summary.domains),
    ["idle", idleDatum, true],
    ["mean", (row) => power(row.mean_w), true],
    ["peak", (row) => power(row.peak_w), true],
  ];
  return withCsv(table("By device", columns.filter(Boolean), summary.domains), "devices.csv", () =>
    summary.domains.map(domainRecord),
  );
}

function phasesTable({ summary }) {
  const columns = [
    ["phase", (row) => row.name],
    ["energy", (row) => datum(joules(row), row.energy_j, () => energyCard(row.name, row)), true],
    netColumn(summary.phases),
    ["share", (row) => percent(row.energy_j / (summary.attributed_j || 1)), true],
    ["provenance", (row) => row.provenance],
  ];
  return withCsv(table("By phase", columns.filter(Boolean), summary.phases), "phases.csv", () => summary.phases);
}
