"use strict";
// Where the boxes and arrows of a diagram stand. dagre does the layout; this chooses what it is asked.

const BOX_HEIGHT = 46;
const GAP = 26;
const TALLEST = 560;

// Edges between the boxes that are shown, in the order of the program; those through hidden ones become direct.
function bridged(edges, shown) {
  const direct = edges.filter((pair) => pair.every((node) => shown.has(node))),
    drawn = new Set(direct.map(String));
  return [...direct, ...passing(edges, shown).filter((pair) => !drawn.has(String(pair)))];
}

// From every box that is shown to the next ones that are.
function passing(edges, shown) {
  const next = new Map(edges.map(([source]) => [source, []])),
    found = [];
  for (const [source, target] of edges) next.get(source).push(target);
  for (const source of next.keys()) {
    const seen = new Set([source]),
      ahead = shown.has(source) ? [...next.get(source)] : [];
    while (ahead.length) {
      const target = ahead.shift();
      if (seen.has(target)) continue;
      seen.add(target);
      if (shown.has(target)) found.push([source, target]);
      else ahead.push(...(next.get(target) || []));
    }
  }
  return found;
}

// From top to bottom as in the paper, or from left to right where that is larger on the page.
function laidOut(boxes, edges, width) {
  const tries = ["TB", "LR"].map((rankdir) => byDagre(boxes, edges, { rankdir }));
  const size = (drawn) => Math.min(1, width / drawn.width, TALLEST / drawn.height);
  return size(tries[0]) >= 0.98 * size(tries[1]) ? tries[0] : tries[1];
}

// Boxes without dataflow: as many in a row as fit, one row under the other.
function inRows(boxes, width) {
  const widest = Math.max(...boxes.map((box) => box.width));
  const across = Math.max(Math.floor((width - 8 + 18) / (widest + 18)), 1);
  const below = boxes.slice(across).map((box, at) => [boxes[at].node, box.node]);
  const even = boxes.map((box) => ({ ...box, width: widest }));
  return { ...byDagre(even, below, { rankdir: "TB", ranksep: 16 }), paths: [] };
}

function byDagre(boxes, edges, options) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ nodesep: 18, ranksep: 34, edgesep: 10, marginx: 4, marginy: 4, ...options });
  const size = new Map(boxes.map(({ node, width, height }) => [node, { width, height }]));
  for (const node of new Set([...edges.flat(), ...size.keys()])) graph.setNode(String(node), size.get(node));
  for (const line of lines(edges)) graph.setEdge(String(line.ends[0]), String(line.ends[1]), line);
  dagre.layout(graph);
  return {
    width: graph.graph().width,
    height: graph.graph().height,
    boxes: boxes.map((box) => ({ ...box, ...placed(graph.node(String(box.node))) })),
    paths: graph.edges().map((edge) => graph.edge(edge)),
  };
}

// One line for each pair of boxes. Where data flows both ways (gradients flow back to layers that the data came
// from), the way that the program has first is the way of the layout.
function lines(edges) {
  const found = new Map();
  for (const [source, target] of edges) {
    const back = found.get(`${target} ${source}`);
    if (back) back.mutual = true;
    else found.set(`${source} ${target}`, { ends: [source, target], mutual: false });
  }
  return found.values();
}

function placed({ x, y }) {
  return { x, y };
}

// A smooth line through the points that the layout gave.
function arrow({ points, mutual }) {
  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  let line = `M${at(points[0])}`;
  for (let one = 1; one < points.length - 1; one += 1) {
    const end = one === points.length - 2 ? points[one + 1] : middle(points[one], points[one + 1]);
    line += `Q${at(points[one])} ${at(end)}`;
  }
  if (points.length === 2) line += `L${at(points[1])}`;
  return svg("path", {
    class: "flow",
    d: line,
    "marker-end": "url(#arrowhead)",
    "marker-start": mutual && "url(#arrowhead)",
  });
}

function arrowhead() {
  return svg(
    "defs",
    {},
    svg(
      "marker",
      {
        id: "arrowhead",
        viewBox: "0 0 8 8",
        refX: 7,
        refY: 4,
        markerWidth: 7,
        markerHeight: 7,
        orient: "auto-start-reverse",
      },
      svg("path", { d: "M0 0.8L7 4L0 7.2z" }),
    ),
  );
}

let measuring = null;

function textWidth(text) {
  measuring = measuring || document.createElement("canvas").getContext("2d");
  measuring.font = "600 13px system-ui, sans-serif";
  return measuring.measureText(text).width;
}

function boxWidth(name) {
  return Math.min(Math.max(textWidth(name) + 28, 84), 210);
}

// A name cut in its middle, where it is longer than its box.
function fitted(text, width) {
  if (textWidth(text) <= width) return text;
  let kept = Math.min(text.length, 80);
  const cut = () => `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  while (kept > 2 && textWidth(cut()) > width) kept -= 1;
  return cut();
}
