// Small charts as SVG: lines over rounds, and stacked columns. Each says its figures to screen readers as a table.

import { h, s, table } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 180;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 24;
const LETTER = 7.2; // a wide digit of a label's 11 pixels
const MOST = 60; // columns or points; more rounds are gathered into as many

/** `series`: [{name, colour, values}], one value a round, null where there is none. */
export function lines(title, numbers, series, unit, floor = null) {
  const { rounds, values } = gathered(numbers, series, mean);
  const all = values.flat().filter((value) => value !== null);
  const [low, high] = range(all, floor);
  const left = margin(low, high, unit);
  const y = scale(low, high, HEIGHT - BOTTOM, TOP);
  const x = (place) => (rounds.length < 2 ? (left + WIDTH - RIGHT) / 2 : left + 6 + (place * (WIDTH - left - RIGHT - 12)) / (rounds.length - 1));
  const marks = values.flatMap((line, index) => {
    const points = line.map((value, place) => (value === null ? null : [x(place), y(value)])).filter(Boolean);
    const path = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    const dots = points.length <= 20 ? points.map(([px, py]) => s("circle", { cx: px, cy: py, r: 2.5, class: `dot c${series[index].colour}` })) : [];
    return [s("path", { d: path, class: `line c${series[index].colour}` }), ...dots];
  });
  return framed({ title, rounds, series, values, unit, low, high, left, y, x, marks });
}

/** The same as columns, one upon the other. */
export function columns(title, numbers, series, unit) {
  const { rounds, values } = gathered(numbers, series, sum);
  const totals = rounds.map((_, place) => values.reduce((total, line) => total + (line[place] ?? 0), 0));
  const high = nice(Math.max(0, ...totals)) || 1;
  const left = margin(0, high, unit);
  const y = scale(0, high, HEIGHT - BOTTOM, TOP);
  const step = (WIDTH - left - RIGHT) / Math.max(1, rounds.length);
  const x = (place) => left + step * (place + 0.5);
  const wide = Math.max(1, Math.min(24, step * 0.78));
  const marks = rounds.flatMap((_, place) => {
    let below = 0;
    return values.map((line, index) => {
      const value = line[place] ?? 0;
      const from = y(below);
      below += value;
      const shape = { x: x(place) - wide / 2, y: y(below), width: wide, height: Math.max(0, from - y(below)) };
      return value ? s("rect", { ...shape, class: `bar c${series[index].colour}` }) : null;
    });
  });
  return framed({ title, rounds, series, values, unit, low: 0, high, left, y, x, marks });
}

const ticksOf = (low, high) => [low, (low + high) / 2, high];

/** Room for the longest label beside the axis. */
const margin = (low, high, unit) => 10 + LETTER * Math.max(...ticksOf(low, high).map((value) => unit(value).length));

function framed({ title, rounds, series, values, unit, low, high, left, y, x, marks }) {
  const grid = ticksOf(low, high).flatMap((value) => [
    s("line", { x1: left, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "grid" }),
    s("text", { x: left - 6, y: y(value) + 4, class: "tick end axis" }, unit(value)),
  ]);
  const names = new Set([0, rounds.length - 1, Math.floor((rounds.length - 1) / 2)]);
  const bottom = [...names].filter((place) => place >= 0 && rounds.length).map((place) =>
    s("text", { x: inside(x(place), rounds[place]), y: HEIGHT - 7, class: "tick middle" }, rounds[place]),
  );
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, ...grid, ...marks, ...bottom);
  const isTitled = series.length === 1 && series[0].name === title.toLowerCase();
  const legend = isTitled ? null : h("ul", { class: "legend" }, ...series.map((line) => h("li", {}, swatch(line.colour), line.name)));
  const rows = rounds.map((round, place) => ({ round, place }));
  const heads = [{ head: "round", cell: (row) => row.round }];
  for (const [index, line] of series.entries()) {
    heads.push({ head: line.name, look: "number", cell: (row) => (values[index][row.place] === null ? "–" : unit(values[index][row.place])) });
  }
  const figures = h("details", {}, h("summary", {}, "figures"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}: figures` }, table(title, heads, rows, "none")));
  return h("figure", {}, h("figcaption", {}, title), picture, legend, figures);
}

/** Where the middle of a label is to be, so that its end is in the picture. */
const inside = (at, text) => Math.min(at, WIDTH - 1 - (LETTER * text.length) / 2);

export function swatch(colour) {
  return s("svg", { viewBox: "0 0 10 10", class: "swatch", "aria-hidden": "true" }, s("rect", { width: 10, height: 10, rx: 2, class: `bar c${colour}` }));
}

/** At most MOST places; where there are more rounds, neighbours are put together. */
function gathered(numbers, series, together) {
  const size = Math.ceil(numbers.length / MOST) || 1;
  const starts = numbers.map((_, i) => i).filter((i) => i % size === 0);
  const rounds = starts.map((i) => (size === 1 ? `${numbers[i]}` : `${numbers[i]}–${numbers[Math.min(numbers.length, i + size) - 1]}`));
  const values = series.map((line) => starts.map((i) => together(line.values.slice(i, i + size).filter((value) => value !== null))));
  return { rounds, values };
}

const sum = (values) => (values.length ? values.reduce((a, b) => a + b, 0) : null);
const mean = (values) => (values.length ? sum(values) / values.length : null);

function range(values, floor) {
  const low = floor ?? Math.min(...values);
  const high = Math.max(...values);
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  return low === high ? [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1] : [low, high];
}

function nice(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value) * power;
}

function scale(low, high, from, to) {
  return (value) => from + ((value - low) / (high - low || 1)) * (to - from);
}
