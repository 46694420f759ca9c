import assert from "node:assert/strict";
import { test } from "node:test";

import { MessageError } from "../device/errors.js";
import { Greeting } from "../device/hello_retry.js";
import { Hours } from "../device/work_gate.js";
import { Inbox } from "../device/inbox.js";
import { LinkSpeed } from "../device/link_speed.js";
import { opened } from "../device/offers.js";

const CHECKPOINT = [{ sha: new Uint8Array(32), size: 1 }];
const BASE = { checkpoint: CHECKPOINT, sha: new Uint8Array(32), steps: 0, at: 0 };
const member = (/** @type {string} */ name) => ({ name, base: BASE });
const OFFER = { task: "t", run: "r", round: 2, seed: 5n, deadline_s: 20, remaining_s: 12.5, base: BASE, family: [] };

test("a hello without answer is said again after waits that double up to a minute", () => {
  const greeting = new Greeting(() => 0);
  assert.equal(greeting.due(1e9), false);
  greeting.said(0);
  assert.equal(greeting.waiting, true);
  const said = [];
  for (let now = 0; now <= 300; now += 1) {
    if (!greeting.due(now)) continue;
    said.push(now);
    greeting.said(now);
  }
  assert.deepEqual(said, [10, 30, 70, 130, 190, 250]);
  greeting.answered();
  assert.equal(greeting.due(1000), false);
});

test("while a hello is on its way to the broker no silence is counted", () => {
  let underWay = 1;
  const greeting = new Greeting(() => underWay);
  greeting.said(0);
  assert.equal(greeting.due(50), false);
  underWay = 0;
  assert.equal(greeting.due(59), false);
  assert.equal(greeting.due(60), true);
});

test("an offer closes on the device's own clock, and one that makes no sense is refused with what is wrong", () => {
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

test("hours are closed while there is a reason, and the clock of the work stands still meanwhile", async () => {
  let now = 10;
  const hours = new Hours(() => now);
  assert.equal(hours.open, true);
  hours.pause("the page is hidden");
  hours.pause("the battery is at 12%", { quiet: true });
  assert.equal(hours.reason, "paused: the page is hidden; the battery is at 12%");
  hours.resume("something else");
  hours.resume("the page is hidden");
  assert.deepEqual([hours.open, hours.quiet], [false, true]);
  await hours.held(async () => {
    now = 14;
    assert.deepEqual([hours.lost(), hours.worked()], [4, 10]);
    hours.resume("the battery is at 12%");
  });
  now = 15;
  assert.deepEqual([hours.open, hours.quiet, hours.reason, hours.lost(), hours.worked()], [true, false, "", 4, 11]);
});

test("bandwidth is a moving average of large transfers; small ones and what was not seen change nothing", () => {
  const assumed = { up: 1e6, down: 4e6, source: "assumed" };
  const link = new LinkSpeed();
  link.sawUp(1000, 1);
  assert.equal(link.over(assumed), assumed);
  link.sawUp(200_000, 2);
  link.sawUp(100_000, 2);
  assert.deepEqual(link.over(assumed), { up: 75_000, down: 4e6, source: "seen in earlier rounds" });
});

test("what comes is taken in order, with the moment at which it came, and wakes who waits", async () => {
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
  await inbox.wait(1000); // who is woken before waiting does not wait, once
  await inbox.wait(0.001);
  assert.equal(inbox.isEmpty, true);
});
