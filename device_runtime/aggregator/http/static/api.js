// What the aggregator tells. The token stands in sessionStorage and in a header, never in an address.

const KEY = "device-runtime-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

export class Denied extends Error {}

async function ask(path, options = {}) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) throw new Denied("the aggregator does not take this token");
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await reason(answer)}`);
  return answer;
}

async function reason(answer) {
  try {
    return String((await answer.json()).detail);
  } catch {
    return answer.statusText;
  }
}

const of = (task, what) => `api/v1/tasks/${encodeURIComponent(task)}/${what}`;

function query(settings) {
  const entriesOfQuery = Object.entries(settings).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return new URLSearchParams(entriesOfQuery).toString();
}

export const tasks = async () => (await ask("api/v1/tasks")).json();
export const rounds = async (task, after) => (await ask(`${of(task, "rounds")}?${query({ after })}`)).json();
export const devices = async (task, filter) => (await ask(`${of(task, "devices")}?${query(filter)}`)).json();
export const entries = async (task, filter) => (await ask(`${of(task, "contributions")}?${query(filter)}`)).json();
export const audit = async () => (await ask("api/v1/audit")).json();
export const links = async () => (await ask("api/v1/links")).json();
export const invite = async (options) => (await ask(`api/v1/links?${query(options)}`, { method: "POST" })).json();
export const revoke = async (link) => (await ask(`api/v1/links/${encodeURIComponent(link)}`, { method: "DELETE" })).json();
export const model = async (task) => (await ask(of(task, "model"))).blob();

/** Calls `take(live)` whenever something has happened, until the connection ends. (EventSource cannot send a token.) */
export async function follow(task, take, signal) {
  const answer = await ask(of(task, "events"), { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
      if (data.length) take(JSON.parse(data.join("\n")));
    }
  }
}
