// The weights as a real table, a window of it at a time.

import { bdi, h, number } from "./dom.js";
import { t } from "./messages.js";
import { colour, ink } from "./palette.js";
import { short } from "./tokens.js";
import { exact } from "./words.js";
import { share } from "./view.js";

const ROWS = 20;
const COLUMNS = 12;

/** Fills the element with the part of the table that the selection is in. */
export function drawTable(app, place) {
  const { view } = app;
  const at = app.at();
  const rows = span(at.row, view.rows.length, ROWS);
  const columns = span(at.column, view.columns.length, COLUMNS);
  const key = [rows, columns, app.version, app.theme].join();
  if (place.dataset.key !== key) {
    place.dataset.key = key;
    place.replaceChildren(...pager(app, rows, columns), grid(app, rows, columns));
  }
  mark(place, at);
}

function span(index, count, size) {
  if (count <= size + 6) return [0, count];
  const from = Math.min(Math.floor(index / size) * size, count - 1);
  return [from, Math.min(count, from + size)];
}

function grid(app, [r0, r1], [c0, c1]) {
  const { view, state, theme } = app;
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, `${view.names[0]} ↓  ${view.names[1]} →`),
    ...view.columns.slice(c0, c1).map((item) => h("th", { scope: "col" }, bdi(short(item.text)))),
    h("th", { scope: "col" }, t("page.table.not-drawn")),
  );
  const body = view.rows.slice(r0, r1).map((item, y) => {
    const r = r0 + y;
    const cells = view.columns.slice(c0, c1).map((_, x) => cell(app, r, c0 + x, state, theme));
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, bdi(short(item.text))),
      ...cells,
      h("td", { class: "dim" }, number(view.hidden[r])),
    );
  });
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": t("page.table.label") },
    h("table", { class: "weights" }, h("caption", {}, h("span", {}, caption(view))), h("thead", {}, head), h("tbody", {}, ...body)),
  );
}

function caption(view) {
  const head = view.head === "mean" ? t("page.table.mean") : t("page.head", { head: view.head });
  return t("page.table.caption", { side: view.names[0], layer: view.layer.layer, head });
}

function cell(app, r, c, state, theme) {
  const { view } = app;
  const i = r * view.columns.length + c;
  const weight = view.weights[i];
  // a row of a causal map cannot see what comes later
  const unseen = view.layer.causal && weight === 0;
  const found = h("td", { title: exact(weight), "data-at": `${r},${c}` }, unseen ? "" : number(weight));
  if (view.mask[i]) {
    const strength = share(view, state.scale, r, weight);
    found.style.background = colour(theme, strength);
    found.style.color = ink(theme, strength);
  }
  return found;
}

function mark(place, at) {
  place.querySelector(".here")?.classList.remove("here");
  place.querySelector(`[data-at="${at.row},${at.column}"]`)?.classList.add("here");
}

/** Buttons to the parts before and after, where there are any. */
function pager(app, rows, columns) {
  const { view } = app;
  return [
    line(app, "row", rows, view.rows.length, ROWS),
    line(app, "column", columns, view.columns.length, COLUMNS),
  ].filter(Boolean);
}

function line(app, side, [from, to], count, size) {
  if (to - from === count) return null;
  const button = (text, target, label) =>
    h(
      "button",
      {
        type: "button",
        "aria-label": label,
        disabled: target < 0 || target >= count,
        onclick: () => app.move({ side: app.at().side, [side]: target }, { focus: false }),
      },
      text,
    );
  return h(
    "p",
    { class: "pager" },
    button("‹", from - size, t(`page.table.${side}.earlier`)),
    " ", t(`page.table.${side}.range`, { from: from + 1, to, count }), " ",
    button("›", from + size, t(`page.table.${side}.later`)),
  );
}
