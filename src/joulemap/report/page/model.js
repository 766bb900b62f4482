"use strict";
// One recording's tree: nodes by number, -1 is the program. A view has the numbers of a phase, or of all of them.

const PROGRAM = -1;
const COLUMNS = ["energy_j", "low_j", "high_j", "active_s", "calls", "spread", "interval"];
const BESIDE = ["net_j", "time_based_j"]; // where they are known

class Model {
  constructor(data) {
    this.data = data;
    this.names = data.nodes.name;
    this.parents = data.nodes.parent;
    this.inside = new Map([[PROGRAM, []]]);
    this.parents.forEach((parent, node) => {
      if (!this.inside.has(parent)) this.inside.set(parent, []);
      this.inside.get(parent).push(node);
    });
    this.views = new Map();
  }

  view(phase) {
    if (!this.views.has(phase)) this.views.set(phase, unpacked(this.data.nodes.views[phase], this.names.length));
    return this.views.get(phase);
  }

  // The children that drew energy in a phase, those with the most first.
  children(node, phase) {
    const { energy_j } = this.view(phase);
    const found = (this.inside.get(node) || []).filter((child) => energy_j[child] > 0);
    return found.sort((a, b) => energy_j[b] - energy_j[a]);
  }

  isLayer(node) {
    return this.inside.has(node);
  }

  // The edges between the children of a node, as pairs of nodes, in the order of the program.
  edges(node, phase) {
    const ends = this.view(phase).flows.get(node) || [];
    return ends.flatMap((source, at) => (at % 2 ? [] : [[source, ends[at + 1]]]));
  }

  row(node, phase) {
    const view = this.view(phase);
    if (node === PROGRAM) return this.program(phase);
    const row = Object.fromEntries(view.columns.map((column) => [column, view[column][node]]));
    return { ...row, provenance: view.provenances[view.provenance[node]] };
  }

  program(phase) {
    const { summary } = this.data;
    const whole = phase === "all" ? summary.attributed : summary.phases.find((row) => row.name === phase);
    const sum = (column) =>
      this.children(PROGRAM, phase).reduce((all, child) => all + this.view(phase)[column][child], 0);
    return { active_s: sum("active_s"), calls: sum("calls"), spread: 1, ...whole };
  }

  path(node) {
    const parts = [];
    for (let one = node; one !== PROGRAM; one = this.parents[one]) parts.unshift(this.names[one]);
    return parts;
  }

  ancestors(node) {
    const found = [];
    for (let one = node; one !== PROGRAM; one = this.parents[one]) found.unshift(one);
    return found;
  }

  // A layer with nothing but one layer in it is passed through: the step between says nothing.
  descend(node, phase) {
    const within = this.children(node, phase);
    return within.length === 1 && this.isLayer(within[0]) ? this.descend(within[0], phase) : node;
  }

  // Up to the next layer that says something.
  ascend(node, phase) {
    let up = this.parents[node];
    while (up !== PROGRAM && this.children(up, phase).length < 2) up = this.parents[up];
    return up;
  }

  card(node, phase) {
    const row = this.row(node, phase),
      around = node === PROGRAM ? PROGRAM : this.parents[node];
    const share = (of) => percent(of ? row.energy_j / of : 0);
    const path = this.path(node).map(printable).join("/") || this.data.name;
    const lines = [
      node === PROGRAM
        ? null
        : [
            around === PROGRAM ? "of the program" : `of ${printable(this.names[around])}`,
            share(this.row(around, phase).energy_j),
          ],
      ["of all that was drawn", share(this.data.summary.drawn_j)],
      row.active_s > 0 ? ["mean power", quantity(row.energy_j / row.active_s, "W")] : null,
      ["active", duration(row.active_s)],
      ["executions", count(row.calls)],
    ];
    return energyCard(path, row, lines, this.isLayer(node) ? null : mixed(row, this.data.summary));
  }

  // Raw values, for tables and CSV.
  records(found, phase) {
    return found.map((node) => {
      const row = this.row(node, phase);
      return {
        name: this.path(node).join("/"),
        phase,
        energy_j: row.energy_j,
        low_j: row.low_j,
        high_j: row.high_j,
        ...Object.fromEntries(BESIDE.filter((column) => column in row).map((column) => [column, row[column]])),
        active_s: row.active_s,
        calls: row.calls,
        spread: Boolean(row.spread),
        interval: Boolean(row.interval),
        provenance: row.provenance,
      };
    });
  }
}

function unpacked(packed, length) {
  const columns = [...COLUMNS, ...BESIDE.filter((column) => packed[column])];
  const view = {
    columns,
    provenances: packed.provenances,
    provenance: new Uint8Array(length),
    flows: new Map(packed.edges.map(([level, ...ends]) => [level, ends])),
  };
  for (const column of columns) view[column] = new Float64Array(length);
  packed.node.forEach((node, at) => {
    for (const column of [...columns, "provenance"]) view[column][node] = packed[column][at];
  });
  return view;
}
