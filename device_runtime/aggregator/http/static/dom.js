// Making elements. Text is always text: nothing here ever parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element; children are nodes or texts. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same of SVG. */
export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Do what a button is for: it is off meanwhile, and says beside it why it failed. */
export async function attempt(button, act) {
  button.disabled = true;
  if (button.nextElementSibling?.classList.contains("trouble")) button.nextElementSibling.remove();
  try {
    await act();
  } catch (error) {
    button.after(h("span", { class: "trouble", role: "alert" }, `Failed: ${error.message}`));
  } finally {
    button.disabled = false;
  }
}

/** A button that does something, as `attempt`. */
export function button(text, act, attributes = {}) {
  const element = h("button", { type: "button", ...attributes }, text);
  element.addEventListener("click", () => attempt(element, act));
  return element;
}

export const isNarrow = () => matchMedia("(max-width: 720px)").matches;

export const byId = (id) => document.getElementById(id);

/** How many rows a page has: fewer on a phone. */
export const rowsAPage = () => (isNarrow() ? 5 : 12);

/** A table that becomes a list of cards on a narrow screen. `columns`: {head, cell(row), look?}; a look is a class. */
export function table(caption, columns, rows, empty) {
  const head = h("tr", {}, ...columns.map((column) => h("th", { scope: "col", class: column.look }, column.head)));
  const lines = rows.map((row) =>
    h("tr", {}, ...columns.map((column, place) => cell(column, row, place))),
  );
  const none = h("tr", {}, h("td", { colspan: columns.length, class: "quiet" }, empty));
  return h(
    "table",
    {},
    h("caption", { class: "sr" }, caption),
    h("thead", {}, head),
    h("tbody", {}, ...(lines.length ? lines : [none])),
  );
}

function cell(column, row, place) {
  const content = column.cell(row);
  const attributes = { class: column.look, "data-head": column.head };
  if (content === "" || content === null) attributes["data-empty"] = true;
  return place === 0 ? h("th", { scope: "row", ...attributes }, content) : h("td", attributes, content);
}
