// Sentences about a row or a column, for the panel and for screen readers.

import { number } from "./dom.js";
import { t } from "./messages.js";
import { short } from "./tokens.js";
import { links } from "./view.js";

// the marks keep a token's direction from turning the words around it
const quoted = (item) => `“\u2068${short(item.text, 40)}\u2069”`;

/** The sentence about what is pointed at. */
export function sentence(view, at) {
  if (!view.rows.length || !view.columns.length) return t("page.words.nothing");
  return at.side === "column" ? aboutColumn(view, at) : aboutRow(view, at);
}

const listed = (found) => found.slice(0, 5).map((link) => `${quoted(link.item)} ${number(link.weight)}`).join(t("page.words.comma"));

function aboutRow(view, at) {
  const row = view.rows[at.row];
  const { found, rest, hidden } = links(view, "row", at.row);
  const left = found.slice(5).reduce((a, b) => a + b.weight, hidden);
  const others = rest + Math.max(0, found.length - 5);
  const looked = found.length ? t("page.words.looked", { inputs: listed(found) }) : t("page.words.looked-at-nothing");
  const spread = others ? t("page.words.spread", { weight: number(left), count: others }) : "";
  const lacks = view.missing[at.row] > 0.005 ? t("page.words.went-nowhere", { weight: number(view.missing[at.row]) }) : "";
  return t("page.words.row", { subject: place(row, at.row, view.rows, view.names[0]), looked, more: spread + lacks });
}

function aboutColumn(view, at) {
  const column = view.columns[at.column];
  const { found, rest, hidden } = links(view, "column", at.column);
  const looked = found.length ? t("page.words.looked-at-by", { outputs: listed(found) }) : t("page.words.not-drawn");
  const others = rest + Math.max(0, found.length - 5);
  const left = hidden + found.slice(5).reduce((a, b) => a + b.weight, 0);
  const spread = others ? t("page.words.more-rows", { weight: number(left), count: others }) : "";
  return t("page.words.row", { subject: place(column, at.column, view.columns, view.names[1]), looked, more: spread });
}

/** The sentence about one weight. */
export function cellSentence(view, at) {
  const weight = view.weights[at.row * view.columns.length + at.column];
  const [row, column] = [view.rows[at.row], view.columns[at.column]];
  return t("page.words.cell", { row: quoted(row), column: quoted(column), weight: exact(weight) });
}

/** A weight with three digits that count. */
export function exact(weight) {
  if (weight === 0) return "0";
  return weight >= 0.001 ? weight.toFixed(3) : weight.toExponential(1);
}

function place(item, index, all, name) {
  const values = { side: name[0].toUpperCase() + name.slice(1), number: index + 1, count: all.length, item: quoted(item) };
  return item.prob === null ? t("page.words.place", values) : t("page.words.place-probability", { ...values, probability: number(item.prob) });
}
