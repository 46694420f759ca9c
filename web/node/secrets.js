/**
 * Passwords and tokens of a device in Node, which `ps` would show on a command line: from a file, a variable or the
 * standard input, as in Python (broker/wire/url.py).
 */
import { readFile, stat } from "node:fs/promises";

import { DeviceError, UrlError } from "../device/errors.js";

export const PASSWORD_VARIABLE = "DEVICE_RUNTIME_PASSWORD";
const WITH_PASSWORD = /(?:^|=)(?:mqtts?|wss?):\/\/[^/@\s:]*:[^/@\s]+@/;
const TOKEN = /(?:^|=)fl1\./;

/** @typedef {(text: string) => void} Warn */

/** The token of `--enrol`; "-" reads it from the standard input. @param {string} given @param {AsyncIterable<any>} input */
export async function tokenOf(option, input) {
  if (option !== "-") return option;
  let text = "";
  for await (const part of input) {
    text += part;
    if (text.includes("\n")) break;
  }
  const [line] = text.split("\n");
  if (!line.trim()) throw new DeviceError("no token on the standard input: `device add` prints it");
  return line;
}

/**
 * The URL with the password of a file, or else of PASSWORD_VARIABLE. The variable is for a URL that names a user.
 * @param {Readonly<import("../device/url.js").BrokerUrl>} url
 * @param {{ file?: string, user?: string, variable?: string, warn: Warn }} source `user`: if the URL names none
 */
export async function withPassword(url, { file, user, variable, warn }) {
  if (!file) return url.user === null || url.password !== null || !variable ? url : { ...url, password: variable };
  if (url.password !== null) throw new UrlError(`the broker's URL has a password, and ${file} has one: give one of them`);
  const who = url.user ?? user;
  if (!who) throw new UrlError(`${file} has a password, but for whom? Name the user in the URL: mqtts://USER@host`);
  return { ...url, user: who, password: await passwordIn(file, warn) };
}

/** The password in a file, without the end of its line. @param {string} file @param {Warn} warn */
async function passwordIn(file, warn) {
  let password;
  let isOpen;
  try {
    password = new TextDecoder("utf-8", { fatal: true }).decode(await readFile(file)).replace(/^[\r\n]+|[\r\n]+$/g, "");
    isOpen = ((await stat(file)).mode & 0o044) !== 0;
  } catch (error) {
    const reason = error.code === "ENOENT" ? "no such file or directory" : (error.code ?? "not UTF-8");
    throw new UrlError(`cannot read the password in ${file}: ${reason}`);
  }
  if (!password || password.includes("\n")) throw new UrlError(`${file} must hold one line, the password`);
  if (isOpen) warn(`others on this machine can read the password in ${file}: chmod 600 ${file}`);
  return password;
}

/** Warns of passwords and tokens among the words of a command line. @param {readonly string[]} words @param {Warn} warn */
export function warnOfVisibleSecrets(words, warn) {
  /** @param {string} secret @param {string} instead */
  const visible = (secret, instead) =>
    warn(`everybody on this machine can see the ${secret} on this command line, and the shell keeps it: ${instead}`);
  if (words.some((word) => WITH_PASSWORD.test(word))) {
    visible("password", `leave it out of the URL, and give --password-file FILE or ${PASSWORD_VARIABLE}`);
  }
  if (words.some((word) => TOKEN.test(word))) visible("token", "--enrol - reads it from stdin");
}
