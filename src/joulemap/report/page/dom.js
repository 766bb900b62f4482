"use strict";
// Elements from names, attributes and children. Text only ever becomes text nodes, so a module that is called
// like a tag is a name like any other.

const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "tip") explain(element, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

function button(label, onclick, attributes) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

// One of a few choices, as a row of buttons. `choices` are [value, label] pairs.
function choice(label, choices, current, choose) {
  const buttons = choices.map(([value, text]) =>
    button(text, () => choose(value), { "aria-pressed": String(value === current), "data-value": value }),
  );
  return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

function press(group, value) {
  for (const one of group.querySelectorAll("button")) {
    one.setAttribute("aria-pressed", String(one.dataset.value === value));
  }
}

// Only one element of a picture is a tab stop; arrows move between the others.
function rove(elements, chosen) {
  for (const one of elements) one.setAttribute("tabindex", one === chosen ? "0" : "-1");
}

// A list whose first entry is a tab stop; up and down go through the others.
function walkable(list) {
  const entries = [...list.children];
  rove(entries, entries[0]);
  list.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = move && entries[entries.indexOf(document.activeElement) + move];
    if (!next) return;
    rove(entries, next);
    next.focus();
    event.preventDefault();
  });
  return list;
}

function download(name, rows) {
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const harmless = /^[=+@\t\r]/.test(text) ? `'${text}` : text; // a name must not become a spreadsheet's formula
    return /[",\n\r]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
  };
  const keys = rows.length ? Object.keys(rows[0]) : [];
  const lines = [keys, ...rows.map((row) => keys.map((key) => row[key]))].map((line) => line.map(quoted).join(","));
  const link = el("a", {
    href: URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" })),
    download: name,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
