// The dashboard: asks for the token, follows one task, and shows what has changed.

import * as api from "./api.js";
import { attempt, byId, h, isNarrow, table } from "./dom.js";
import { seconds } from "./format.js";
import * as fleet from "./fleet.js";
import * as invite from "./invite.js";
import * as live from "./live.js";
import * as log from "./log.js";

const AGAIN_MS = 3000;
const REFRESH_MS = 2000;

let following = null; // an AbortController
let tasks = [];

async function enter() {
  try {
    tasks = await api.tasks();
  } catch (error) {
    if (error instanceof api.Denied) return locked(api.token.get() ? error.message : "");
    say("bad", "not reachable");
    setTimeout(enter, AGAIN_MS);
    return undefined;
  }
  byId("enter").hidden = true;
  byId("board").hidden = false;
  byId("leave").hidden = !api.token.get();
  const choice = byId("task");
  choice.replaceChildren(...tasks.map((task) => h("option", { value: task.name }, task.settings.title || task.name)));
  byId("task-choice").hidden = false;
  return watch(tasks[0].name);
}

function locked(why) {
  api.token.forget();
  following?.abort();
  say(why ? "bad" : "quiet", "token needed");
  byId("board").hidden = true;
  doubt("", false);
  byId("leave").hidden = true;
  byId("model").hidden = true;
  byId("enter").hidden = false;
  byId("denied").textContent = why;
  byId("token").focus();
}

function say(mood, text) {
  const pill = byId("connection");
  pill.className = `pill ${mood}`;
  if (pill.textContent !== text) pill.textContent = text;
}

/** Say above the figures what is wrong with them, and pale them where they are old. */
function doubt(text, old) {
  const place = byId("doubt");
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
  byId("board").classList.toggle("stale", old);
}

/** Show one task until another is chosen; a connection that ends is made again. */
async function watch(name) {
  following?.abort();
  const controller = (following = new AbortController());
  const view = new Shown(tasks.find((task) => task.name === name));
  live.title(view.task);
  fleet.begin(view.task.version);
  log.begin();
  while (!controller.signal.aborted) {
    try {
      await api.follow(name, (now) => view.take(now), controller.signal);
    } catch (error) {
      if (error instanceof api.Denied && !controller.signal.aborted) locked(error.message); // which ends this, too
    }
    if (controller.signal.aborted) break;
    view.lost = true;
    view.draw();
    say("bad", "connection lost, trying again");
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
  view.end();
}

/** What is on the page about one task. Tables are asked for anew at most every REFRESH_MS. */
class Shown {
  constructor(task) {
    this.task = task;
    this.rounds = [];
    this.now = task.live;
    this.stale = true;
    this.busy = false;
    this.ended = false;
    this.drawn = "";
    this.at = api.now(); // of the figures
    this.lost = false;
    this.failed = "";
    this.draw();
    this.refresh();
    this.timers = [setInterval(() => this.refresh(), REFRESH_MS), setInterval(() => this.draw(), 1000)];
  }

  take(now) {
    if (this.ended) return;
    if (now.run !== this.now.run) this.rounds = [];
    this.now = now;
    this.at = api.now();
    this.lost = false;
    this.stale = true;
    say(now.phase === "finished" ? "quiet" : "good", now.phase === "finished" ? "finished" : "live");
    this.draw();
  }

  end() {
    this.ended = true;
    this.timers.forEach(clearInterval);
  }

  get kinds() {
    return live.kindsOf(this.rounds, this.now, this.task.settings.kinds.map((kind) => kind.name));
  }

  draw() {
    live.tiles(this.now);
    live.round(this.now, this.kinds, this.lost ? this.at : api.now(), this.task.settings.min_devices);
    doubt(this.doubts().join(" "), this.lost);
    byId("model").hidden = this.now.closed_rounds === 0;
  }

  doubts() {
    const ahead = api.clockAhead();
    return [
      this.lost && `No connection to the aggregator: these figures are from ${new Date(1000 * (this.at - ahead)).toLocaleString("sv")}. It is tried again.`,
      !this.lost && this.failed && `Charts and tables may be old: ${this.failed}`,
      !this.now.broker && this.now.phase !== "finished" && "The aggregator has no broker: no device reaches it, and who is online is not known. It goes on trying; devices keep their updates.",
      Math.abs(ahead) > 60 && `The clock of this phone or computer is ${seconds(Math.abs(ahead))} ${ahead > 0 ? "behind" : "ahead of"} the aggregator's. Times here are of the aggregator's clock.`,
    ].filter(Boolean);
  }

  async refresh() {
    if (this.busy || this.ended || !this.stale || document.hidden) return;
    this.busy = true;
    this.stale = false;
    try {
      await this.more();
      if (!this.ended && !within("fleet-table")) await fleet.show(this.task.name);
      if (!within("invite")) await invite.show();
      if (!this.ended && log.latest() && !within("log-table")) await log.show(this.task.name);
      this.failed = "";
    } catch (error) {
      this.stale = true;
      this.failed = error.message;
      if (error instanceof api.Denied) locked(error.message);
    } finally {
      this.busy = false;
    }
  }

  /** Closed rounds that are not here yet, page by page. */
  async more() {
    for (;;) {
      const page = await api.rounds(this.task.name, this.rounds.at(-1)?.round ?? 0);
      this.rounds.push(...page.rounds);
      if (!page.rounds.length || this.rounds.length >= page.total) break;
    }
    if (this.ended) return;
    const key = `${this.now.run} ${this.rounds.length}`;
    if (key !== this.drawn) live.charts(this.rounds, this.kinds);
    this.drawn = key;
    this.draw();
  }
}

/** Whether somebody is selecting text there: do not pull it away. */
function within(id) {
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && byId(id).contains(selection.anchorNode));
}

async function download() {
  const name = byId("task").value;
  const address = URL.createObjectURL(await api.model(name));
  const link = h("a", { href: address, download: `${name}.safetensors` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

const actions = [
  { head: "time", look: "stamp", cell: (entry) => new Date(entry.at).toLocaleString("sv") },
  { head: "who", look: "name", cell: (entry) => [entry.user, entry.address].filter(Boolean).join(", from ") },
  { head: "did", cell: (entry) => entry.action },
  { head: "to", cell: (entry) => entry.subject },
  { head: "result", look: "wide", cell: (entry) => entry.result },
];

/** What operators did; asked for when it is opened. */
async function audit() {
  if (!byId("audit-fold").open) return;
  byId("audit-table").replaceChildren(table("What operators did", actions, await api.audit(), "Nothing yet."));
}

const on = (id, kind, act) => byId(id).addEventListener(kind, (event) => {
  event.preventDefault();
  act(event);
});
const task = () => byId("task").value;
const quietly = (promise) => promise.catch((error) => (error instanceof api.Denied ? locked(error.message) : say("bad", error.message)));

on("enter", "submit", () => {
  api.token.set(byId("token").value.trim());
  byId("token").value = "";
  byId("denied").textContent = "";
  enter();
});
on("leave", "click", () => locked(""));
on("model", "click", () => attempt(byId("model"), download));
byId("audit-fold").addEventListener("toggle", () => quietly(audit()));
byId("log-fold").open = !isNarrow();
on("all-charts", "click", () => byId("charts").classList.add("all"));
on("task", "change", () => watch(task()));
for (const kind of ["input", "submit", "change"]) {
  on("fleet-filter", kind, () => {
    fleet.begin();
    quietly(fleet.show(task()));
  });
  on("log-filter", kind, () => {
    log.begin();
    quietly(log.show(task()));
  });
}
on("invite-form", "submit", () => {
  byId("invite-trouble").textContent = "";
  invite.make().catch((error) => (error instanceof api.Denied ? locked(error.message) : (byId("invite-trouble").textContent = error.message)));
});
enter();
