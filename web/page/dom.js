/** Makes elements of the page. Nothing here parses text as HTML. */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element. An attribute that is a function listens to the event of its name; children are nodes or texts. */
export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** An SVG element, made as by `h`. */
export const s = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

/** @returns {any} the element of the page */
export const byId = (id) => document.getElementById(id);

/** Sets the text of a node, if it is new: otherwise screen readers would repeat it. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows names and values as tiles; empty values are left out. @param {[string, string][]} pairs */
export function tiles(node, pairs) {
  node.replaceChildren(...pairs.filter(([, value]) => value).map(([name, value]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value))));
}
