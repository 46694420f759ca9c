/** Starts a real Mosquitto for one test, with TCP and WebSockets on free ports of this machine. */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PLACES = ["mosquitto", "/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/opt/homebrew/sbin/mosquitto"];
const PROGRAM = PLACES.find((place) => spawnSync(place, ["-h"]).error === undefined);

/** The reason to skip a test that needs Mosquitto; false if it is installed. */
export const skip = PROGRAM ? false : "mosquitto is not installed";

export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  server.close();
  return port;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits for a condition; throws if it is not met in `ms` milliseconds. */
export async function until(condition, ms = 120_000) {
  for (const end = Date.now() + ms; Date.now() < end; await pause(10)) if (await condition()) return;
  throw new Error(`not within ${ms} ms: ${condition}`);
}

/** Starts Mosquitto until the end of the test. `users` (name to password) may use only their own branch of topics. */
export async function start(test, { users = {}, ports } = {}) {
  const [port, webPort] = ports ?? [await freePort(), await freePort()];
  const folder = mkdtempSync(join(tmpdir(), "mosquitto-"));
  const names = Object.keys(users);
  const lines = [
    ...(process.getuid?.() === 0 ? ["user root"] : []),
    "per_listener_settings false",
    `allow_anonymous ${names.length === 0}`,
    ...(names.length ? [`password_file ${folder}/passwords`, `acl_file ${folder}/access`] : []),
    "max_queued_messages 100000",
    "message_size_limit 524288",
    `listener ${port} 127.0.0.1`,
    `listener ${webPort} 127.0.0.1`,
    "protocol websockets",
  ];
  writeFileSync(join(folder, "mosquitto.conf"), `${lines.join("\n")}\n`);
  writeFileSync(join(folder, "passwords"), names.map((name) => `${name}:${users[name]}\n`).join(""), { mode: 0o600 });
  if (names.length) spawnSync("mosquitto_passwd", ["-U", join(folder, "passwords")]);
  const access = ["pattern write fl/v1/d/%u/up/#", "pattern read fl/v1/d/%u/dn/#", "pattern read fl/v1/all/#"];
  writeFileSync(join(folder, "access"), `${access.join("\n")}\n`, { mode: 0o600 });
  const child = spawn(PROGRAM, ["-c", join(folder, "mosquitto.conf")], { stdio: "ignore" });
  const stop = async (signal = "SIGKILL") => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill(signal);
    await once(child, "exit");
  };
  test.after(async () => {
    await stop();
    rmSync(folder, { recursive: true, force: true });
  });
  for (const number of [port, webPort]) await until(() => accepts(number));
  const urls = { url: `mqtt://127.0.0.1:${port}`, webUrl: `ws://127.0.0.1:${webPort}/mqtt` };
  return { ...urls, ports: [port, webPort], stop };
}

function accepts(port) {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.on("connect", () => resolve(true) ?? socket.destroy());
    socket.on("error", () => resolve(false));
  });
}
