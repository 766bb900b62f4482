"use strict";
// Readings as lines: for each column of pixels the lowest, mean and highest power in it, so that no peak is lost.

function highest(line) {
  return (line.high_w || line.mean_w).reduce((most, watts) => Math.max(most, watts || 0), 0);
}

// The interval that a time falls into, or -1.
function intervalAt(edges, second) {
  if (!edges.length || second < edges[0] || second >= edges[edges.length - 1]) return -1;
  let low = 0,
    high = edges.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= second) low = middle;
    else high = middle;
  }
  return low;
}

// What is drawn between two times: {begin, end, mean, low, high}, as it was read where that fits.
function columns(line, from, to, pixels) {
  const edges = line.edges_s,
    first = Math.max(intervalAt(edges, from), 0),
    found = [];
  let last = first;
  while (last < line.mean_w.length && edges[last] < to) last += 1;
  const together = Math.max(Math.ceil((last - first) / (2 * pixels)), 1);
  for (let at = first; at < last; at += together) found.push(joined(line, at, Math.min(at + together, last)));
  return found;
}

function joined(line, begin, end) {
  const column = { begin: line.edges_s[begin], end: line.edges_s[end], mean: null, low: Infinity, high: -Infinity };
  let energy = 0,
    seconds = 0;
  for (let at = begin; at < end; at += 1) {
    if (line.mean_w[at] === null) continue;
    const length = line.edges_s[at + 1] - line.edges_s[at];
    energy += line.mean_w[at] * length;
    seconds += length;
    column.low = Math.min(column.low, line.low_w ? line.low_w[at] : line.mean_w[at]);
    column.high = Math.max(column.high, line.high_w ? line.high_w[at] : line.mean_w[at]);
  }
  if (seconds > 0) column.mean = energy / seconds;
  return column;
}

// Steps, since a reading is the mean of its interval; gaps stay open.
function meanPath(drawn, x, y) {
  let path = "",
    open = false;
  for (const { begin, end, mean } of drawn) {
    if (mean === null) {
      open = false;
      continue;
    }
    path += `${open ? "L" : "M"}${x(begin).toFixed(1)} ${y(mean).toFixed(1)}H${x(end).toFixed(1)}`;
    open = true;
  }
  return path;
}

function bandPath(drawn, x, y) {
  return drawn
    .filter(({ mean, low, high }) => mean !== null && high > low)
    .map(
      ({ begin, end, low, high }) =>
        `M${x(begin).toFixed(1)} ${y(low).toFixed(1)}V${y(high).toFixed(1)}H${Math.max(x(end), x(begin) + 0.5).toFixed(1)}V${y(low).toFixed(1)}z`,
    )
    .join("");
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

// The end of an axis: a little above the peak, and easy to halve.
function niceAbove(peak) {
  return 2 * niceStep((peak / 2) * 1.02);
}

// Rows of bits from base64, unpacked when they are first drawn.
function activityLanes(activity) {
  const unpack = (text) => {
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    return Uint8Array.from({ length: activity.bins }, (_, bin) => (bytes[bin >> 3] >> (7 - (bin & 7))) & 1);
  };
  const known = new Map();
  const modules = (path) => {
    const own = path[path.length - 1] === "(self)" ? path.slice(0, -1).join("/") : path.join("/");
    if (!known.has(own)) known.set(own, Object.hasOwn(activity.modules, own) ? unpack(activity.modules[own]) : null);
    return known.get(own);
  };
  return {
    phases: Object.fromEntries(Object.entries(activity.phases).map(([phase, text]) => [phase, unpack(text)])),
    modules,
  };
}
