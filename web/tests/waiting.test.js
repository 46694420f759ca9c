import assert from "node:assert/strict";
import { test } from "node:test";

import { MessageError } from "../device/errors.js";
import { Inbox } from "../device/inbox.js";
import { LinkSpeed } from "../device/link_speed.js";
import { opened } from "../device/offers.js";
import { WorkGate } from "../device/work_gate.js";

const CHECKPOINT = [{ sha: new Uint8Array(32), size: 1 }];
const BASE = { checkpoint: CHECKPOINT, sha: new Uint8Array(32), steps: 0, at: 0 };
const member = (/** @type {string} */ name) => ({ name, base: BASE });
const OFFER = { task: "t", run: "r", round: 2, seed: 5n, deadline_s: 20, remaining_s: 12.5, base: BASE, family: [] };

test("a round closes on the device's own clock, and an invalid offer is refused with the reason", () => {
  assert.equal(opened(OFFER, 100).closes, 112.5);
  const wrong = [
    [{ task: "<b>t</b>" }, /offer of round 2 of '<b>t<\/b>': that is no name of a task/],
    [{ task: "" }, /that is no name of a task/],
    [{ remaining_s: -1 }, /remaining_s is -1, expected 0 or more seconds/],
    [{ deadline_s: NaN }, /deadline_s is NaN/],
    [{ remaining_s: Infinity }, /remaining_s is Infinity/],
    [{ round: -1 }, /rounds are counted from 0/],
    [{ seed: -1n }, /seed is -1, expected 64 bits/],
    [{ base: { ...BASE, checkpoint: [] } }, /a base has no checkpoint/],
    [{ base: { ...BASE, steps: -2 } }, /or -2 steps/],
    [{ family: [member("half"), member("half")] }, /models of its family are called \["half","half"\], each needs its own/],
    [{ family: [member("")] }, /models of its family are called \[""\]/],
  ];
  for (const [change, text] of wrong) {
    const isSaid = (error) => error instanceof MessageError && text.test(error.message);
    assert.throws(() => opened({ ...OFFER, ...change }, 0), isSaid);
  }
  assert.equal(opened({ ...OFFER, family: [member("half"), member("third")] }, 0).closes, 12.5);
});

test("the work gate is closed while there is a reason, and the clock of the work stands still meanwhile", async () => {
  let now = 10;
  const gate = new WorkGate(() => now);
  assert.equal(gate.open, true);
  gate.pause("the page is hidden");
  gate.pause("the battery is at 12%", { quiet: true });
  assert.equal(gate.reason, "paused: the page is hidden; the battery is at 12%");
  gate.resume("something else");
  gate.resume("the page is hidden");
  assert.deepEqual([gate.open, gate.quiet], [false, true]);
  await gate.held(async () => {
    now = 14;
    assert.deepEqual([gate.lost(), gate.worked()], [4, 10]);
    gate.resume("the battery is at 12%");
  });
  now = 15;
  assert.deepEqual([gate.open, gate.quiet, gate.reason, gate.lost(), gate.worked()], [true, false, "", 4, 11]);
});

test("bandwidth is a moving average of large transfers; small ones change nothing", () => {
  const assumed = { up: 1e6, down: 4e6, source: "assumed" };
  const link = new LinkSpeed();
  link.sawUp(1000, 1);
  assert.equal(link.over(assumed), assumed);
  link.sawUp(200_000, 2);
  link.sawUp(100_000, 2);
  assert.deepEqual(link.over(assumed), { up: 75_000, down: 4e6, source: "seen in earlier rounds" });
});

test("events are taken in order, with their time of arrival, and end a wait", async () => {
  let now = 1;
  const inbox = new Inbox(() => now);
  inbox.put("one");
  now = 2;
  inbox.put("two");
  await inbox.wait(1000);
  assert.deepEqual([inbox.next(), inbox.next()], [{ event: "one", came: 1 }, { event: "two", came: 2 }]);
  assert.equal(inbox.next(), null);
  const waited = inbox.wait(1000);
  inbox.wake();
  await waited;
  inbox.wake();
  await inbox.wait(1000); // `wake` before a wait ends it at once, one time
  await inbox.wait(0.001);
  assert.equal(inbox.isEmpty, true);
});
