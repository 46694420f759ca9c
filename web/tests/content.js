/** The test content of tests/web/writers/transfer.py: byte i is (i * i + floor(i / 251)) mod 256. */
export const content = (size) => Uint8Array.from({ length: size }, (_, i) => (i * i + Math.floor(i / 251)) % 256);
