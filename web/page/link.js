/** The link by which the page was opened: a one-time link, or a token. */

import { text, utf8 } from "../device/bytes.js";
import { PREFIX } from "../device/enrolment.js";

const KEY = "link";
const CLAIM_BYTES = 32;

/**
 * @typedef {{secret: string, claim: string, token: string, used: boolean}} Link `claim`: a secret of this browser;
 *   after its first use the link is valid for this claim only. `token`: in place of both. `used`: this browser has
 *   joined by it
 */

/**
 * The link in the address bar, from which it is removed, or that of an earlier visit. It is stored before it is used,
 * so that the same claim asks again if the page ends meanwhile. `anew`: it was opened just now, and not used here
 * before.
 * @param {import("../device/disk.js").Disk} disk @returns {Promise<{link: Link | null, anew: boolean}>}
 */
export async function linkOfAddress(disk) {
  const bytes = await disk.get(KEY);
  /** @type {Link | null} */
  const stored = bytes && JSON.parse(text(bytes));
  const fragment = location.hash.slice(1);
  const secret = new URLSearchParams(fragment).get("link") ?? "";
  const token = fragment.startsWith(PREFIX) ? fragment : "";
  if (!secret && !token) return { link: stored, anew: false };
  const same = stored && stored.secret === secret && stored.token === token;
  const link = same ? stored : { secret, claim: drawn(CLAIM_BYTES), token, used: false };
  await keep(disk, link);
  history.replaceState(null, "", location.pathname + location.search);
  return { link, anew: !link.used };
}

/** Note that this browser joined by the link. @param {import("../device/disk.js").Disk} disk @param {Link | null} link */
export async function linkUsed(disk, link) {
  if (link) await keep(disk, { ...link, used: true });
}

/** @param {import("../device/disk.js").Disk} disk */
export const dropLink = (disk) => disk.delete(KEY);

/** @param {import("../device/disk.js").Disk} disk @param {Link} link */
const keep = (disk, link) => disk.put(KEY, utf8(JSON.stringify(link)));

/** `count` random bytes in hex digits. @param {number} count */
export function drawn(count) {
  return Array.from(crypto.getRandomValues(new Uint8Array(count)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
