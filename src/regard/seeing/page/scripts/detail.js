// The panel beside the figure: the selection, its sentence and its strongest links as bars.

import { bdi, fill, h, number } from "./dom.js";
import { rich, t } from "./messages.js";
import { colour } from "./palette.js";
import { short } from "./tokens.js";
import { links, share } from "./view.js";

const MOST = 12;

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
    bars.push(remainder(t("page.detail.nowhere"), view.missing[at.row]));
  }
  fill(
    place,
    h("h2", {}, bdi(short(item.text, 60)), chance(item)),
    h("p", { class: "dim" }, t(at.side === "row" ? "page.detail.looked-at" : "page.detail.looked-at-by")),
    h("ol", { class: "bars" }, ...bars),
    alternatives(item),
  );
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
