/** Deflate (RFC 1951, in zlib's frame), which every browser has. Part of strategies/codecs/codec.py. */

export const NAME = "deflate";

/** Browsers may pack the same data into different bytes, which all unpack to that data. @param {Uint8Array} data */
export async function pack(data) {
  const stream = new Blob([/** @type {any} */ (data)]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
