// The panel beside the figure: the selection, its sentence and its strongest links as bars.

import { bdi, fill, h, number } from "./dom.js";
import { rich, t } from "./messages.js";
import { colour } from "./palette.js";
import { short } from "./tokens.js";
import { links, share } from "./view.js";

const MOST = 12;
/** Dimensions that are named of a score. */
const DIMENSIONS = 6;

/** Fills the panel. */
export function drawDetail(app, place) {
  const { view } = app;
  const at = app.at();
  const item = at.side === "row" ? view.rows[at.row] : view.columns[at.column];
  if (!item) {
    fill(place);
    return;
  }
  const { found, rest, hidden } = links(view, at.side, at[at.side]);
  const bars = found.slice(0, MOST).map((link) => bar(app, at, link));
  const left = found.slice(MOST).reduce((sum, link) => sum + link.weight, hidden);
  const others = rest + Math.max(0, found.length - MOST);
  if (others) bars.push(remainder(t("page.more", { count: others }), left));
  if (at.side === "row" && view.missing[at.row] > 0.005) {
    bars.push(remainder(t(view.layer.strongest ? "page.detail.not-kept" : "page.detail.nowhere"), view.missing[at.row]));
  }
  fill(
    place,
    h("h2", {}, bdi(short(item.text, 60)), chance(item)),
    h("p", { class: "dim" }, t(at.side === "row" ? "page.detail.looked-at" : "page.detail.looked-at-by")),
    h("ol", { class: "bars" }, ...bars),
    alternatives(item),
    at.side === "row" ? explained(app, at) : null,
  );
}

/** How the weight of the chosen cell comes about: q·k, scale, score, and the largest dimensions. */
function explained(app, at) {
  const { view } = app;
  const { queries } = view.layer;
  const [row, column] = [view.rows[at.row], view.columns[at.column]];
  if (!queries || !column) return null;
  const title = h("h3", {}, ...rich("page.detail.weight-of", { token: bdi(short(column.text, 24)) }));
  if (view.head === "mean" || row.tokens.length > 1 || column.tokens.length > 1) {
    return h("section", { class: "explained" }, title, h("p", { class: "dim" }, t("page.detail.choose-head")));
  }
  const dim = queries.q.shape[2];
  const vector = ({ shape, values }, i) => values.subarray((view.head * shape[1] + i) * dim, (view.head * shape[1] + i + 1) * dim);
  const [q, k] = [vector(queries.q, row.tokens[0]), vector(queries.k, column.tokens[0])];
  const parts = Array.from(q, (value, d) => ({ d, share: value * k[d] * queries.scale }));
  const product = parts.reduce((sum, part) => sum + part.share, 0) / queries.scale;
  const weight = view.weights[at.row * view.columns.length + at.column];
  const facts = [["q · k", product], [t("page.detail.scale"), queries.scale], [t("page.detail.score"), product * queries.scale]];
  parts.sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
  const most = Math.max(1e-9, Math.abs(parts[0]?.share ?? 0));
  const bars = parts.slice(0, DIMENSIONS).map(({ d, share: part }) =>
    h(
      "li",
      {},
      h("span", {}, t("page.detail.dimension", { number: d })),
      h("span", { class: "bar", "aria-hidden": "true" }, h("i", { class: part < 0 ? "less" : null, style: { width: `${((100 * Math.abs(part)) / most).toFixed(1)}%` } })),
      h("span", { class: "value" }, signed(part)),
    ),
  );
  return h(
    "section",
    { class: "explained" },
    title,
    h("dl", {}, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, signed(value))]),
      h("dt", {}, t("page.weight")), h("dd", {}, number(weight))),
    h("p", { class: "dim" }, t("page.detail.dimensions", { count: dim })),
    h("ol", { class: "bars" }, ...bars),
  );
}

function signed(value) {
  return `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(Math.abs(value) < 10 ? 3 : 1)}`;
}

function chance(item) {
  return item.prob === null ? null : h("span", { class: "chance" }, `p ${number(item.prob)}`);
}

function bar(app, at, link) {
  const row = at.side === "row" ? at.row : link.index;
  const inner = h("i", {
    style: {
      width: `${Math.min(100, 100 * link.weight).toFixed(1)}%`,
      background: colour(app.theme, Math.max(0.45, share(app.view, app.state.scale, row, link.weight))),
    },
  });
  return h(
    "li",
    {},
    bdi(short(link.item.text, 24), { class: link.item.special ? "special" : null }),
    h("span", { class: "bar", "aria-hidden": "true" }, inner),
    h("span", { class: "value" }, number(link.weight)),
  );
}

function remainder(name, weight) {
  const inner = h("i", { class: "rest", style: { width: `${Math.min(100, 100 * weight).toFixed(1)}%` } });
  return h(
    "li",
    { class: "rest" },
    h("span", {}, name),
    h("span", { class: "bar", "aria-hidden": "true" }, inner),
    h("span", { class: "value" }, number(weight)),
  );
}

function alternatives(item) {
  if (!item.alternatives?.length) return null;
  const some = item.alternatives
    .slice(0, 5)
    .flatMap(([text, prob], i) => [i ? t("page.words.comma") : "", bdi(short(text, 24)), ` ${number(prob)}`]);
  return h("p", { class: "dim" }, ...rich("page.detail.alternatives", { tokens: some }).flat());
}
