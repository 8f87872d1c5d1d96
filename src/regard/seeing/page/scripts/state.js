// The state of the page, kept in the URL hash, so that a link restores it.

export const TABS = ["text", "matrix", "heads", "checks", "picture"];
export const SCALES = ["fixed", "map", "row"];

const READ = {
  trace: whole,
  tab: (text) => (TABS.includes(text) ? text : undefined),
  kind: (text) => text,
  layer: whole,
  head: (text) => (text === "mean" ? text : whole(text)),
  row: whole,
  column: whole,
  side: (text) => (["row", "column"].includes(text) ? text : undefined),
  lock: (text) => text === "1",
  words: (text) => text === "1",
  mass: (text) => (Number(text) >= 0.1 && Number(text) <= 1 ? Number(text) : undefined),
  scale: (text) => (SCALES.includes(text) ? text : undefined),
  overlay: (text) => text === "1",
  sort: (text) => (["layer", "sharp"].includes(text) ? text : undefined),
  text: (text) => text,
  model: (text) => text,
  theme: (text) => (["light", "dark"].includes(text) ? text : undefined),
};

function whole(text) {
  return /^\d{1,6}$/.test(text) ? Number(text) : undefined;
}

/** The settings of a hash; invalid ones are ignored. */
export function readHash(hash) {
  const found = {};
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const value = Object.hasOwn(READ, name) ? READ[name](text) : undefined;
    if (value !== undefined) found[name] = value;
  }
  return found;
}

/** The hash of a state. */
export function writeHash(state) {
  const pairs = new URLSearchParams();
  for (const name of Object.keys(READ)) {
    const value = state[name];
    if (value === undefined || value === null) continue;
    pairs.set(name, typeof value === "boolean" ? String(Number(value)) : String(value));
  }
  return `#${pairs}`;
}

/** Puts the state into the address, without a step in the browser's history. */
export function keepHash(state) {
  const hash = writeHash(state);
  if (hash === location.hash) return;
  try {
    history.replaceState(null, "", hash);
  } catch {
    // a page without an address of its own, like one in a notebook's frame, keeps no state
  }
}
