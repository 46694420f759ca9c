import assert from "node:assert/strict";
import { test } from "node:test";

import { hex } from "../device/bytes.js";
import { enrolmentOf } from "../device/enrolment.js";
import { EnrolmentError } from "../device/errors.js";
import { vectors } from "./vectors.js";

const cases = vectors("enrolment");

for (const { of, token, name, client_id: clientId, url, password, authority, key, issued, secret } of cases.tokens) {
  test(`a token is read as in Python: ${of}`, async () => {
    const read = await enrolmentOf(`  ${token}\n`);
    assert.deepEqual([read.name, read.clientId, read.issued], [name, clientId, issued]);
    assert.deepEqual([read.url.text, read.url.user, read.url.password], [url, name, password]);
    assert.equal(read.authority, authority);
    assert.equal(hex(read.key), key);
    assert.equal(hex(read.secret), secret);
  });
}

test("a token of an earlier version is read, and has no secret key", async () => {
  const read = await enrolmentOf(cases.earlier);
  assert.equal(read.secret.length, 0);
  assert.equal(read.name, cases.tokens[0].name);
});

for (const { of, token } of cases.refused) {
  test(`a token that Python refuses is refused, and the error shows nothing of it: ${of}`, async () => {
    await assert.rejects(enrolmentOf(token), (error) => {
      return error instanceof EnrolmentError && !error.message.includes(cases.secret);
    });
  });
}
