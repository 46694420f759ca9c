// Stands for node:fs in a browser, for the file of vectors that a test reads as it is loaded.

export function readFileSync(url) {
  const asked = new XMLHttpRequest();
  asked.open("GET", url, false);
  asked.send();
  if (asked.status !== 200) throw new Error(`${url}: ${asked.status}`);
  return asked.responseText;
}
