// Sentences about a row or a column, for the panel and for screen readers.

import { number } from "./dom.js";
import { short } from "./tokens.js";
import { notKept } from "./top_weights.js";
import { links } from "./view.js";

// the marks keep a token's direction from turning the words around it
const quoted = (item) => `“\u2068${short(item.text, 40)}\u2069”`;

/** The sentence about what is pointed at. */
export function sentence(view, at) {
  if (!view.rows.length || !view.columns.length) return "There is nothing to look at.";
  return at.side === "column" ? aboutColumn(view, at) : aboutRow(view, at);
}

function aboutRow(view, at) {
  const row = view.rows[at.row];
  const { found, rest, hidden } = links(view, "row", at.row);
  const some = found.slice(0, 5).map((link) => `${quoted(link.item)} ${number(link.weight)}`);
  const more = found.slice(5);
  const left = hidden + more.reduce((a, b) => a + b.weight, 0);
  const others = rest + more.length;
  const looked = some.length ? `looked at ${some.join(", ")}` : "looked at nothing";
  const spread = others ? `; ${number(left)} is spread over ${others} more` : "";
  const lost = view.layer.strongest ? "was not kept" : "went nowhere";
  const lacks = view.missing[at.row] > 0.005 ? `; ${number(view.missing[at.row])} ${lost}` : "";
  return `${place(row, at.row, view.rows, view.names[0])} ${looked}${spread}${lacks}.`;
}

function aboutColumn(view, at) {
  const column = view.columns[at.column];
  const { found, rest, hidden } = links(view, "column", at.column);
  const some = found.slice(0, 5).map((link) => `${quoted(link.item)} ${number(link.weight)}`);
  const by = some.length ? `was looked at by ${some.join(", ")}` : "is not drawn in any row";
  const others = rest + Math.max(0, found.length - 5);
  const left = hidden + found.slice(5).reduce((a, b) => a + b.weight, 0);
  const spread = others ? `; ${number(left)} in ${others} more rows` : "";
  const only = view.layer.strongest ? ", as far as weights were kept" : "";
  return `${place(column, at.column, view.columns, view.names[1])} ${by}${spread}${only}.`;
}

/** The sentence about one weight. */
export function cellSentence(view, at) {
  const weight = view.weights[at.row * view.columns.length + at.column];
  const [row, column] = [view.rows[at.row], view.columns[at.column]];
  if (notKept(view, at.row, at.column)) {
    return `${quoted(row)} looked at ${quoted(column)} with at most ${exact(view.layer.most(view.head, at.row))}: the weight was not kept.`;
  }
  return `${quoted(row)} looked at ${quoted(column)} with ${exact(weight)}.`;
}

/** A weight with three digits that count. */
export function exact(weight) {
  if (weight === 0) return "0";
  return weight >= 0.001 ? weight.toFixed(3) : weight.toExponential(1);
}

function place(item, index, all, name) {
  const prob = item.prob === null ? "" : `, probability ${number(item.prob)},`;
  const cap = name[0].toUpperCase() + name.slice(1);
  return `${cap} ${index + 1} of ${all.length}, ${quoted(item)}${prob}`;
}
