import assert from "node:assert/strict";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { parseUrl } from "../device/url.js";
import { tokenOf, warnOfVisibleSecrets, withPassword } from "../node/secrets.js";

const NAMED = parseUrl("mqtts://ann@host");

test("a token is read from the standard input, up to the end of its line, also in pieces", async () => {
  assert.equal(await tokenOf("fl1.x", []), "fl1.x");
  assert.equal(await tokenOf("-", ["fl1.", "ab\nmore", "unread"]), "fl1.ab");
  await assert.rejects(tokenOf("-", ["\n"]), /no token on the standard input/);
});

test("a password comes from a variable for a URL that names a user and has none", async () => {
  const warn = assert.fail;
  assert.equal((await withPassword(NAMED, { variable: "secret", warn })).password, "secret");
  assert.equal((await withPassword(parseUrl("mqtts://ann:own@host"), { variable: "x", warn })).password, "own");
  assert.equal((await withPassword(parseUrl("mqtts://host"), { variable: "x", warn })).password, null);
});

test("a password comes from a file, and one that others can read is warned of", async () => {
  const folder = await mkdtemp(join(tmpdir(), "secrets-"));
  const [file, warnings] = [join(folder, "password"), [""].slice(1)];
  const warn = (/** @type {string} */ text) => void warnings.push(text);
  try {
    await writeFile(file, "pass word\r\n", { mode: 0o600 });
    assert.deepEqual(await withPassword(NAMED, { file, warn }), { ...NAMED, password: "pass word" });
    const named = await withPassword(parseUrl("mqtts://host"), { file, user: "pi", warn });
    assert.deepEqual([named.user, named.password, warnings], ["pi", "pass word", []]);
    await chmod(file, 0o644);
    await withPassword(NAMED, { file, warn });
    assert.match(warnings.join(), /others on this machine can read the password/);
    await assert.rejects(withPassword(parseUrl("mqtts://host"), { file, warn }), /for whom/);
    await assert.rejects(withPassword(parseUrl("mqtts://a:b@host"), { file, warn }), /give one of them/);
    await writeFile(file, "two\nlines\n");
    await assert.rejects(withPassword(NAMED, { file, warn }), /must hold one line/);
    await assert.rejects(withPassword(NAMED, { file: `${file}.no`, warn }), /no such file/);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("what `ps` shows to everybody is warned of", () => {
  for (const [word, secret] of [
    ["wss://ann:x@host", "password"],
    ["--broker=mqtt://ann:x@host", "password"],
    ["--enrol=fl1.ab", "token"],
    ["fl1.ab", "token"],
  ]) {
    const warnings = [""].slice(1);
    warnOfVisibleSecrets(["--broker", word], (text) => void warnings.push(text));
    assert.equal(warnings.length, 1);
    assert.match(warnings[0], new RegExp(`the ${secret} on this command line`));
  }
  warnOfVisibleSecrets(["--broker", "wss://ann@host:80/mqtt", "--enrol", "-"], assert.fail);
});
