"use strict";
// Quantities as joulemap prints them in the terminal: with the digits that are known, and an SI prefix.

const PREFIXES = [
  ["G", 1e9],
  ["M", 1e6],
  ["k", 1e3],
  ["", 1],
  ["m", 1e-3],
  ["µ", 1e-6],
  ["n", 1e-9],
];

function scaleFor(magnitude) {
  return PREFIXES.find(([, factor]) => magnitude >= factor * 0.9995) || PREFIXES[PREFIXES.length - 1];
}

function rounded(value, places) {
  const shift = 10 ** places;
  return places >= 0 ? Number(value.toFixed(places)) : Math.round(value * shift) / shift;
}

function quantity(value, unit, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not known";
  if (value === 0) return `0 ${unit}`;
  const [prefix, factor] = scaleFor(Math.abs(value));
  const scaled = value / factor;
  const shown = Number(scaled.toExponential(digits - 1));
  const places = digits - 1 - Math.floor(Math.log10(Math.abs(shown)));
  return `${rounded(scaled, places).toFixed(Math.max(places, 0))} ${prefix}${unit}`;
}

// "812.3 ± 9.1 J": value and uncertainty in one unit and to the same place.
function plusMinus(value, unit, half) {
  if (!(half > 0)) return quantity(value, unit);
  const [prefix, factor] = scaleFor(Math.max(Math.abs(value), half));
  const places = Math.min(1 - Math.floor(Math.log10(half / factor)), 6);
  const digits = Math.max(places, 0);
  const number = (one) => rounded(one / factor, places).toFixed(digits);
  return `${number(value)} ± ${number(half)} ${prefix}${unit}`;
}

// The longer side of the interval; null where it is not known.
function halfWidth(row) {
  return row.interval ? Math.max(row.high_j - row.energy_j, row.energy_j - row.low_j) : null;
}

function joules(row) {
  return plusMinus(row.energy_j, "J", halfWidth(row));
}

function interval(row) {
  return row.interval ? range(row.low_j, row.high_j, "J") : "not known";
}

// What sharing by time alone gives, and how far that is from the calibrated energy.
function besideCalibrated({ energy_j, time_based_j }) {
  const off = energy_j > 0 ? ` (${signedPercent(time_based_j / energy_j - 1)})` : "";
  return quantity(time_based_j, "J") + off;
}

// +4.8 %; what has become ten times as much or more is said as a factor.
function signedPercent(share) {
  if (share >= 9) return `×${Number((1 + share).toPrecision(3)).toLocaleString("en")}`;
  const text = percent(Math.abs(share));
  return text === percent(0) ? text : `${share > 0 ? "+" : "−"}${text}`;
}

function range(low, high, unit) {
  return `${quantity(low, unit)} to ${quantity(high, unit)}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "not known";
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${two((seconds % 3600) / 60)} min`;
  if (seconds >= 120) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  return quantity(seconds, "s");
}

function percent(share) {
  const value = 100 * share;
  return `${value.toFixed(Math.abs(value) >= 99.95 ? 0 : 1)} %`;
}

function count(number, word, words) {
  const text = number.toLocaleString("en");
  return word ? `${text} ${number === 1 ? word : words || `${word}s`}` : text;
}

// What would move the cursor or turn the text is spelled out, as in the terminal.
function printable(name) {
  const plain = name.replace(
    /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
  return plain || "(no name)";
}

// How a name on a heat is to be written; what is dark on one theme is light on the other.
function heatClass(heat) {
  return heat > 0.9 ? "warm hot" : heat > 0.6 ? "warm" : "";
}

const MEANING = {
  measured: "read off a meter",
  apportioned: "measured by the meter, shared out by time",
  calibrated: "measured by the meter, shared out by each operation’s own energy",
  projected: "measured in every step, shared out as in the traced steps",
  estimated: "not read off a meter, and rough: the level may be off by half",
};
