"use strict";
// Power over time: a panel for each meter, and under them the steps, the phases and the chosen module.

const PANEL = 120;
const LANE = 20;
const LEFT = 92;
const RIGHT = 12;

class PowerView {
  constructor(model, state) {
    this.model = model;
    this.state = state;
    this.time = model.data.timeline;
    this.lanes = activityLanes(this.time.activity);
    this.reset(false);
    this.picture = el("div", {
      class: "picture power",
      tabindex: "0",
      role: "group",
      "aria-label": "Power over time. Plus and minus zoom, arrows move, Escape shows all.",
    });
    this.readout = el("output", { class: "note readout" });
    this.zoomed = el(
      "div",
      { class: "tools" },
      button("Zoom in", () => this.zoom(0.5)),
      button("Zoom out", () => this.zoom(2)),
      button("Show all", () => this.reset(true)),
      this.readout,
    );
    this.element = el("div", {}, this.zoomed, this.picture, this.table());
    this.listen();
  }

  reset(draw) {
    this.from = 0;
    this.to = Math.max(this.time.span_s, 1e-6);
    if (draw) this.draw();
  }

  show(from, to) {
    const span = Math.max(this.time.span_s, 1e-6),
      width = Math.min(Math.max(to - from, span / 5000), span);
    this.from = Math.min(Math.max(from, 0), span - width);
    this.to = this.from + width;
    this.draw();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  x(second) {
    return LEFT + ((second - this.from) / (this.to - this.from)) * this.inner;
  }

  second(x) {
    return this.from + ((x - LEFT) / this.inner) * (this.to - this.from);
  }

  draw() {
    const width = Math.max(this.picture.clientWidth || 1000, 320);
    this.inner = width - LEFT - RIGHT;
    const parts = [];
    let top = 8;
    for (const line of this.time.power) {
      parts.push(this.panel(line, top));
      top += PANEL + 14;
    }
    for (const lane of this.visibleLanes()) {
      parts.push(this.lane(lane, top));
      top += LANE;
    }
    parts.push(this.axis(top + 4));
    this.cursor = svg("line", { class: "cursor", y1: 8, y2: top, visibility: "hidden" });
    this.brush = svg("rect", { class: "brush", y: 8, height: top - 8, width: 0 });
    this.picture.replaceChildren(
      svg(
        "svg",
        {
          width,
          height: top + 34,
          viewBox: `0 0 ${width} ${top + 34}`,
          role: "img",
          "aria-label": this.description(),
        },
        svg("clipPath", { id: "plot" }, svg("rect", { x: LEFT, y: 0, width: this.inner, height: top })),
        parts,
        this.brush,
        this.cursor,
      ),
    );
  }

  description() {
    const peaks = this.time.power.map((line) => `${printable(line.domain)} up to ${quantity(highest(line), "W")}`);
    return `Power from ${duration(this.from)} to ${duration(this.to)}: ${peaks.join(", ") || "none was read"}`;
  }

  panel(line, top) {
    const peak = highest(line) || 1,
      limit = niceAbove(peak),
      y = (watts) => top + PANEL - (watts / limit) * PANEL;
    const drawn = columns(line, this.from, this.to, this.inner);
    return svg(
      "g",
      {},
      svg("text", { class: "what", x: 0, y: top + 10 }, fitted(printable(line.domain), LEFT - 12)),
      [0, limit / 2, limit].map((watts) => [
        svg("line", { class: "grid", x1: LEFT, x2: LEFT + this.inner, y1: y(watts), y2: y(watts) }),
        svg("text", { class: "tick", x: LEFT - 8, y: y(watts) + 4 }, watts === 0 ? "0" : quantity(watts, "W", 2)),
      ]),
      svg(
        "g",
        { "clip-path": "url(#plot)" },
        svg("path", { class: "band", d: bandPath(drawn, (s) => this.x(s), y) }),
        svg("path", { class: "line", d: meanPath(drawn, (s) => this.x(s), y) }),
      ),
    );
  }

  visibleLanes() {
    const { steps } = this.time;
    const lanes = steps ? [{ name: "steps", steps }] : [];
    for (const [phase, bits] of Object.entries(this.lanes.phases)) lanes.push({ name: phase, bits });
    const node = this.state.selected;
    if (node !== PROGRAM && node !== null)
      lanes.push({ name: this.model.names[node], bits: this.lanes.modules(this.model.path(node)), chosen: true });
    return lanes;
  }

  lane({ name, steps, bits, chosen }, top) {
    const label = svg(
      "text",
      { class: chosen ? "what chosen" : "what", x: 0, y: top + 13 },
      fitted(printable(name), LEFT - 12),
    );
    const drawn = steps
      ? this.stepMarks(steps, top)
      : bits
        ? this.bitMarks(bits, top, chosen)
        : svg(
            "text",
            { class: "what", x: LEFT, y: top + 13 },
            "too little energy for its times to be kept in this page",
          );
    return svg(
      "g",
      { class: "lane" },
      label,
      svg("line", { class: "grid", x1: LEFT, x2: LEFT + this.inner, y1: top + LANE - 3, y2: top + LANE - 3 }),
      drawn,
    );
  }

  stepMarks(steps, top) {
    const marks = { traced: "", untraced: "" };
    steps.start_s.forEach((start, at) => {
      if (steps.end_s[at] < this.from || start > this.to) return;
      const left = this.x(start),
        width = Math.max(this.x(steps.end_s[at]) - left - 0.6, 0.4);
      marks[steps.traced[at] ? "traced" : "untraced"] +=
        `M${left.toFixed(1)} ${top + 3}h${width.toFixed(1)}v${LANE - 8}h${(-width).toFixed(1)}z`;
    });
    return svg(
      "g",
      { "clip-path": "url(#plot)" },
      Object.entries(marks).map(([kind, d]) => svg("path", { class: `step ${kind}`, d })),
    );
  }

  // Shades by how much of a pixel's time was active.
  bitMarks(bits, top, chosen) {
    const shades = ["", "", "", ""],
      { bins } = this.time.activity,
      span = this.time.span_s || 1;
    const pixels = Math.floor(this.inner),
      perPixel = ((this.to - this.from) / pixels / span) * bins,
      first = (this.from / span) * bins;
    for (let pixel = 0; pixel < pixels; pixel += 1) {
      const begin = Math.floor(first + pixel * perPixel),
        end = Math.max(Math.ceil(first + (pixel + 1) * perPixel), begin + 1);
      let set = 0;
      for (let bin = begin; bin < end; bin += 1) set += bits[bin];
      if (set)
        shades[Math.min(Math.ceil((4 * set) / (end - begin)), 4) - 1] +=
          `M${LEFT + pixel} ${top + 3}h1v${LANE - 8}h-1z`;
    }
    return svg(
      "g",
      {},
      shades.map((d, at) =>
        svg("path", { class: chosen ? "active chosen" : "active", d, "fill-opacity": 0.25 * (at + 1) }),
      ),
    );
  }

  axis(top) {
    const step = niceStep((this.to - this.from) / Math.max(this.inner / 110, 2)),
      ticks = [];
    const places = Math.max(0, -Math.floor(Math.log10(step)));
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      ticks.push(svg("text", { class: "tick middle", x: this.x(at), y: top + 14 }, `${at.toFixed(places)} s`));
    }
    const [begin, end] = this.time.window_s.map((second) =>
      Math.min(Math.max(this.x(second), LEFT), LEFT + this.inner),
    );
    return svg("g", {}, svg("line", { class: "window", x1: begin, x2: end, y1: top, y2: top }), ticks);
  }

  listen() {
    let start = null;
    const at = (event) => event.clientX - this.picture.getBoundingClientRect().left;
    this.picture.addEventListener("pointerdown", (event) => {
      start = at(event);
      this.picture.setPointerCapture(event.pointerId);
    });
    this.picture.addEventListener("pointermove", (event) => {
      this.point(at(event));
      if (start === null) return;
      this.brush.setAttribute("x", Math.min(start, at(event)));
      this.brush.setAttribute("width", Math.abs(at(event) - start));
    });
    this.picture.addEventListener("pointerup", (event) => {
      if (start !== null && Math.abs(at(event) - start) > 6)
        this.show(...[this.second(start), this.second(at(event))].sort((a, b) => a - b));
      start = null;
      this.brush.setAttribute("width", 0);
    });
    this.picture.addEventListener("dblclick", () => this.reset(true));
    this.picture.addEventListener("pointerleave", () => {
      this.cursor.setAttribute("visibility", "hidden");
      this.readout.textContent = "";
    });
    this.picture.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const move = (this.to - this.from) / 5;
    if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "Escape" || event.key === "0") this.reset(true);
    else if (event.key === "ArrowLeft") this.show(this.from - move, this.to - move);
    else if (event.key === "ArrowRight") this.show(this.from + move, this.to + move);
    else return;
    event.preventDefault();
  }

  point(x) {
    const second = this.second(x);
    if (second < this.from || second > this.to) return;
    for (const [name, value] of [
      ["x1", x],
      ["x2", x],
      ["visibility", "visible"],
    ])
      this.cursor.setAttribute(name, value);
    const words = this.time.power.map((line) => {
      const at = intervalAt(line.edges_s, second),
        mean = at < 0 ? null : line.mean_w[at];
      if (mean === null || mean === undefined) return `${printable(line.domain)} not read`;
      const spread = line.low_w ? ` (${range(line.low_w[at], line.high_w[at], "W")})` : "";
      return `${printable(line.domain)} ${quantity(mean, "W")}${spread}, ${line.provenance}`;
    });
    this.readout.textContent = [duration(second), this.stepAt(second), ...words].filter(Boolean).join(" · ");
  }

  stepAt(second) {
    const { steps } = this.time;
    const at = steps ? steps.start_s.findIndex((start, one) => start <= second && second < steps.end_s[one]) : -1;
    if (at < 0) return null;
    const number = at * steps.together;
    const name = steps.together > 1 ? `steps ${number} to ${number + steps.together - 1}` : `step ${number}`;
    return `${name}: ${quantity(steps.energy_j[at], "J")}, ${steps.traced[at] ? "traced" : "metered only"}`;
  }

  table() {
    const lines = this.time.power;
    const records = () =>
      lines.flatMap((line) =>
        line.mean_w.map((mean, at) => ({
          domain: line.domain,
          start_s: line.edges_s[at],
          end_s: line.edges_s[at + 1],
          mean_w: mean,
          low_w: line.low_w ? line.low_w[at] : mean,
          high_w: line.high_w ? line.high_w[at] : mean,
          provenance: line.provenance,
        })),
      );
    const make = () =>
      table(
        "Power of each meter",
        [
          ["meter", (line) => printable(line.domain)],
          ["readings in this page", (line) => count(line.mean_w.length), true],
          ["highest", (line) => quantity(highest(line), "W"), true],
          ["provenance", (line) => line.provenance],
        ],
        lines,
      );
    return behind("The meters as a table", make, "power.csv", records);
  }
}

function powerSection(model, view) {
  return el(
    "section",
    { id: "power", "aria-labelledby": "power-title" },
    el("h2", { id: "power-title" }, "Power over time"),
    el(
      "p",
      { class: "note how" },
      "Drag over a stretch to look closer. A module that is chosen above has its active time under the phases; only traced steps show what was active.",
    ),
    view.element,
  );
}
