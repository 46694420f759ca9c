/** The link that this page was opened by: a one-time link, or a token itself. */

import { text, utf8 } from "../device/bytes.js";
import { PREFIX } from "../device/enrolment.js";

const KEY = "link";
const CLAIM_BYTES = 32;

/**
 * @typedef {{secret: string, claim: string, token: string, used: boolean}} Link `claim`: what makes it this browser's,
 *   whoever else reads the secret; `token`: in place of both; `used`: it has made this browser a device
 */

/**
 * Of the address bar, which does not keep it, or of an earlier visit. It is kept before it is used, so that whatever
 * ends the page on the way, the same claim asks again. `anew`: it was opened just now, and was not used here before.
 * @param {import("../device/disk.js").Disk} disk @returns {Promise<{link: Link | null, anew: boolean}>}
 */
export async function linkOfAddress(disk) {
  const bytes = await disk.get(KEY);
  /** @type {Link | null} */
  const kept = bytes && JSON.parse(text(bytes));
  const said = location.hash.slice(1);
  const secret = new URLSearchParams(said).get("link") ?? "";
  const token = said.startsWith(PREFIX) ? said : "";
  if (!secret && !token) return { link: kept, anew: false };
  const same = kept && kept.secret === secret && kept.token === token;
  const link = same ? kept : { secret, claim: drawn(CLAIM_BYTES), token, used: false };
  await keep(disk, link);
  history.replaceState(null, "", location.pathname + location.search);
  return { link, anew: !link.used };
}

/** It has made this browser a device. @param {import("../device/disk.js").Disk} disk @param {Link | null} link */
export async function linkUsed(disk, link) {
  if (link) await keep(disk, { ...link, used: true });
}

/** @param {import("../device/disk.js").Disk} disk */
export const dropLink = (disk) => disk.delete(KEY);

/** @param {import("../device/disk.js").Disk} disk @param {Link} link */
const keep = (disk, link) => disk.put(KEY, utf8(JSON.stringify(link)));

/** Random hex digits. @param {number} count bytes */
export function drawn(count) {
  return Array.from(crypto.getRandomValues(new Uint8Array(count)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
