// Small charts as SVG: lines over rounds, and stacked columns. Each says its figures to screen readers as a table.

import { h, s, table } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 204;
const RIGHT = 8;
const TOP = 24;
const BOTTOM = 38;
const LETTER = 7.2; // a wide digit of a label's 11 pixels
const MOST = 60; // columns or points; more rounds are gathered into as many
const STEPS = 4; // of an axis, about

/** `series`: [{name, colour, values}], one value a round, null where there is none. `measure`: what the values are:
 * {form(value), units or name, low, high, whole}; the axis goes from low to high where these are given. */
export function lines(title, numbers, series, measure) {
  const { rounds, values } = gathered(numbers, series, mean);
  const all = values.flat().filter((value) => value !== null);
  const axis = axisOf(...range(all, measure), measure);
  const x = (place) => (rounds.length < 2 ? (axis.left + WIDTH - RIGHT) / 2 : axis.left + 6 + (place * (WIDTH - axis.left - RIGHT - 12)) / (rounds.length - 1));
  const marks = values.flatMap((line, index) => {
    const points = line.map((value, place) => (value === null ? null : [x(place), axis.y(value)])).filter(Boolean);
    const path = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    const dots = points.length <= 20 ? points.map(([px, py]) => s("circle", { cx: px, cy: py, r: 2.5, class: `dot c${series[index].colour}` })) : [];
    return [s("path", { d: path, class: `line c${series[index].colour}` }), ...dots];
  });
  return framed({ title, rounds, series, values, measure, axis, x, marks });
}

/** The same as columns, one upon the other; a round without a value has 0. */
export function columns(title, numbers, series, measure) {
  const whole = series.map((line) => ({ ...line, values: line.values.map((value) => value ?? 0) }));
  const { rounds, values } = gathered(numbers, whole, mean);
  const totals = rounds.map((_, place) => values.reduce((total, line) => total + (line[place] ?? 0), 0));
  const axis = axisOf(0, Math.max(0, ...totals), measure);
  const step = (WIDTH - axis.left - RIGHT) / Math.max(1, rounds.length);
  const x = (place) => axis.left + step * (place + 0.5);
  const wide = Math.max(1, Math.min(24, step * 0.78));
  const marks = rounds.flatMap((_, place) => {
    let below = 0;
    return values.map((line, index) => {
      const value = line[place] ?? 0;
      const from = axis.y(below);
      below += value;
      const shape = { x: x(place) - wide / 2, y: axis.y(below), width: wide, height: Math.max(0, from - axis.y(below)) };
      return value ? s("rect", { ...shape, class: `bar c${series[index].colour}` }) : null;
    });
  });
  return framed({ title, rounds, series, values, measure, axis, x, marks });
}

/** An axis whose labels are round numbers (1, 2, 2.5 or 5 of a power of ten apart) and include both ends. */
function axisOf(low, high, { units = [[1, ""]], name, whole }) {
  const size = unitOf(high, units);
  let step = nice((high - low || Math.abs(high) || 1) / size.size / STEPS);
  if (whole) step = Math.ceil(step);
  const first = Math.floor(low / size.size / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil(high / size.size / step - 1e-9));
  const digits = [0, 1, 2, 3, 4, 5].find((count) => Math.abs(step * 10 ** count - Math.round(step * 10 ** count)) < 1e-6) ?? 6;
  const ticks = Array.from({ length: last - first + 1 }, (_, i) => ({ value: (first + i) * step * size.size, label: ((first + i) * step).toFixed(digits) }));
  const left = 10 + LETTER * Math.max(...ticks.map((tick) => tick.label.length));
  const y = scale(ticks[0].value, ticks.at(-1).value, HEIGHT - BOTTOM, TOP);
  return { ticks, left, y, name: [name, size.name].filter(Boolean).join(", ") };
}

/** The unit of an axis; of values without one that are very small a power of ten. */
function unitOf(high, units) {
  const [size, name] = units.find(([least]) => high >= least) ?? units.at(-1);
  const power = Math.floor(Math.log10(high / size || 1));
  return power < -3 ? { size: size * 10 ** power, name: `${name} × 1e${power}`.trim() } : { size, name };
}

function framed({ title, rounds, series, values, measure, axis, x, marks }) {
  const grid = axis.ticks.flatMap(({ value, label }) => [
    s("line", { x1: axis.left, x2: WIDTH - RIGHT, y1: axis.y(value), y2: axis.y(value), class: "grid" }),
    s("text", { x: axis.left - 6, y: axis.y(value) + 4, class: "tick end axis" }, label),
  ]);
  const labels = new Set([0, rounds.length - 1, Math.floor((rounds.length - 1) / 2)]);
  const bottom = [...labels].filter((place) => place >= 0 && rounds.length).map((place) =>
    s("text", { x: inside(x(place), rounds[place]), y: HEIGHT - 22, class: "tick middle" }, rounds[place]),
  );
  const names = [
    s("text", { x: 0, y: 11, class: "tick" }, axis.name),
    s("text", { x: (axis.left + WIDTH - RIGHT) / 2, y: HEIGHT - 6, class: "tick middle" }, "round"),
  ];
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, ...grid, ...marks, ...bottom, ...names);
  const isTitled = series.length === 1 && series[0].name === title.toLowerCase();
  const legend = isTitled ? null : h("ul", { class: "legend" }, ...series.map((line) => h("li", {}, swatch(line.colour), line.name)));
  const rows = rounds.map((round, place) => ({ round, place }));
  const heads = [{ head: "round", cell: (row) => row.round }];
  for (const [index, line] of series.entries()) {
    heads.push({ head: line.name, look: "number", cell: (row) => (values[index][row.place] === null ? "–" : measure.form(values[index][row.place])) });
  }
  const figures = h("details", {}, h("summary", {}, "figures"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}: figures` }, table(title, heads, rows, "none")));
  return h("figure", {}, h("figcaption", {}, title), picture, legend, figures);
}

/** Where the middle of a label is to be, so that its end is in the picture. */
const inside = (at, text) => Math.min(at, WIDTH - 1 - (LETTER * text.length) / 2);

export function swatch(colour) {
  return s("svg", { viewBox: "0 0 10 10", class: "swatch", "aria-hidden": "true" }, s("rect", { width: 10, height: 10, rx: 2, class: `bar c${colour}` }));
}

/** At most MOST places; where there are more rounds, each place has the mean of neighbours. */
function gathered(numbers, series, together) {
  const size = Math.ceil(numbers.length / MOST) || 1;
  const starts = numbers.map((_, i) => i).filter((i) => i % size === 0);
  const rounds = starts.map((i) => [...new Set([numbers[i], numbers[Math.min(numbers.length, i + size) - 1]])].join("–"));
  const values = series.map((line) => starts.map((i) => together(line.values.slice(i, i + size).filter((value) => value !== null))));
  return { rounds, values };
}

const sum = (values) => (values.length ? values.reduce((a, b) => a + b, 0) : null);
const mean = (values) => (values.length ? sum(values) / values.length : null);

/** From low to high; from 0 where the values come near it. */
function range(values, { low, high }) {
  const least = low ?? Math.min(...values);
  const most = high ?? Math.max(...values);
  if (!Number.isFinite(least) || !Number.isFinite(most)) return [0, 1];
  return [least > 0 && least < most / 2 ? 0 : Math.min(least, most), most];
}

/** The next larger of 1, 2, 2.5, 5 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].find((step) => step * power >= value * (1 - 1e-9)) * power;
}

function scale(low, high, from, to) {
  return (value) => from + ((value - low) / (high - low || 1)) * (to - from);
}
