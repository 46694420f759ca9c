import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex } from "../device/bytes.js";
import { TopicError } from "../device/errors.js";
import { packetBytes, qosOf } from "../device/packets.js";
import * as topics from "../device/topics.js";
import { vectors } from "./vectors.js";

const cases = vectors("topics");

test("topics are Python's", () => {
  assert.equal(topics.OFFERS, cases.offers);
  assert.equal(topics.offer("digits"), cases.offer);
  assert.ok(topics.isOffer(cases.offer));
  assert.ok(!topics.isOffer(topics.up("d", "hello")));
});

for (const { topic, device, leaf, sha, index } of cases.addresses) {
  test(`a topic is parsed, and its address gives the topic again: ${topic.slice(0, 40)}`, () => {
    const read = topics.parse(topic);
    assert.deepEqual({ ...read, sha: hex(read.sha) }, { device, leaf, sha, index });
    const name = leaf === "block" ? topics.block(fromHex(sha), index) : leaf;
    assert.equal((topic.includes("/up/") ? topics.up : topics.down)(device, name), topic);
  });
}

for (const { topic, python } of cases.others) {
  test(`a topic without an address is refused as in Python: ${python}`, () => {
    assert.throws(() => topics.parse(topic), { name: "TopicError" });
    assert.throws(() => topics.parse(topic), TopicError);
  });
}

test("a packet has the same size and QoS as in Python", () => {
  for (const { topic, first, size, qos, bytes, mqtt5 } of cases.packets) {
    const payload = new Uint8Array(size).fill(first);
    assert.equal(qosOf(topic, payload), qos);
    assert.equal(packetBytes(topic, payload), bytes);
    assert.equal(packetBytes(topic, payload, 1, true), mqtt5);
  }
});

test("subscriptions match topics as brokers match them", () => {
  assert.ok(topics.matches("fl/v1/all/round/+", "fl/v1/all/round/digits"));
  assert.ok(topics.matches("fl/v1/d/x/dn/#", "fl/v1/d/x/dn/block/00/1"));
  assert.ok(topics.matches("fl/v1/d/x/dn/#", "fl/v1/d/x/dn"));
  assert.ok(!topics.matches("fl/v1/all/round/+", "fl/v1/all/round/digits/more"));
  assert.ok(!topics.matches("fl/v1/all/round/+", "fl/v1/all/round"));
  assert.ok(!topics.matches("fl/v1/d/x/dn/#", "fl/v1/d/y/dn/task"));
});
