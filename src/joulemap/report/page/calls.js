"use strict";
// Metered API calls, where there are any: each site with its source line.

function callsSection(calls) {
  const rows = calls.sites;
  return el(
    "section",
    { id: "calls", "aria-labelledby": "calls-title" },
    el("h2", { id: "calls-title" }, "Calls"),
    calls.left_out
      ? el(
          "p",
          { class: "note" },
          `The ${count(rows.length)} most expensive places; ${count(calls.left_out)} more are in joulemap show --by call.`,
        )
      : null,
    table(
      "Where the program called the library",
      [
        [
          "call",
          (row) => el("span", {}, el("b", {}, printable(row.api)), el("small", {}, ` ${printable(row.text)}`)),
        ],
        ["place", (row) => `${printable(row.file)}:${row.line}`],
        ["calls", (row) => count(row.calls), true],
        ["energy", (row) => datum(joules(row), row.energy_j, () => energyCard(row.api, row)), true],
        ["with calls inside", (row) => quantity(row.inclusive_j, "J"), true],
        ["time", (row) => duration(row.active_s), true],
        ["provenance", (row) => row.provenance],
      ],
      rows,
    ),
    el(
      "p",
      { class: "tools" },
      csvButton("calls.csv", () => rows),
    ),
  );
}
