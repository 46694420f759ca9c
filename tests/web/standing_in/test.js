// Stands for node:test in a browser: keeps the tests, to be run one after the other.

const kept = [];

export const test = (name, ...given) => kept.push({ name, work: given.at(-1) });

/** How many there are, and what failed. */
export async function ran() {
  const failed = [];
  for (const { name, work } of kept) {
    try {
      await work();
    } catch (error) {
      failed.push(`${name}: ${error}`);
    }
  }
  return { count: kept.length, failed };
}
