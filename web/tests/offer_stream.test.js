import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex, text, utf8 } from "../device/bytes.js";
import { MOST_BYTES, compactContribution, fullContribution, withMac } from "../device/compact_round.js";
import { MemoryDisk } from "../device/disk.js";
import { DeviceError, MessageError } from "../device/errors.js";
import { Contribution, Offer, Receipt, decode, encode } from "../device/messages.js";
import { OfferStream } from "../device/offer_stream.js";
import { Trust } from "../device/trust.js";
import { vectors } from "./vectors.js";

const cases = vectors("offer_stream");
const own = (size) => fromHex(cases.own).slice(0, size);

async function follow(key, messages) {
  const offerStream = new OfferStream(await Trust.open(key, own));
  for (const { topic, payload, retained, task, offer, error, text, over } of messages) {
    const offering = offerStream.offer(topic, fromHex(payload), retained, task);
    const what = `${topic} ${payload.slice(0, 30)}`;
    if (offer) {
      const { base, ...rest } = await offering;
      const expected = decode(Offer, fromHex(offer));
      assert.deepEqual({ ...rest, base: { ...base } }, { ...expected, base: { ...expected.base } }, what);
    } else {
      const caught = await offering.then(() => null, (failure) => failure);
      assert.ok(caught instanceof MessageError, `${what}: ${caught}`);
      assert.equal(caught.name, error, `${what}: ${caught} ${text}`);
      assert.equal(caught.message.split(/[:(]/)[0], text.split(/[:(]/)[0].replaceAll('"', "'"));
    }
    assert.equal(offerStream.over, over, what);
  }
}

for (const { of, heard: messages } of cases.open) {
  test(`a device without a key follows as in Python: ${of}`, () => follow(new Uint8Array(), messages));
}

for (const { of, heard: messages } of cases.enrolled) {
  test(`an enrolled device follows as in Python: ${of}`, () => follow(fromHex(cases.key), messages));
}

test("a device sends the same public key for MACs as in Python", async () => {
  assert.equal(hex((await Trust.open(fromHex(cases.key), own)).key), cases.device_key);
  assert.equal((await Trust.open(new Uint8Array())).key.length, 0);
  const [first, other] = [await Trust.open(fromHex(cases.key)), await Trust.open(fromHex(cases.key))];
  assert.notEqual(hex(first.key), hex(other.key), "each process draws its own");
});

test("an invalid key is refused", async () => {
  await assert.rejects(Trust.open(new Uint8Array(31)), { name: "NotTrusted", message: /31 bytes, expected 32/ });
  const zero = Uint8Array.of(1, ...new Uint8Array(31)); // y = 1, where the map between the curves is not defined
  await assert.rejects(Trust.open(zero), { name: "NotTrusted" });
});

test("an offer older than an accepted one is refused after a restart, too, by the same aggregator's key", async () => {
  const [first, old] = cases.enrolled.find((example) => example.of === "the time of issue only goes up").heard;
  const disk = new MemoryDisk();
  const key = fromHex(cases.key);
  await (await Trust.open(key, own, disk)).offer(first.topic, fromHex(first.payload));
  const again = await Trust.open(key, own, disk);
  await assert.rejects(again.offer(old.topic, fromHex(old.payload)), { message: /issued at 8, and one of 9 was taken/ });
  for (const rubbish of ["", "{}", '{"key":"', "\u00ff"]) {
    await disk.put("issued", utf8(rubbish));
    assert.ok(await (await Trust.open(key, own, disk)).offer(old.topic, fromHex(old.payload)));
  }
});

test("the aggregator's new key is kept across restarts, with the times of earlier offers", async () => {
  const messages = cases.enrolled.find((example) => example.of === "another key follows").heard;
  const offer = (trust, { topic, payload }) => trust.offer(topic, fromHex(payload));
  const [disk, key] = [new MemoryDisk(), fromHex(cases.key)];
  const [first, , followed, old] = messages;
  await offer(await Trust.open(key, own, disk), first);
  await offer(await Trust.open(key, own, disk), followed);
  const again = await Trust.open(key, own, disk);
  await assert.rejects(offer(again, old), { name: "NotTrusted" });
  assert.equal((await offer(again, followed)).round, 3);
  assert.equal(JSON.parse(text(await disk.get("issued"))).issued.t, 9);
  const other = await Trust.open(fromHex(cases.says.public), own, disk); // another enrolment on the same disk
  await assert.rejects(offer(other, followed), { name: "NotTrusted" });
  await disk.put("successor", utf8("{"));
  assert.equal((await offer(await Trust.open(key, own, disk), old)).round, 3);
});

test("if a new key cannot be kept, the times of the old key's offers stay known", async () => {
  const messages = cases.enrolled.find((example) => example.of === "another key follows").heard;
  const [, old] = cases.enrolled.find((example) => example.of === "the time of issue only goes up").heard;
  const offer = (trust, { topic, payload }) => trust.offer(topic, fromHex(payload));
  const [disk, key] = [new MemoryDisk(), fromHex(cases.key)];
  const put = disk.put.bind(disk);
  disk.put = (name, bytes) => (name === "successor" ? Promise.reject(new DeviceError("full")) : put(name, bytes));
  await offer(await Trust.open(key, own, disk), messages[0]);
  await assert.rejects(offer(await Trust.open(key, own, disk), messages[2]), { message: "full" });
  await assert.rejects(offer(await Trust.open(key, own, disk), old), { message: /issued at 8, and one of 9 was taken/ });
});

test("a device that signs accepts a receipt only with its MAC", async () => {
  const { receipt_topic: topic, receipt, receipt_with_mac: authenticated } = cases.says;
  const trust = await Trust.open(fromHex(cases.key), own, null, true);
  const read = await trust.receipt(topic, fromHex(authenticated));
  assert.deepEqual({ ...read }, { ...decode(Receipt, fromHex(receipt)) });
  const bent = fromHex(authenticated);
  bent[5] ^= 1;
  for (const forged of [fromHex(receipt), bent, new Uint8Array()]) {
    await assert.rejects(trust.receipt(topic, forged), { name: "NotTrusted" });
  }
  await assert.rejects(trust.receipt(`${topic}s`, fromHex(authenticated)), { name: "NotTrusted" });
  const unsigned = await Trust.open(fromHex(cases.key), own);
  assert.equal((await unsigned.receipt(topic, fromHex(receipt))).seq, 2);
});

test("a compact contribution has the same MAC as in Python", async () => {
  const trust = await Trust.open(fromHex(cases.key), own, null, true);
  const { short, short_topic: topic, short_with_mac: expected } = cases.says;
  const mac = await trust.mac(topic, "r", fromHex(short));
  assert.equal(hex(withMac(fromHex(short), mac)), expected);
});

test("a browser without X25519 sends no key, and accepts only whole offers", async (t) => {
  const { importKey } = crypto.subtle;
  t.mock.method(crypto.subtle, "importKey", (format, data, algorithm, ...rest) => {
    if (algorithm === "X25519") return Promise.reject(new DOMException("no", "NotSupportedError"));
    return importKey.call(crypto.subtle, format, data, algorithm, ...rest);
  });
  const trust = await Trust.open(fromHex(cases.key), own);
  assert.equal(trust.key.length, 0);
  const messages = cases.enrolled.find((example) => example.of === "the MAC").heard;
  const offerStream = new OfferStream(trust);
  await offerStream.offer(messages[0].topic, fromHex(messages[0].payload), false, "t");
  const compact = messages.find((message) => message.offer && message !== messages[0]);
  await assert.rejects(offerStream.offer(compact.topic, fromHex(compact.payload), false, "t"), { name: "NotTrusted" });
});

test("only a limited number of tasks is followed", async () => {
  const like = decode(Offer, fromHex(cases.open[0].heard[0].payload));
  const offerStream = new OfferStream(await Trust.open(new Uint8Array()));
  for (let at = 0; at <= 64; at += 1) {
    await offerStream.offer("fl/v1/all/round/any", encode(Offer, { ...like, task: `t${at}` }));
  }
  const next = fromHex(cases.open[0].heard[1].payload);
  assert.equal((await offerStream.offer("fl/v1/all/round/t1", next)).round, 3);
  await assert.rejects(offerStream.offer("fl/v1/all/round/t0", next), { name: "UnknownRoundBefore" });
});

for (const { of, whole, short, read } of cases.short) {
  test(`a contribution has the same compact form as in Python, or goes whole: ${of}`, () => {
    const like = decode(Contribution, fromHex(cases.like));
    const compact = compactContribution(decode(Contribution, fromHex(whole)), like);
    assert.equal(compact && hex(compact), short);
    if (compact) assert.deepEqual({ ...fullContribution(compact, like) }, { ...decode(Contribution, fromHex(read)) });
  });
}

test("bytes that are no compact contribution like that one are refused", () => {
  const like = decode(Contribution, fromHex(cases.like));
  const short = fromHex(cases.short[0].short);
  const other = { ...like, seq: 5 };
  for (const wrong of [new Uint8Array(), short.slice(0, 5), Uint8Array.of(5, ...short.slice(1))]) {
    assert.throws(() => fullContribution(wrong, like), DeviceError);
  }
  assert.throws(() => fullContribution(short, other), /not like the one that is known/);
  assert.equal(MOST_BYTES, cases.most_bytes);
});
