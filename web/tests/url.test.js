import assert from "node:assert/strict";
import { test } from "node:test";

import { UrlError } from "../device/errors.js";
import { ReconnectDelay, backoff } from "../device/link_timing.js";
import { isLoopback, parseUrl } from "../device/url.js";
import { vectors } from "./vectors.js";

const cases = vectors("url");

for (const { url, text, host, port, path, secure, user, password, mqtt5 } of cases.read) {
  test(`a URL is read as in Python: ${url}`, () => {
    assert.deepEqual(parseUrl(url), { text, host, port, path, secure, user, password, mqtt5 });
  });
}

for (const { url, python } of cases.refused) {
  test(`a URL that Python refuses is refused, and the error has no password: ${url}`, () => {
    assert.throws(
      () => parseUrl(url),
      (error) => error instanceof UrlError && !error.message.includes("secret"),
      python,
    );
  });
}

test("an unencrypted URL of another machine is accepted only if `insecure` is set", () => {
  assert.equal(parseUrl("ws://broker.local:8080/mqtt", { insecure: true }).secure, false);
});

test("the name and addresses of this machine are recognised", () => {
  for (const host of ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "[::1]", "::1"]) assert.ok(isLoopback(host));
  for (const host of ["localhost.example", "128.0.0.1", "10.0.0.1", "127.example"]) assert.ok(!isLoopback(host));
});

test("waits double up to a bound, less up to a half, as in Python", () => {
  for (const { failures, draw, seconds } of cases.backoffs) {
    assert.equal(backoff(failures, [0.5, 30], draw), seconds);
  }
});

test("a short connection lets the back-off grow, two in a row are suspicious, a long one resets both", () => {
  const delay = new ReconnectDelay([1, 60], () => 0);
  delay.failed();
  delay.lost(4.9);
  assert.deepEqual([delay.waitS(), delay.crowded], [2, false]);
  delay.lost(0.1);
  assert.ok(delay.crowded);
  delay.lost(5);
  assert.deepEqual([delay.waitS(), delay.crowded], [1, false]);
});
