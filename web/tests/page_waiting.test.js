import assert from "node:assert/strict";
import { test } from "node:test";

import { Waiting } from "../page/waiting.js";

const HERE = { paused: false, samples: () => 3 };
const at = (seconds) => new Date(2026, 0, 1, 9, 0, seconds);

test("a device that never connects says so after 20 seconds, and since when", () => {
  const waiting = new Waiting(at(5));
  assert.equal(waiting.text(at(24), HERE), "");
  waiting.hear({ type: "link", connected: false, reason: "refused" }, at(20));
  assert.equal(
    waiting.text(at(25), HERE),
    "Since 09:00:05 this device has waited for a connection. What you teach it is kept here meanwhile.",
  );
  waiting.hear({ type: "link", connected: true, reason: "" }, at(30));
  assert.equal(waiting.text(at(49), HERE), "");
  assert.equal(waiting.text(at(50), HERE), "Since 09:00:30 this device has waited for the task.");
});

test("messages while the link is down do not hide since when it is down", () => {
  const waiting = new Waiting(at(0));
  waiting.hear({ type: "link", connected: true, reason: "" }, at(1));
  waiting.hear({ type: "link", connected: false, reason: "gone" }, at(3));
  waiting.hear({ type: "progress", share: 0.5 }, at(30));
  assert.match(waiting.text(at(31), HERE), /^Since 09:00:03 .* a connection\./);
});

test("each step has its own text, from the time of its message", () => {
  const waiting = new Waiting(at(0));
  waiting.hear({ type: "link", connected: true, reason: "" }, at(0));
  const messages = [
    [{ type: "offer", round: 0, done: false }, "enough devices to begin"],
    [{ type: "fetching", have: 1, size: 2 }, "the rest of the model"],
    [{ type: "fetching", have: 2, size: 2 }, "the model to be ready"],
    [{ type: "offer", round: 1, done: false }, "the model to be ready"],
    [{ type: "plan", label: "full" }, "the next step of its training"],
    [{ type: "made" }, "the receipt"],
    [{ type: "receipt" }, "the next round"],
  ];
  for (const [message, what] of messages) {
    waiting.hear(message, at(2));
    waiting.hear({ type: "traffic", up: 1, down: 1 }, at(9));
    assert.equal(waiting.text(at(22), HERE), `Since 09:00:02 this device has waited for ${what}.`);
  }
});

test("without samples the device waits for samples", () => {
  const waiting = new Waiting(at(0));
  waiting.hear({ type: "link", connected: true, reason: "" }, at(0));
  waiting.hear({ type: "offer", round: 0, done: false }, at(1));
  assert.match(waiting.text(at(30), { paused: false, samples: () => 0 }), /waited for samples: teach it, or choose files\.$/);
  assert.match(waiting.text(at(30), { paused: false, samples: () => null }), /waited for enough devices/);
});

test("a device that is paused, has stopped, or whose task is over waits for nothing", () => {
  const waiting = new Waiting(at(0));
  assert.equal(waiting.text(at(59), { paused: true, samples: () => 3 }), "");
  waiting.hear({ type: "link", connected: true, reason: "" }, at(0));
  waiting.hear({ type: "offer", round: 2, done: true }, at(1));
  waiting.hear({ type: "receipt" }, at(2));
  assert.equal(waiting.text(at(59), HERE), "");
  const stopped = new Waiting(at(0));
  stopped.hear({ type: "stopped", text: "no" }, at(1));
  assert.equal(stopped.text(at(59), HERE), "");
});
