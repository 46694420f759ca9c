import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex } from "../device/bytes.js";
import { MessageError } from "../device/errors.js";
import * as messages from "../device/messages.js";
import { revived, vectors } from "./vectors.js";

const { decode, encode, Contribution, Offer, Plan, Signed, State } = messages;
const cases = vectors("messages");

/** Makes messages comparable, whether a whole number is a bigint or not. */
const comparable = (value) =>
  JSON.parse(
    JSON.stringify(value, (_, item) => {
      if (typeof item === "bigint") return `${item}`;
      if (item instanceof Uint8Array) return `bytes ${hex(item)}`;
      return item;
    }),
  );

/** As `comparable`, with the fields that are bigint here as texts. */
function expected(object) {
  const plain = comparable(revived(object));
  return JSON.parse(
    JSON.stringify(plain, (name, item) =>
      ["boot", "seed", "seeds"].includes(name) && typeof item === "number" ? `${item}` : item,
    ),
  );
}

for (const { kind, payload, object } of cases.examples) {
  test(`a ${kind} of Python is read, and written in the same bytes: ${payload.slice(0, 24)}`, () => {
    const read = decode(messages[kind], fromHex(payload));
    assert.deepEqual(comparable(read), expected(object));
    assert.equal(hex(encode(messages[kind], read)), payload);
  });
}

test("nothing is allocated for items that cannot be in the message", { timeout: 60_000 }, () => {
  const claims = { "lists in lists": [0xdd, 0x00, 0x03, 0xff, 0xff], "maps in lists": [0x91, 0xdf, 0xff, 0xff, 0xff, 0xff] };
  for (const [what, bytes] of Object.entries(claims)) {
    const payload = Uint8Array.from({ length: 20_000 }, (_, at) => bytes[at % bytes.length]);
    assert.throws(() => decode(Offer, payload), { name: "MessageError", message: /more items than it has bytes/ }, what);
  }
});

test("version and limits are Python's", () => {
  assert.equal(messages.VERSION, cases.version);
  assert.equal(messages.INLINE_LIMIT, cases.inline_limit);
  assert.equal(messages.MESSAGE_LIMIT, cases.message_limit);
});

test("fields that are not given have the defaults of Python", () => {
  const payload = cases.examples[0].payload;
  assert.equal(hex(encode(State, { boot: 2n ** 62n + 12345n, online: true })), payload);
});

for (const { kind, where, payload } of cases.refused) {
  test(`a message that Python refuses is refused, with the place: ${kind}, ${where} ${payload.slice(0, 12)}`, () => {
    assert.throws(
      () => decode(messages[kind], fromHex(payload)),
      (error) => error instanceof MessageError && error.message.includes(where),
    );
  });
}

for (const { payload } of cases.no_text) {
  test(`a text that is not UTF-8 is refused: ${payload.slice(4, 12)}`, () => {
    assert.throws(() => decode(Plan, fromHex(payload)), { name: "MessageError", message: /^not a Plan: / });
  });
}

for (const { length, start } of cases.broken) {
  test(`${length} bytes that are no message are refused`, () => {
    const payload = new Uint8Array(length);
    payload.set(fromHex(start));
    assert.throws(() => decode(State, payload), MessageError);
  });
}

test("fields of a later version of the message are ignored", () => {
  const read = decode(State, fromHex(cases.longer.payload));
  assert.deepEqual(read, { boot: 1n, online: true, leaving: false, paused: false });
});

test("whole seconds are a float, as Python reads them", () => {
  const read = decode(Plan, fromHex(cases.whole_seconds));
  assert.equal(read.seconds, 3);
  assert.equal(hex(encode(Plan, read)), cases.whole_seconds);
});

test("a message with changed bytes is refused with MessageError, or is still a message", () => {
  let state = 12345;
  const drawn = (below) => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  let refused = 0;
  for (let turn = 0; turn < 3000; turn += 1) {
    const { kind, payload } = cases.examples[drawn(cases.examples.length)];
    const bytes = fromHex(payload);
    for (let changes = 1 + drawn(3); changes > 0; changes -= 1) bytes[drawn(bytes.length)] = drawn(256);
    try {
      decode(messages[kind], bytes.subarray(0, bytes.length - (drawn(4) === 0 ? drawn(bytes.length) : 0)));
    } catch (error) {
      assert.ok(error instanceof MessageError, String(error?.stack));
      refused += 1;
    }
  }
  assert.ok(refused > 500);
});

test("an object that is no message is not encoded", () => {
  assert.throws(() => encode(State, { boot: 1n }), /State.online/);
  assert.throws(() => encode(State, { boot: 1n, online: true, moood: 1 }), /no moood/);
  assert.throws(() => encode(State, { boot: 2n ** 63n, online: true }), /State.boot/);
});

test("an offer is found whether it is signed or not", () => {
  const { payload } = cases.examples.find((example) => example.kind === "Offer");
  const bare = fromHex(payload);
  const signed = encode(Signed, { issued: 1, signature: new Uint8Array(64), offer: bare });
  assert.deepEqual(messages.offerIn(signed), messages.offerIn(bare));
  assert.throws(() => messages.offerIn(Uint8Array.of(1, 2)), /not a Offer/);
});

test("a base that names no line begins one, and tells whether it is whole", () => {
  const offers = cases.examples.filter((example) => example.kind === "Offer");
  const [whole, followed] = offers.map((offer) => decode(Offer, fromHex(offer.payload)).base);
  assert.ok(messages.isWhole(whole));
  assert.ok(!messages.isWhole(followed));
  assert.deepEqual([...followed.line], [0, 1, 2, 3]);
});

test("a decoded message cannot be changed", () => {
  const read = decode(Contribution, fromHex(cases.examples.find((example) => example.kind === "Contribution").payload));
  assert.throws(() => {
    read.round = 1;
  }, TypeError);
  assert.throws(() => {
    read.metrics.train_loss = 0;
  }, TypeError);
});
