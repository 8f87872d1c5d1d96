// The current view: the weights of one head, by words or tokens, and which of them are drawn.

import { t } from "./messages.js";
import { items, wordsHelp } from "./tokens.js";

/** The sides of the kinds of maps: rows and columns. */
const SIDES = {
  cross: ["output", "input"],
  "encoder-self": ["input", "input"],
  "decoder-self": ["output", "output-so-far"],
  "encoder-history": ["input", "input-so-far"],
  "decoder-history": ["output", "output-so-far"],
  memory: ["output", "memory"],
  hops: ["hop", "sentence"],
};

/** The names of rows and columns of a kind of maps. */
function sideNames(kind) {
  return SIDES[kind].map((side) => t(`page.side.${side}`));
}

/** The name of a kind of maps, such as “output → input”. */
export function kindName(kind) {
  return Object.hasOwn(SIDES, kind) ? sideNames(kind).join(" → ") : kind;
}

/** The view of a state, whose layer must be loaded. */
export function makeView(trace, layer, state, words) {
  const merge = wordsHelp(trace).sides;
  const [rows, columns] = layer.sides.map((side) => {
    const of = side === "source" ? "source" : "target";
    return items(trace.tokens(side), trace[of].text, words && merge[of]);
  });
  const view = { trace, kind: layer.kind, layer, head: state.head, rows, columns, words };
  view.names = sideNames(layer.kind);
  view.weights = merged(layer.head(state.head), layer.columns, rows, columns);
  view.missing = rows.map((row) => average(row.tokens.map((t) => layer.lacks(state.head, t))));
  view.rowOf = lookup(rows);
  view.columnOf = lookup(columns);
  view.max = view.weights.reduce((a, b) => Math.max(a, b), 0);
  return drawn(view, state.mass);
}

/** Columns of one word are summed, rows of one word are averaged. */
export function merged(weights, width, rows, columns) {
  if (rows.length * columns.length === weights.length) return weights;
  const found = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) => {
    columns.forEach((column, c) => {
      let sum = 0;
      for (const t of row.tokens) for (const k of column.tokens) sum += weights[t * width + k];
      found[r * columns.length + c] = sum / row.tokens.length;
    });
  });
  return found;
}

/** Marks the fewest weights of each row that cover `mass` of it, and the mass of the rest. */
export function drawn(view, mass) {
  const width = view.columns.length;
  view.mask = new Uint8Array(view.weights.length);
  view.hidden = new Float32Array(view.rows.length);
  view.rows.forEach((_, r) => {
    const row = view.weights.subarray(r * width, (r + 1) * width);
    const least = cutoff(row, mass);
    for (let c = 0; c < width; c++) {
      if (row[c] > 0 && row[c] >= least) view.mask[r * width + c] = 1;
      else view.hidden[r] += row[c];
    }
  });
  return view;
}

/** The smallest weight of a row that is drawn, if so much of its mass is. */
export function cutoff(row, mass) {
  const sorted = row.slice().sort();
  const wanted = mass * sorted.reduce((a, b) => a + b, 0);
  if (mass >= 1) return 0;
  let sum = 0;
  for (let i = sorted.length - 1; i >= 0; i--) {
    sum += sorted[i];
    if (sum >= wanted - 1e-6) return sorted[i];
  }
  return 0;
}

/** The weights of a row or a column that are drawn, strongest first, and the mass that is not. */
export function links(view, side, index) {
  const width = view.columns.length;
  const cell = (i) => (side === "row" ? index * width + i : i * width + index);
  const others = side === "row" ? view.columns : view.rows;
  const all = others.map((item, i) => ({ index: i, item, weight: view.weights[cell(i)] }));
  const found = all.filter(({ index: i }) => view.mask[cell(i)]);
  found.sort((a, b) => b.weight - a.weight || a.index - b.index);
  const rest = all.filter(({ index: i, weight }) => !view.mask[cell(i)] && weight > 0);
  return { found, rest: rest.length, hidden: rest.reduce((a, b) => a + b.weight, 0) };
}

/**
 * Whether a row tells a reader something: a token that can be seen looks at another that can be, and
 * more than it would by looking evenly at all that it may see.
 */
export function saysSomething(view, row) {
  const means = ({ special, text }) => !special && text.replace(/[▁Ġ\s]/gu, "") !== "";
  const width = view.columns.length;
  const weights = view.weights.subarray(row * width, (row + 1) * width);
  const seen = view.layer.causal ? weights.filter((weight) => weight > 0).length : width;
  const [best] = links(view, "row", row).found;
  // the first row of a picture is that of its class
  if (!best || seen < 2 || !(means(view.rows[row]) || view.trace.backdrop)) return false;
  return means(best.item) && best.weight >= Math.min(0.75, 2 / seen);
}

/** The share of the ramp that a weight of a row gets. */
export function share(view, scale, row, weight) {
  if (scale === "fixed") return weight;
  if (scale === "map") return view.max > 0 ? weight / view.max : 0;
  view.tops ??= view.rows.map((_, r) => top(view, r));
  return view.tops[row] > 0 ? weight / view.tops[row] : 0;
}

function top(view, r) {
  const width = view.columns.length;
  return view.weights.subarray(r * width, (r + 1) * width).reduce((a, b) => Math.max(a, b), 0);
}

/**
 * How sharp a map looks: the strongest weight of a row, on average. Special tokens do not count: a
 * head that rests on `</s>` has found nothing.
 */
export function sharpness(weights, width, rows, columns) {
  let sum = 0;
  for (const r of rows) {
    let best = 0;
    for (const c of columns) best = Math.max(best, weights[r * width + c]);
    sum += best;
  }
  return rows.length ? sum / rows.length : 0;
}

/** Numbers of the tokens that are not special; of all, if each of them is. */
export function real(tokens) {
  const found = tokens.flatMap((token, i) => (token.special ? [] : [i]));
  return found.length ? found : [...tokens.keys()];
}

/** A max-pooled map, in which a single peak survives. */
export function pooled(weights, mask, rows, columns, height, width) {
  const found = new Float32Array(height * width);
  for (let r = 0; r < rows; r++) {
    const y = Math.floor((r * height) / rows);
    for (let c = 0; c < columns; c++) {
      const i = r * columns + c;
      if (mask && !mask[i]) continue;
      const at = y * width + Math.floor((c * width) / columns);
      if (weights[i] > found[at]) found[at] = weights[i];
    }
  }
  return found;
}

function lookup(found) {
  const by = new Map();
  found.forEach((item, i) => item.tokens.forEach((token) => by.set(token, i)));
  return (token) => by.get(token) ?? 0;
}

function average(values) {
  return values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
}
