"use strict";
// The card that explains what is under the pointer or has the focus: a title and lines of [what, value].

const explained = new WeakMap();

function explain(element, card) {
  explained.set(element, card);
}

function hideTip() {
  document.getElementById("tip").hidden = true;
  for (const one of document.querySelectorAll("[aria-describedby=tip]")) one.removeAttribute("aria-describedby");
}

function showTip(element, x, y) {
  const { title, lines, note } = explained.get(element)();
  const tip = document.getElementById("tip");
  tip.replaceChildren(
    el("strong", {}, title),
    el(
      "dl",
      {},
      lines.filter((line) => line).map(([what, value]) => [el("dt", {}, what), el("dd", {}, value)]),
    ),
    note ? el("p", {}, note) : "",
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(x + 14, innerWidth - box.width - 8);
  const top = y + 18 + box.height > innerHeight ? y - box.height - 14 : y + 18;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${Math.max(top, 8)}px`;
}

function explainedAt(target) {
  for (let one = target; one instanceof Element; one = one.parentNode) if (explained.has(one)) return one;
  return null;
}

function listenForTips() {
  document.addEventListener("pointermove", (event) => {
    const element = explainedAt(event.target);
    if (element) showTip(element, event.clientX, event.clientY);
    else hideTip();
  });
  document.addEventListener("focusin", ({ target }) => {
    if (explainedAt(target) && target.matches(":focus-visible")) describe(target);
  });
  document.addEventListener("focusout", hideTip);
  document.addEventListener("scroll", followOrHide, { passive: true });
}

// The card of what has the focus is its description, for who hears the page.
function describe(target) {
  const element = explainedAt(target),
    box = element.getBoundingClientRect();
  showTip(element, box.left, box.bottom - 8);
  target.setAttribute("aria-describedby", "tip");
}

// What gets the focus is scrolled into view, and keeps its card.
function followOrHide() {
  const focused = document.querySelector("[aria-describedby=tip]");
  if (focused) describe(focused);
  else hideTip();
}

// What every energy says about itself.
function energyCard(title, row, more, note) {
  return {
    title: printable(title),
    lines: [
      ["energy", joules(row)],
      ["95 % interval", interval(row)],
      row.time_based_j === undefined ? null : ["by time alone", besideCalibrated(row)],
      row.net_j === undefined || row.net_j === null ? null : ["net, above idle", quantity(row.net_j, "J")],
      ...(more || []),
      ["provenance", `${row.provenance}: ${MEANING[row.provenance]}`],
    ],
    note: [unsure(row), note].filter(Boolean).join(" "),
  };
}

// What an operation is shared out by time with, in one update of the meter, is in its energy; null where it is
// long enough, or not shared out by time.
function mixed({ active_s, calls }, { rule, domains }) {
  const periods = domains.filter((one) => one.provenance === "measured").map((one) => one.update_period_s);
  const longest = Math.max(0, ...periods);
  if (rule === "calibrated" || !calls || active_s >= calls * longest) return null;
  return `It runs for less than one update of the meter (${duration(longest)}) at a time: its neighbours’ power is in it, and no interval holds that.`;
}

// Why an energy has no interval, or the meter's alone.
function unsure({ interval, spread }) {
  if (!interval) return "Seen in one traced step, which stands for untraced ones: how alike they are is not known.";
  return spread === false || spread === 0 ? "Seen in one step at most: the interval is the meter’s alone." : null;
}
