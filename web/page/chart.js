/** Shows the model's accuracy over rounds: a line chart, and the same figures as a table. */

import { h, s } from "./dom.js";
import { percent } from "./format.js";

const WIDTH = 360;
const HEIGHT = 150;
const LEFT = 48;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 24;

/**
 * @param {{round: number, share: number}[]} points in the order of rounds
 * @param {number} chance the accuracy of guessing
 */
export function chart(points, chance) {
  const [first, last] = [points[0].round, points.at(-1).round];
  const x = (round) => (first === last ? (LEFT + WIDTH - RIGHT) / 2 : LEFT + 6 + ((round - first) * (WIDTH - LEFT - RIGHT - 12)) / (last - first));
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const grid = [0, 0.5, 1].flatMap((share) => [
    s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share), class: "grid" }),
    s("text", { x: LEFT - 6, y: y(share) + 4, class: "tick end" }, percent(share)),
  ]);
  const guessing = s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(chance), y2: y(chance), class: "chance" });
  const path = points.map(({ round, share }, i) => `${i ? "L" : "M"}${x(round).toFixed(1)} ${y(share).toFixed(1)}`).join("");
  const dots = points.length > 30 ? [] : points.map(({ round, share }) => s("circle", { cx: x(round), cy: y(share), r: 3, class: "dot" }));
  const ends = [...new Set([first, last])].map((round) => s("text", { x: x(round), y: HEIGHT - 7, class: "tick middle" }, round));
  return h(
    "figure",
    {},
    h("figcaption", {}, "Share of right answers on samples kept out of training, by round"),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, ...grid, guessing, s("path", { d: path, class: "line" }), ...dots, ...ends),
    h("p", { class: "quiet" }, s("svg", { viewBox: "0 0 24 8", class: "key", "aria-hidden": "true" }, s("line", { x1: 0, x2: 24, y1: 4, y2: 4, class: "chance" })), ` guessing: ${percent(chance)}`),
    h("details", {}, h("summary", {}, "Figures"), figures(points)),
  );
}

function figures(points) {
  const head = h("tr", {}, h("th", { scope: "col" }, "Round"), h("th", { scope: "col" }, "Right"));
  const rows = points.map(({ round, share }) => h("tr", {}, h("th", { scope: "row" }, round), h("td", {}, percent(share))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Figures of the chart" }, h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows)));
}
