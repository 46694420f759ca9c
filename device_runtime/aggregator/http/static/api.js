// What the aggregator tells. The token stands in sessionStorage and in a header, never in an address.

const KEY = "device-runtime-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

const SILENCE_MS = 40000; // the aggregator says "still here" every 15 seconds
const SLACK_MS = 3000; // clocks are not compared closer: a header has whole seconds, and takes its time
let ahead = 0; // milliseconds from this machine's clock to the aggregator's

/** Seconds since 1970 by the aggregator's clock, which all its times are of. */
export const now = () => (Date.now() + ahead) / 1000;

/** Seconds that the aggregator's clock is ahead of this machine's. */
export const clockAhead = () => ahead / 1000;

function compareClocks(answer) {
  const difference = Date.parse(answer.headers.get("Date") ?? "") - Date.now();
  if (!Number.isNaN(difference)) ahead = Math.abs(difference) > SLACK_MS ? difference : 0;
}

export class Denied extends Error {}

async function ask(path, options = {}) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  compareClocks(answer);
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

/** Calls `take(live)` whenever something has happened, until the connection ends or says nothing for too long, as one does
 * whose network is gone. (EventSource cannot send a token.) */
export async function follow(task, take, signal) {
  const silence = new AbortController();
  const end = () => silence.abort();
  signal.addEventListener("abort", end);
  let timer = setTimeout(end, SILENCE_MS);
  try {
    const answer = await ask(of(task, "events"), { signal: silence.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    silence.signal.addEventListener("abort", () => reader.cancel().catch(() => undefined));
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(end, SILENCE_MS);
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
        if (data.length) take(JSON.parse(data.join("\n")));
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
  }
}
