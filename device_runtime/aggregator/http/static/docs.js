// The API's description, from openapi.json, as a page.

import { byId, h, table } from "./dom.js";

const description = await (await fetch("openapi.json")).json();
const schemas = description.components?.schemas ?? {};

function type(schema) {
  if (!schema || !Object.keys(schema).length) return "any";
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return h("a", { href: `#type-${name}` }, name);
  }
  if (schema.anyOf) return mixed(schema.anyOf.map(type), " or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return mixed(["list of ", type(schema.items)], "");
  if (schema.type === "object" && schema.additionalProperties) return mixed(["by name: ", type(schema.additionalProperties)], "");
  return schema.type;
}

function limits(schema) {
  const words = { minimum: "at least", exclusiveMinimum: "more than", maximum: "at most", exclusiveMaximum: "less than" };
  const value = schema.anyOf?.[0] ?? schema;
  const parts = Object.entries(words).filter(([key]) => key in value).map(([key, word]) => `${word} ${value[key]}`);
  if (typeof (schema.default ?? {}) !== "object") parts.push(`default: ${JSON.stringify(schema.default)}`);
  return parts.join(", ");
}

function mixed(parts, between) {
  return h("span", {}, ...parts.flatMap((part, place) => (place ? [between, part] : [part])));
}

function operation(path, method, details) {
  const open = !details.security?.length;
  const names = [
    { head: "parameter", cell: (p) => h("code", {}, p.name) },
    { head: "in", cell: (p) => p.in },
    { head: "type", cell: (p) => type(p.schema) },
    { head: "meaning", look: "wide", cell: (p) => [p.description, p.required ? "required" : `default: ${p.schema.default ?? "none"}`].filter(Boolean).join("; ") },
  ];
  const answers = Object.entries(details.responses).map(([status, answer]) => {
    const content = Object.entries(answer.content ?? {});
    return h("li", {}, h("code", {}, status), " ", answer.description, ...content.flatMap(([form, body]) => [": ", form === "application/json" ? type(body.schema) : form]));
  });
  const header = open ? "" : ' -H "Authorization: Bearer $(cat TOKEN_FILE)"';
  return h(
    "section", { class: "operation" },
    h("h3", {}, h("span", { class: "method" }, method.toUpperCase()), " ", h("code", {}, path)),
    h("p", {}, details.summary ?? ""),
    details.description ? h("p", { class: "quiet" }, details.description) : null,
    details.parameters?.length ? table("Parameters", names, details.parameters, "none") : null,
    h("ul", { class: "answers" }, ...answers),
    h("pre", { tabindex: 0 }, h("code", {}, `curl${header} ${location.origin}${path}`)),
  );
}

function shape(name, schema) {
  const fields = [
    { head: "field", cell: ([field]) => h("code", {}, field) },
    { head: "type", cell: ([, details]) => type(details) },
    { head: "meaning", look: "wide", cell: ([, details]) => [details.description, limits(details)].filter(Boolean).join(" ") },
  ];
  return h(
    "section", { class: "operation", id: `type-${name}` },
    h("h3", {}, name),
    ...(schema.description ?? "").split("\n\n").map((part) => h("p", { class: "quiet" }, part)),
    table(name, fields, Object.entries(schema.properties ?? {}), "none"),
  );
}

byId("main").replaceChildren(
  h("p", {}, description.info.description ?? ""),
  h("h2", {}, "Requests"),
  ...Object.entries(description.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, details]) => operation(path, method, details))),
  h("h2", {}, "Types"),
  ...Object.entries(schemas).map(([name, schema]) => shape(name, schema)),
);
