/** The pad to draw on, by finger, pen, mouse or keys. */

import { drawn } from "../device/drawing.js";
import { isLightOnDark, pictureRaw } from "../device/preparing.js";
import { h } from "./dom.js";

const SIDE = 280; // units of the canvas
const PEN = 20;
const STEP = 14; // that an arrow key moves the pen
const ARROWS = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
const HOW = "Drawing area. Arrow keys move the pen, the space bar puts it down or lifts it, Backspace takes the last line away.";

/**
 * @typedef {{element: HTMLElement, how: string, clear: () => void, close?: () => void}} Pad close: it is not needed
 *   any more
 * @param {import("../device/preparing.js").InputSpec} spec
 * @param {(raw: Uint8Array | Float32Array | null) => void} changed called after each line; null: the pad is empty
 * @returns {Pad}
 */
export function drawingPad(spec, changed) {
  const canvas = h("canvas", { width: SIDE, height: SIDE, class: "paper", tabindex: 0, role: "application", "aria-label": HOW, "aria-describedby": "pen" });
  const pen = h("p", { id: "pen", class: "quiet keys", "aria-live": "polite" });
  /** @type {{strokes: {x: number, y: number}[][], at: {x: number, y: number}, drawing: boolean, keys: boolean}} */
  const state = { strokes: [], at: { x: SIDE / 2, y: SIDE / 2 }, drawing: false, keys: false };
  const tell = () => changed(state.strokes.length ? pictureRaw(spec, drawn(state.strokes, isLightOnDark(spec), spec.shape[1])) : null);
  const show = () => paint(canvas, state);
  const clear = () => {
    Object.assign(state, { strokes: [], drawing: false });
    show();
    tell();
  };
  const undo = () => {
    state.strokes.pop();
    state.drawing = false;
    show();
    tell();
  };
  byPointer(canvas, state, { show, tell });
  byKeys(canvas, state, { show, tell, undo, pen });
  const undoing = h("button", { type: "button", click: undo }, "Undo");
  const clearing = h("button", { type: "button", click: clear }, "Clear");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", show);
  requestAnimationFrame(show);
  const element = h("div", { class: "pad drawing" }, canvas, pen, h("div", { class: "row" }, undoing, clearing));
  return { element, how: "Draw it as large as you like, and choose its label.", clear, close: () => dark.removeEventListener("change", show) };
}

function byPointer(canvas, state, { show, tell }) {
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) * SIDE) / box.width, y: ((event.clientY - box.top) * SIDE) / box.height };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    Object.assign(state, { drawing: true, keys: false });
    state.strokes.push([place(event)]);
    show();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!state.drawing || state.keys) return;
    const all = event.getCoalescedEvents?.() ?? [];
    state.strokes.at(-1).push(...(all.length ? all : [event]).map(place));
    show();
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, () => {
      if (!state.drawing || state.keys) return;
      state.drawing = false;
      tell();
    });
  }
}

function byKeys(canvas, state, { show, tell, undo, pen }) {
  const lift = () => {
    if (state.keys && state.drawing) tell();
    state.drawing = false;
  };
  canvas.addEventListener("keydown", (event) => {
    const move = ARROWS[event.key];
    if (!move && ![" ", "Backspace"].includes(event.key)) return;
    event.preventDefault();
    state.keys = true;
    if (event.key === "Backspace") undo();
    else if (event.key === " " && state.drawing) lift();
    else if (event.key === " ") {
      state.drawing = true;
      state.strokes.push([{ ...state.at }]);
    } else {
      state.at = { x: within(state.at.x + move[0]), y: within(state.at.y + move[1]) };
      if (state.drawing) state.strokes.at(-1).push({ ...state.at });
    }
    pen.textContent = `Pen ${state.drawing ? "down" : "up"}, ${Math.round((100 * state.at.x) / SIDE)} % across, ${Math.round((100 * state.at.y) / SIDE)} % down`;
    show();
  });
  canvas.addEventListener("blur", () => {
    lift();
    state.keys = false;
    pen.textContent = "";
    show();
  });
}

const within = (value) => Math.min(SIDE - PEN / 2, Math.max(PEN / 2, value));

function paint(canvas, { strokes, at, keys, drawing }) {
  const paper = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  paper.clearRect(0, 0, SIDE, SIDE);
  Object.assign(paper, { lineWidth: PEN, lineCap: "round", lineJoin: "round", strokeStyle: style.color });
  for (const stroke of strokes) {
    paper.beginPath();
    paper.moveTo(stroke[0].x, stroke[0].y);
    for (const { x, y } of stroke.length > 1 ? stroke : [stroke[0], stroke[0]]) paper.lineTo(x, y);
    paper.stroke();
  }
  if (!keys) return;
  Object.assign(paper, { lineWidth: 3, strokeStyle: style.accentColor });
  paper.beginPath();
  paper.arc(at.x, at.y, drawing ? PEN / 2 : PEN / 3, 0, 2 * Math.PI);
  paper.stroke();
}
