"use strict";
// Puts the page together: tabs where there are several recordings, and for each its sections, which share what
// is looked at: the phase, the layer that the pictures show, and the module that was chosen.

class Report {
  constructor(data) {
    this.model = new Model(data);
    this.state = {
      phase: "all",
      focus: this.model.descend(PROGRAM, "all"),
      selected: null,
      go: (node, keyboard) => this.go(node, keyboard),
      select: (node) => this.select(node),
    };
    this.diagram = new DiagramView(this.model, this.state);
    this.icicle = new IcicleView(this.model, this.state);
    this.power = new PowerView(this.model, this.state);
    this.element = el(
      "div",
      {},
      summarySection(data),
      this.structureSection(data),
      this.treeSection(),
      tensorsSection(data),
      powerSection(this.model, this.power),
      data.calls ? callsSection(data.calls) : null,
    );
  }

  structureSection(data) {
    this.phases = choice(
      "Phase",
      [["all", "All phases"], ...data.phases.map((phase) => [phase, capital(phase)])],
      "all",
      (phase) => this.show(phase),
    );
    return el(
      "section",
      { id: "diagram", "aria-labelledby": "diagram-title" },
      el("h2", { id: "diagram-title" }, "Energy distribution"),
      el(
        "p",
        { class: "note" },
        "Round boxes are layers, square ones operations; the share is of what is drawn here. ",
        el("span", { class: "how" }, "A click goes in, Escape comes out."),
      ),
      el("div", { class: "tools" }, this.phases),
      this.diagram.element,
    );
  }

  treeSection() {
    return el(
      "section",
      { id: "tree", "aria-labelledby": "tree-title" },
      el("h2", { id: "tree-title" }, "Every module"),
      this.icicle.element,
    );
  }

  show(phase) {
    this.state.phase = phase;
    press(this.phases, phase);
    while (this.state.focus !== PROGRAM && !this.model.children(this.state.focus, phase).length)
      this.state.focus = this.model.parents[this.state.focus];
    this.draw();
  }

  go(node, keyboard) {
    this.state.focus = node;
    this.state.selected = node === PROGRAM ? null : node;
    hideTip();
    this.diagram.draw(keyboard && keyboard !== this.icicle);
    this.icicle.draw(keyboard === this.icicle);
    this.power.draw();
  }

  select(node) {
    this.state.selected = node;
    const focused =
      document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.path : undefined;
    const inDiagram = this.diagram.element.contains(document.activeElement),
      inIcicle = this.icicle.element.contains(document.activeElement);
    this.draw();
    refocus(inDiagram ? this.diagram.boxes : inIcicle ? [...this.icicle.picture.children] : [], focused);
  }

  draw() {
    this.diagram.draw();
    this.icicle.draw();
    this.power.draw();
  }
}

function refocus(elements, path) {
  const same = elements.find((one) => one.dataset.path === path);
  if (!same) return;
  rove(elements, same);
  same.focus();
}

function capital(word) {
  return word.charAt(0).toUpperCase() + word.slice(1);
}

function listSections(page) {
  const names = {
    summary: "Summary",
    diagram: "Distribution",
    tree: "Modules",
    tensors: "Tensors",
    power: "Power",
    calls: "Calls",
  };
  const here = Object.entries(names).filter(([id]) => page.querySelector(`#${id}`));
  document.getElementById("sections").replaceChildren(...here.map(([id, name]) => el("a", { href: `#${id}` }, name)));
}

function tabs(page, recordings, comparison) {
  const panel = el("div", { role: "tabpanel", id: "panel" });
  const made = new Map();
  const names = ["Side by side", ...recordings.map((data) => printable(data.name))];
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": "Recordings" });
  const open = (at) => {
    if (!made.has(at))
      made.set(
        at,
        at === 0 ? { element: overviewSection(recordings, comparison), draw() {} } : new Report(recordings[at - 1]),
      );
    panel.replaceChildren(made.get(at).element);
    made.get(at).draw();
    [...list.children].forEach((tab, one) => {
      tab.setAttribute("aria-selected", String(one === at));
      tab.setAttribute("tabindex", one === at ? "0" : "-1");
    });
    listSections(panel);
  };
  const key = (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const at = ([...list.children].indexOf(event.target) + move + names.length) % names.length;
    open(at);
    list.children[at].focus();
  };
  names.forEach((name, at) =>
    list.append(button(name, () => open(at), { role: "tab", "aria-controls": "panel", onkeydown: key })),
  );
  page.replaceChildren(list, panel);
  open(0);
  return () =>
    made.forEach((report) => {
      if (report.element.isConnected) report.draw();
    });
}

function theme() {
  const toggle = document.getElementById("theme"),
    root = document.documentElement;
  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  };
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();
}

function start() {
  const { recordings, comparison } = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  theme();
  listenForTips();
  let redraw;
  if (recordings.length === 1) {
    const report = new Report(recordings[0]);
    page.replaceChildren(report.element);
    report.draw();
    listSections(page);
    redraw = () => report.draw();
  } else {
    redraw = tabs(page, recordings, comparison);
  }
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) {
      width = innerWidth;
      redraw();
    }
  });
  matchMedia("print").addEventListener("change", redraw);
  addEventListener("beforeprint", () =>
    document.querySelectorAll(".machine").forEach((one) => {
      one.open = true;
    }),
  );
  document.documentElement.dataset.ready = "yes";
}

start();
