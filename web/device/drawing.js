// Turns a drawing into a picture: strokes of the pen are scaled to fit the frame, and drawn with a pen of fixed width,
// so that it matters neither where nor how large somebody draws.

const SIDE = 64; // pixels of the picture that is made
const PEN = 0.15; // of the side: about as wide as in the handwritten digits of the shipped bundle
const MNIST = 28; // pixels of a side; its digits leave 4 free on each

/**
 * @typedef {{x: number, y: number}} Point in any unit, y downwards
 * @param {Point[][]} strokes a list of points from each time that the pen was put down
 * @param {boolean} light whether ink is white on black, or black on white
 * @param {number} height of the task's input, in pixels
 * @returns {import("./preparing.js").Picture} grey
 */
export function drawn(strokes, light, height) {
  const edge = height === MNIST ? 4 / MNIST : 0;
  const lines = fitted(strokes.filter((stroke) => stroke.length), SIDE * (1 - 2 * edge - PEN));
  const pixels = new Uint8Array(SIDE * SIDE);
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      const away = Math.min(...lines.map((line) => distance(line, column + 0.5, row + 0.5)));
      const ink = Math.min(1, Math.max(0, (PEN * SIDE) / 2 - away + 0.5));
      pixels[row * SIDE + column] = Math.round(255 * (light ? ink : 1 - ink));
    }
  }
  return { pixels, height: SIDE, width: SIDE, channels: 1 };
}

/** The drawing as line segments [x0, y0, x1, y1] in pixels, centred, with its longer side `room` long. */
function fitted(strokes, room) {
  const points = strokes.flat();
  const [left, right] = [Math.min(...points.map((p) => p.x)), Math.max(...points.map((p) => p.x))];
  const [top, bottom] = [Math.min(...points.map((p) => p.y)), Math.max(...points.map((p) => p.y))];
  const scale = room / (Math.max(right - left, bottom - top) || 1);
  const x = (p) => SIDE / 2 + (p.x - (left + right) / 2) * scale;
  const y = (p) => SIDE / 2 + (p.y - (top + bottom) / 2) * scale;
  return strokes.flatMap((stroke) => stroke.map((p, i) => [x(stroke[Math.max(0, i - 1)]), y(stroke[Math.max(0, i - 1)]), x(p), y(p)]));
}

/** The distance of a point from a line segment. */
function distance([x0, y0, x1, y1], x, y) {
  const [dx, dy] = [x1 - x0, y1 - y0];
  const length = dx * dx + dy * dy;
  const along = length ? Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / length)) : 0;
  return Math.hypot(x - x0 - along * dx, y - y0 - along * dy);
}
