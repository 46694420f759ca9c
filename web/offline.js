/**
 * The service worker: keeps the files of the page, so that it opens without a network. Each file is kept under its
 * hash, and the list of a version's files is replaced as a whole, so that two versions never mix. It keeps nothing
 * else: settings, credentials and messages always come from the network.
 */

const CACHE = "device-runtime-page";
const SCOPE = new URL("./", self.location.href);
const LIST = new URL("files.json", SCOPE).href;
const PAGE = "page/index.html";
/** The files of the page: paths below SCOPE. */
const FILE = /^((page|device|vendor)\/.+|[^/]+\.js)$/;
/** Milliseconds that opening the page waits for the list, and for all of a newer version. */
const [LIST_MS, UPDATE_MS] = [4_000, 20_000];

/** @typedef {{files: {[path: string]: string}, later: {[path: string]: string}}} List path -> SHA-256, base64 */

/** @type {List | null} */
let list = null;

/** @param {string} path @param {string} hash */
const keyOf = (path, hash) => new URL(`${path}?${encodeURIComponent(hash)}`, SCOPE).href;

/** The list of the version that is kept. @param {Cache} cache @returns {Promise<List | null>} */
async function currentList(cache) {
  list ??= (await (await cache.match(LIST))?.json()) ?? null;
  return list;
}

/** A file from the network; an error if it is not the one with this hash. @param {Cache} cache */
async function fetched(cache, path, hash) {
  const answer = await fetch(new URL(path, SCOPE), { cache: "no-cache", credentials: "omit", integrity: `sha256-${hash}` });
  if (!answer.ok) throw new Error(`${path}: the server says ${answer.status}`);
  await cache.put(keyOf(path, hash), answer.clone());
  return answer;
}

/**
 * Takes the server's version, if it is another one. Rejects if the network or a file fails: then nothing changes but
 * that files which did come need not come again. @param {() => boolean} late whether to keep the version as it is
 */
async function update(late = () => false) {
  const cache = await caches.open(CACHE);
  const answer = await fetch(LIST, { cache: "no-cache", credentials: "omit", signal: AbortSignal.timeout(LIST_MS) });
  if (!answer.ok) throw new Error(`files.json: the server says ${answer.status}`);
  const text = await answer.text();
  if (text === JSON.stringify(await currentList(cache))) return;
  const next = JSON.parse(text);
  await Promise.all(
    Object.entries(next.files).map(async ([path, hash]) => (await cache.match(keyOf(path, hash))) ?? fetched(cache, path, hash)),
  );
  if (late()) return;
  await cache.put(LIST, new Response(text));
  list = next;
  const keys = new Set([LIST, ...[next.files, next.later].flatMap((files) => Object.entries(files).map(([path, hash]) => keyOf(path, hash)))]);
  await Promise.all((await cache.keys()).filter(({ url }) => !keys.has(url)).map((request) => cache.delete(request)));
}

/** A file of the version that is kept, also if it has to come from the network. @param {Request} request */
async function fileOf(request, path) {
  const cache = await caches.open(CACHE);
  const version = await currentList(cache);
  const hash = version?.files[path] ?? version?.later[path];
  return hash ? ((await cache.match(keyOf(path, hash))) ?? fetched(cache, path, hash)) : fetch(request);
}

/** The page, of the newest version that can be had now. @param {any} event of a navigation */
async function opened(event) {
  let late = false;
  const updating = update(() => late).catch(() => {}); // no network: the version that is kept
  event.waitUntil(updating);
  await Promise.race([updating, new Promise((resolve) => setTimeout(resolve, UPDATE_MS))]);
  late = true;
  return fileOf(event.request, PAGE);
}

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(caches.open(CACHE).then(async (cache) => (await currentList(cache)) ?? update()));
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || !url.href.startsWith(SCOPE.href)) return;
  const path = url.pathname.slice(SCOPE.pathname.length);
  if (event.request.mode === "navigate" && ["page/", PAGE].includes(path)) event.respondWith(opened(event));
  else if (path === "" && event.request.mode === "navigate") event.respondWith(Response.redirect(new URL("page/", SCOPE)));
  else if (FILE.test(path)) event.respondWith(fileOf(event.request, path));
});
