import assert from "node:assert/strict";
import { test } from "node:test";

import { UrlError } from "../device/errors.js";
import { backoff, Patience } from "../device/backoff.js";
import { isLoopback, parseUrl } from "../device/url.js";
import { vectors } from "./vectors.js";

const given = vectors("url");

for (const { url, text, host, port, path, secure, user, password, mqtt5 } of given.read) {
  test(`a URL is read as in Python: ${url}`, () => {
    assert.deepEqual(parseUrl(url), { text, host, port, path, secure, user, password, mqtt5 });
  });
}

for (const { url, python } of given.refused) {
  test(`what Python refuses is refused, without its password: ${url}`, () => {
    assert.throws(
      () => parseUrl(url),
      (error) => error instanceof UrlError && !error.message.includes("secret"),
      python,
    );
  });
}

test("in the clear to another machine only where that is meant", () => {
  assert.equal(parseUrl("ws://broker.local:8080/mqtt", { insecure: true }).secure, false);
});

test("this machine is known by its name and addresses", () => {
  for (const host of ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "[::1]", "::1"]) assert.ok(isLoopback(host));
  for (const host of ["localhost.example", "128.0.0.1", "10.0.0.1", "127.example"]) assert.ok(!isLoopback(host));
});

test("waits double up to a bound, less up to a half, as in Python", () => {
  for (const { failures, draw, seconds } of given.backoffs) {
    assert.equal(backoff(failures, [0.5, 30], draw), seconds);
  }
});

test("a short connection does not count, two in a row are suspicious, a long one ends both", () => {
  const patience = new Patience([1, 60], () => 0);
  patience.failed();
  patience.lost(4.9);
  assert.deepEqual([patience.wait(), patience.crowded], [2, false]);
  patience.lost(0.1);
  assert.ok(patience.crowded);
  patience.lost(5);
  assert.deepEqual([patience.wait(), patience.crowded], [1, false]);
});
