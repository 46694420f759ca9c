// Stands for node:test in a browser: keeps the tests, to be run one after the other.

const tests = [];

export const test = (name, ...parts) => tests.push({ name, work: parts.at(-1) });

/** How many there are, and what failed. */
export async function ran() {
  const failed = [];
  for (const { name, work } of tests) {
    try {
      await work();
    } catch (error) {
      failed.push(`${name}: ${error}`);
    }
  }
  return { count: tests.length, failed };
}
