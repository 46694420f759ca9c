/** The machine does in each step what Python's does: traces of device/machine/step.py (tests/web/writers/client/). */
import assert from "node:assert/strict";
import { test } from "node:test";

import { phaseOf, step } from "../device/machine.js";
import { BLOCKING, firstState, waiting } from "../device/turn.js";
import { vectors } from "./vectors.js";

for (const name of ["model", "scripted", "wire"]) {
  for (const [what, [start, ...steps]] of Object.entries(vectors(`client/${name}`))) {
    test(`${name}: ${what}`, () => {
      assert.deepEqual(Object.keys(firstState()), Object.keys(start), "the fields of the state");
      let state = start;
      for (const [event, commands, changes] of steps) {
        const after = step(state, event);
        assert.deepEqual(after.commands, commands, `after ${JSON.stringify(event)}`);
        assert.deepEqual(after.state, { ...state, ...changes }, `after ${JSON.stringify(event)}`);
        state = after.state;
      }
    });
  }
}

test("a device starts with what is on its disk", () => {
  const [start] = Object.values(vectors("client/scripted"))[0];
  assert.deepEqual(firstState({ rules: start.rules }), start);
  const [[again]] = Object.entries(vectors("client/scripted")).filter(([what]) => what.endsWith("life 2")).map(([, entry]) => entry);
  const entries = again.outbox.map(({ seq, task, run, round, samples, fetched }) => waiting({ seq, task, run, round, samples, fetched }));
  assert.deepEqual(entries, again.outbox);
  assert.ok(entries.length > 0);
});

test("the phases are those of the traces' first round", () => {
  const [start, ...steps] = Object.values(vectors("client/scripted"))[0];
  const phases = [phaseOf(start)];
  let state = start;
  for (const [event, commands] of steps) {
    state = step(state, event).state;
    const last = commands.findIndex(({ type }) => BLOCKING.has(type));
    assert.ok(last < 0 || last === commands.length - 1, "what is answered is commanded last");
    if (phases.at(-1) !== phaseOf(state)) phases.push(phaseOf(state));
  }
  for (const phase of ["idle", "fetching", "ready", "training", "awaiting_receipt", "evaluating"]) {
    assert.ok(phases.includes(phase), phase);
  }
});
