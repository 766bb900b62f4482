"use strict";
// The whole tree as an icicle: a module is as wide as its part of the module above it.

const ROWS = 9;
const NARROWEST = 0.0012;

const MEASURES = {
  energy: { label: "Energy", width: "energy_j", heat: (row) => row.energy_j, text: (row) => joules(row) },
  power: {
    label: "Power",
    width: "active_s",
    heat: (row) => (row.active_s > 0 ? row.energy_j / row.active_s : 0),
    text: (row) => quantity(row.active_s > 0 ? row.energy_j / row.active_s : 0, "W"),
  },
  time: { label: "Time", width: "active_s", heat: (row) => row.active_s, text: (row) => duration(row.active_s) },
  calls: { label: "Calls", width: "calls", heat: (row) => row.calls, text: (row) => count(row.calls, "execution") },
};

class IcicleView {
  constructor(model, state) {
    this.model = model;
    this.state = state;
    this.measure = "energy";
    this.query = "";
    this.choices = choice(
      "What a module is as wide as",
      Object.entries(MEASURES).map(([key, { label }]) => [key, label]),
      this.measure,
      (value) => {
        this.measure = value;
        press(this.choices, value);
        this.draw();
      },
    );
    this.found = el("output", { class: "found", "aria-live": "polite" });
    this.search = el("input", {
      type: "search",
      placeholder: "Search a module",
      "aria-label": "Search a module",
      oninput: () => this.look(),
      onkeydown: (event) => this.searchKey(event),
    });
    this.picture = el("div", { class: "picture icicle", role: "tree", "aria-label": "Modules, the outermost above" });
    this.picture.addEventListener("keydown", (event) => this.key(event));
    this.explained = el("p", { class: "note" });
    this.table = el("div");
    this.element = el(
      "div",
      {},
      el("div", { class: "tools" }, this.choices, this.search, this.found),
      this.picture,
      this.explained,
      this.table,
    );
  }

  draw(keyboard) {
    const { model, state } = this;
    const measure = MEASURES[this.measure],
      view = model.view(state.phase);
    this.blocks = [];
    const above = [PROGRAM, ...model.ancestors(state.focus)];
    above.forEach((node, row) => this.blocks.push({ node, left: 0, width: 1, row, above: true }));
    this.deepest = above.length + ROWS;
    this.level(state.focus, 0, 1, above.length, view[measure.width]);
    const coloured = this.blocks.filter((block) => !this.isPlain(block));
    this.hottest = Math.max(...coloured.map(({ node }) => measure.heat(model.row(node, state.phase))), 1e-12);
    this.picture.replaceChildren(...this.blocks.map((block) => this.block(block, measure)));
    this.picture.style.setProperty("--rows", String(Math.max(...this.blocks.map(({ row }) => row)) + 1));
    this.explained.textContent =
      this.measure === "power"
        ? "Width is active time and colour is mean power, so that what is wide and hot costs most."
        : "";
    this.drawTable();
    const elements = [...this.picture.children],
      chosen = elements[above.length - 1];
    rove(elements, chosen);
    if (keyboard) chosen.focus();
  }

  level(node, left, width, row, values) {
    if (row >= this.deepest) return;
    const within = inSeries(this.model.children(node, this.state.phase), this.model.names);
    const whole = within.reduce((sum, child) => sum + values[child], 0);
    let at = left;
    for (const child of whole > 0 ? within : []) {
      const wide = (width * values[child]) / whole;
      if (wide >= NARROWEST) {
        this.blocks.push({ node: child, left: at, width: wide, row });
        this.level(child, at, wide, row + 1, values);
      }
      at += wide;
    }
  }

  // What is around the focus, and (start-up) and its like, which are time beside the program, have no colour.
  isPlain({ node, above }) {
    return above || (this.model.parents[node] === PROGRAM && this.model.names[node].startsWith("("));
  }

  block(placed, measure) {
    const { node, left, width, row, above } = placed;
    const { model, state } = this;
    const numbers = model.row(node, state.phase);
    const name = node === PROGRAM ? "program" : printable(model.names[node]);
    const plain = this.isPlain(placed);
    const heat = plain ? 0 : Math.min(measure.heat(numbers) / this.hottest, 1) ** 0.7;
    const kind = [
      heatClass(heat),
      above ? "above" : plain ? "time" : "",
      node === state.selected ? "selected" : "",
      this.matches(node) ? "" : "dim",
    ];
    return el(
      "div",
      {
        class: `block ${kind.join(" ")}`,
        role: "treeitem",
        "aria-level": row + 1,
        "aria-label": `${name}, ${measure.text(numbers)}`,
        "data-path": model.path(node).join("/"),
        "data-node": node,
        tip: () => model.card(node, state.phase),
        "--left": String(left),
        "--width": String(width),
        "--row": String(row),
        "--heat": String(heat),
        onclick: (event) => this.open(node, event.detail === 0),
      },
      width > 0.02 ? el("span", {}, name) : null,
      width > 0.14 ? el("small", {}, measure.text(numbers)) : null,
    );
  }

  open(node, keyboard) {
    if (node === PROGRAM || this.model.isLayer(node)) this.state.go(node, keyboard ? this : false);
    else this.state.select(node);
  }

  matches(node) {
    if (!this.query) return true;
    if (node === PROGRAM) return false;
    const text = this.query.includes("/") ? this.model.path(node).join("/") : this.model.names[node];
    return text.toLowerCase().includes(this.query);
  }

  // Energy of what matches, each joule once: what is inside a match belongs to it.
  look() {
    this.query = this.search.value.trim().toLowerCase();
    this.outermost = [];
    const visit = (node) =>
      this.model
        .children(node, this.state.phase)
        .forEach((child) => (this.matches(child) ? this.outermost.push(child) : visit(child)));
    if (this.query) visit(PROGRAM);
    const { energy_j } = this.model.view(this.state.phase);
    this.outermost.sort((a, b) => energy_j[b] - energy_j[a]);
    const sum = this.outermost.reduce((all, node) => all + energy_j[node], 0);
    const share = sum / (this.model.row(PROGRAM, this.state.phase).energy_j || 1);
    this.found.textContent = this.query
      ? `${count(this.outermost.length, "match", "matches")}, ${quantity(sum, "J")}, ${percent(share)}`
      : "";
    this.draw();
  }

  searchKey(event) {
    if (event.key === "Enter" && this.outermost && this.outermost.length) {
      const node = this.outermost[0];
      this.state.go(this.model.isLayer(node) ? node : this.model.parents[node]);
      if (!this.model.isLayer(node)) this.state.select(node);
    } else if (event.key === "Escape") {
      this.search.value = "";
      this.look();
    }
  }

  key(event) {
    const elements = [...this.picture.children],
      here = elements.indexOf(document.activeElement);
    if (here < 0) return;
    const { node } = this.blocks[here];
    if (event.key === "Enter" || event.key === " ") this.open(node, true);
    else if (event.key === "Escape") {
      if (this.state.focus !== PROGRAM) this.state.go(this.model.parents[this.state.focus], this);
    } else if (event.key.startsWith("Arrow")) this.move(elements, here, event.key);
    else return;
    event.preventDefault();
  }

  move(elements, here, key) {
    const block = this.blocks[here],
      middle = block.left + block.width / 2;
    const row = block.row + ({ ArrowUp: -1, ArrowDown: 1 }[key] || 0);
    const inRow = this.blocks.map((one, at) => [one, at]).filter(([one]) => one.row === row);
    const beside = inRow.findIndex(([, at]) => at === here) + (key === "ArrowLeft" ? -1 : 1);
    const inside = ([one]) =>
      key === "ArrowUp"
        ? one.left <= middle && middle <= one.left + one.width
        : one.left >= block.left - 1e-9 && one.left < block.left + block.width;
    const target = row === block.row ? inRow[beside] : inRow.find(inside);
    if (!target) return;
    rove(elements, elements[target[1]]);
    elements[target[1]].focus();
  }

  drawTable() {
    const { model, state } = this;
    const every = () => {
      const energy = model.view(state.phase).energy_j;
      return model.records(
        model.names
          .map((_, node) => node)
          .filter((node) => energy[node] > 0)
          .sort((a, b) => energy[b] - energy[a]),
        state.phase,
      );
    };
    const largest = () => rowsTable(`The 100 largest modules and operations, ${state.phase}`, every().slice(0, 100));
    this.table.replaceChildren(behind("The largest as a table", largest, "modules.csv", every));
  }
}

// layer_0, layer_1 and so on in their own order, where the first of them stands; the others by energy as given.
function inSeries(nodes, names) {
  const families = new Map();
  for (const node of nodes) {
    const stem = names[node].replace(/\d+$/, "");
    const family = stem === names[node] ? node : stem;
    if (!families.has(family)) families.set(family, []);
    families.get(family).push(node);
  }
  const number = (node) => Number(names[node].match(/\d*$/)[0]);
  return [...families.values()].flatMap((family) => family.sort((a, b) => number(a) - number(b)));
}
