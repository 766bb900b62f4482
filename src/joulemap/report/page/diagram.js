"use strict";
// The energy distribution diagram: one level of the program, as layout.js places it. Round boxes are layers, square
// ones operations; the share is of the level, and so is the colour.

const MOST_BOXES = 40;

class DiagramView {
  constructor(model, state) {
    this.model = model;
    this.state = state;
    this.picture = el("div", { class: "picture diagram" });
    this.note = el("p", { class: "note" });
    this.crumbs = el("nav", { class: "crumbs", "aria-label": "Where the diagram is" });
    this.table = el("div");
    this.element = el("div", {}, this.crumbs, this.picture, this.note, this.table);
    this.picture.addEventListener("keydown", (event) => this.key(event));
  }

  draw(keyboard) {
    const { model, state } = this;
    const within = model.children(state.focus, state.phase);
    const level = new Level(model, state, within);
    this.boxes = [];
    this.picture.replaceChildren(
      within.length ? this.drawing(level) : el("p", { class: "nothing" }, "Nothing drew energy here in this phase."),
    );
    this.note.textContent = level.note();
    this.drawCrumbs();
    this.drawTable(within);
    rove(this.boxes, this.boxes[0]);
    if (keyboard && this.boxes.length) this.boxes[0].focus();
  }

  drawing(level) {
    const width = Math.max(this.picture.clientWidth || 1000, 280);
    const sized = (node) => ({ node, width: boxWidth(printable(this.model.names[node])), height: BOX_HEIGHT });
    const flow = level.flowing.length ? laidOut(level.flowing.map(sized), level.edges, width) : null;
    const rest = level.apart.length ? inRows(level.apart.map(sized), width) : null;
    const top = flow ? flow.height + (rest ? GAP : 0) : 0;
    const height = top + (rest ? rest.height : 0);
    const wide = Math.max(flow ? flow.width : 0, rest ? rest.width : 0);
    const title = `Energy distribution of ${this.model.path(this.state.focus).map(printable).join("/") || "the program"}`;
    return svg(
      "svg",
      { viewBox: `0 0 ${wide} ${height}`, width: Math.min(wide, width), role: "group", "aria-label": title },
      arrowhead(),
      flow &&
        svg(
          "g",
          { transform: `translate(${(wide - flow.width) / 2} 0)` },
          flow.paths.map(arrow),
          flow.boxes.map((box) => this.box(box, level)),
        ),
      rest &&
        svg(
          "g",
          { transform: `translate(${(wide - rest.width) / 2} ${top})` },
          rest.boxes.map((box) => this.box(box, level)),
        ),
    );
  }

  box({ node, x, y, width }, level) {
    const { model, state } = this;
    const layer = model.isLayer(node),
      share = level.share(node),
      heat = level.heat(node);
    const name = printable(model.names[node]);
    const kind = [
      layer ? "layer" : "operation",
      heatClass(heat),
      level.isTime(node) ? "time" : "",
      node === state.selected ? "selected" : "",
    ];
    const what = `${name}, ${percent(share)}, ${joules(model.row(node, state.phase))}, ${layer ? "layer, Enter goes in" : "operation"}`;
    const box = svg(
      "g",
      {
        class: `box ${kind.join(" ")}`,
        transform: `translate(${x - width / 2} ${y - BOX_HEIGHT / 2})`,
        role: "button",
        "aria-label": what,
        "data-path": model.path(node).join("/"),
        "--heat": String(heat),
        tip: () => model.card(node, state.phase),
        onclick: (event) => this.open(node, event.detail === 0),
      },
      svg("rect", { width, height: BOX_HEIGHT, rx: layer ? 12 : 0 }),
      svg("text", { x: width / 2, y: 19, class: "name" }, fitted(name, width - 20)),
      svg("text", { x: width / 2, y: 36, class: "share" }, percent(share)),
    );
    this.boxes.push(box);
    return box;
  }

  open(node, keyboard) {
    if (this.model.isLayer(node)) this.state.go(this.model.descend(node, this.state.phase), keyboard);
    else this.state.select(node);
  }

  key(event) {
    const here = this.boxes.indexOf(document.activeElement);
    if (event.key === "Escape" && this.state.focus !== PROGRAM)
      this.state.go(this.model.ascend(this.state.focus, this.state.phase), true);
    else if (here >= 0 && (event.key === "Enter" || event.key === " "))
      document.activeElement.dispatchEvent(new MouseEvent("click", { detail: 0, bubbles: true }));
    else if (here >= 0 && event.key.startsWith("Arrow")) this.move(here, event.key);
    else return;
    event.preventDefault();
  }

  // To the nearest box in the direction of the arrow.
  move(here, key) {
    const middle = (box) => {
      const { left, top, width, height } = box.getBoundingClientRect();
      return [left + width / 2, top + height / 2];
    };
    const [x, y] = middle(this.boxes[here]);
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    const distance = (box) => {
      const [bx, by] = middle(box),
        along = (bx - x) * dx + (by - y) * dy,
        across = Math.abs((bx - x) * dy) + Math.abs((by - y) * dx);
      return along > 2 ? along + 2 * across : Infinity;
    };
    const nearest = this.boxes.reduce((best, box) => (distance(box) < distance(best) ? box : best), this.boxes[here]);
    if (distance(nearest) === Infinity) return;
    rove(this.boxes, nearest);
    nearest.focus();
  }

  drawCrumbs() {
    const { model, state } = this;
    const stops = [PROGRAM, ...model.ancestors(state.focus)];
    this.crumbs.replaceChildren(
      el(
        "ol",
        {},
        stops.map((node, at) => {
          const name = node === PROGRAM ? "program" : printable(model.names[node]);
          const last = at === stops.length - 1;
          return el(
            "li",
            {},
            last ? el("span", { "aria-current": "location" }, name) : button(name, () => state.go(node)),
          );
        }),
      ),
    );
  }

  drawTable(within) {
    const { model, state } = this;
    const records = () => model.records(within, state.phase);
    const place = model.path(state.focus).join("/") || "program";
    this.table.replaceChildren(
      behind(
        "The same as a table",
        () => rowsTable(`Inside ${printable(place)}, ${state.phase}`, records()),
        "diagram.csv",
        records,
      ),
    );
  }
}

// What of a level is drawn, and how: boxes in the dataflow, boxes apart, and the rest that would be too many.
class Level {
  constructor(model, state, within) {
    this.model = model;
    this.view = model.view(state.phase);
    this.focus = state.focus;
    this.total = within.reduce((sum, node) => sum + this.view.energy_j[node], 0);
    const known = new Set(within),
      shown = new Set(within.slice(0, MOST_BOXES));
    const between = model.edges(state.focus, state.phase).filter((pair) => pair.every((node) => known.has(node)));
    this.hasDataflow = model.view("all").flows.size > 0;
    this.inDataflow = new Set(between.flat());
    this.edges = bridged(between, shown);
    const tied = new Set(this.edges.flat());
    this.flowing = within.filter((node) => shown.has(node) && tied.has(node));
    this.apart = within.filter((node) => shown.has(node) && !tied.has(node));
    this.hidden = within.slice(MOST_BOXES);
    const program = within.filter((node) => !this.isTime(node));
    this.most = Math.max(...(program.length ? program : within).map((node) => this.share(node)), 1e-12);
  }

  share(node) {
    return this.total ? this.view.energy_j[node] / this.total : 0;
  }

  heat(node) {
    return this.isTime(node) ? 0 : Math.min(this.share(node) / this.most, 1);
  }

  // (start-up), (between steps): time beside the program, no part of its graph.
  isTime(node) {
    return this.focus === PROGRAM && this.model.names[node].startsWith("(") && !this.inDataflow.has(node);
  }

  note() {
    const sentences = [];
    if (!this.hasDataflow)
      sentences.push("This recording holds no dataflow, so there are no arrows; boxes stand by energy.");
    else if (!this.edges.length && this.flowing.length + this.apart.length > 1)
      sentences.push("No dataflow is known between these.");
    if (this.hidden.length) {
      const energy = this.hidden.reduce((sum, node) => sum + this.share(node), 0);
      sentences.push(
        `${count(this.hidden.length, "smaller box", "smaller boxes")} (together ${percent(energy)}) stand in the table only; arrows pass through them.`,
      );
    }
    return sentences.join(" ");
  }
}
