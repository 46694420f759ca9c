/** Deflate (RFC 1951, in zlib's frame), as every browser has it. */

export const NAME = "deflate";

/** Implementations may give other bytes for the same; all of them unpack to the same. @param {Uint8Array} data */
export async function pack(data) {
  const stream = new Blob([/** @type {any} */ (data)]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
