"use strict";
// Metered API calls, where there are any: each place with its source line.

function callsSection({ sites, left_out }) {
  const note = `The ${count(sites.length)} most expensive places; joulemap show --by call has ${count(left_out)} more.`;
  return el(
    "section",
    { id: "calls", "aria-labelledby": "calls-title" },
    el("h2", { id: "calls-title" }, "Calls"),
    left_out ? el("p", { class: "note" }, note) : null,
    withCsv(callsTable(sites), "calls.csv", () => sites),
  );
}

function callsTable(sites) {
  const isNetKnown = sites.some((row) => row.net_j !== null);
  const columns = [
    ["call", ({ api, text }) => el("span", {}, el("b", {}, printable(api)), el("small", {}, ` ${printable(text)}`))],
    ["place", ({ file, line }) => `${printable(file)}:${line}`],
    ["calls", ({ calls, raised }) => count(calls) + (raised ? `, ${count(raised)} raised` : ""), true],
    ["energy", (row) => datum(joules(row), row.energy_j, () => energyCard(row.api, row)), true],
    isNetKnown ? ["net", ({ net_j }) => quantity(net_j, "J"), true] : null,
    ["with calls inside", ({ inclusive_j }) => quantity(inclusive_j, "J"), true],
    ["time", ({ active_s }) => duration(active_s), true],
    ["provenance", ({ provenance }) => provenance],
  ];
  return table("Where the program called the library", columns.filter(Boolean), sites);
}
