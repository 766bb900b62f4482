"use strict";
// The numbers behind a picture: a table for who reads or hears it, and all of them as CSV.

// `columns` are [heading, cell of a row, is it a number]; `rows` are raw records.
function table(caption, columns, rows) {
  const head = el(
    "tr",
    {},
    columns.map(([heading, , number]) => el("th", { scope: "col", class: number && "number" }, heading)),
  );
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      columns.map(([, cell, number], at) =>
        at === 0 ? el("th", { scope: "row" }, cell(row)) : el("td", { class: number && "number" }, cell(row)),
      ),
    ),
  );
  return el(
    "div",
    { class: "scroll" },
    el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)),
  );
}

function csvButton(name, records, label = "CSV") {
  return button(label, () => download(name, records()), { class: "quiet", "aria-label": `Download ${name}` });
}

function withCsv(element, name, records) {
  return el("div", {}, element, el("p", { class: "tools" }, csvButton(name, records)));
}

// A number that says more when it is pointed at; `value` is the raw one.
function datum(text, value, card, attributes) {
  return el("data", { value, tip: card, ...attributes }, text);
}

// The table of a picture, made when it is first opened.
function behind(label, make, csvName, records) {
  const details = el("details", { class: "behind" }, el("summary", {}, label));
  const fill = () => {
    if (details.open && details.children.length === 1) {
      details.append(make(), el("p", { class: "tools" }, csvButton(csvName, records, "All of it as CSV")));
    }
  };
  details.addEventListener("toggle", fill);
  return details;
}

// Net energy, where an idle baseline is known.
function netColumn(rows) {
  return rows.some((row) => "net_j" in row) ? ["net", ({ net_j }) => quantity(net_j, "J"), true] : null;
}

function rowsTable(caption, rows, first = "name") {
  const columns = [
    [first, (row) => printable(row.name)],
    ["energy", (row) => datum(joules(row), row.energy_j, () => energyCard(row.name, row)), true],
    ["95 % interval", interval, true],
    netColumn(rows),
    rows.some((row) => row.time_based_j !== undefined) ? ["by time alone", besideCalibrated, true] : null,
    ["time", (row) => duration(row.active_s), true],
    ["executions", (row) => count(row.calls), true],
    ["provenance", (row) => row.provenance],
  ];
  return table(caption, columns.filter(Boolean), rows);
}
