// Source and target as running text. Pointing at a token highlights tokens of the other text.

import { bdi, h, number, oncePerFrame, s } from "./dom.js";
import { t } from "./messages.js";
import { colour, ink, INKS } from "./palette.js";
import { direction } from "./tokens.js";
import { links, share } from "./view.js";

/** Tokens of a side that are in the page at once. */
const MOST = 600;
/** Tokens from which on a text scrolls by itself, so that the other one stays in sight. */
const TALL = 120;

/** Puts both texts into the stage. */
export function mount(app, stage) {
  const { view } = app;
  const curves = s("svg", { class: "curves", "aria-hidden": "true" });
  const looked = block(app, "column", view.columns, view.names[1]);
  const looking = block(app, "row", view.rows, view.names[0]);
  const dir = [looked, looking].every(({ line }) => line.dir === "rtl") ? "rtl" : "ltr";
  stage.replaceChildren(h("div", { class: "texts", dir }, curves, looked.node, looking.node));
  app.parts = { curves, column: looked, row: looking };
  const again = oncePerFrame(() => app.parts.linked?.());
  for (const { line } of [looked, looking]) line.addEventListener("scroll", again);
}

function block(app, side, all, name) {
  const { view } = app;
  const [from, to] = range(all, app.at()[side]);
  const of = view.layer.sides[side === "row" ? 0 : 1];
  const texts = { source: view.trace.source.text, slots: "", hops: "" };
  const whole = texts[of] ?? view.trace.target.text;
  const tokens = new Map();
  const tall = to - from > TALL && { tabindex: "0", role: "group", "aria-label": t("page.text.label", { side: name }) };
  const line = h("p", { class: tall ? "line tall" : "line", dir: direction(whole), ...tall });
  const letters = [...whole];
  for (let i = from; i < to; i++) {
    line.append(gap(all[i - 1], all[i], letters), token(app, side, all[i], i, tokens));
  }
  const role = t(side === "row" ? "page.looks" : "page.is-looked-at");
  const note = to - from < all.length ? cut(from, to, all.length) : null;
  const title = h("h2", {}, name, h("span", { class: "dim" }, ` ${role}`));
  return { node: h("section", { class: `block ${side}` }, title, line, note), tokens, line };
}

function token(app, side, item, i, tokens) {
  const found = bdi(item.label, { class: item.special ? "token special" : "token" });
  const at = { side, [side]: i };
  found.addEventListener("pointerenter", (event) => {
    if (event.pointerType !== "touch") app.hover(at);
  });
  found.addEventListener("pointerleave", () => app.leave());
  found.addEventListener("click", () => app.pick(at));
  tokens.set(i, found);
  return found;
}

/** The text between two tokens, or a space if it is unknown. */
function gap(before, item, letters) {
  if (!before) return "";
  if (before.span && item.span) {
    // a space that is a token of its own is drawn as one
    return letters.slice(before.span[1], item.span[0]).join("");
  }
  return " ";
}

function range(all, index) {
  if (all.length <= MOST) return [0, all.length];
  const from = Math.max(0, Math.min(all.length - MOST, Math.floor(index / 300) * 300 - 100));
  return [from, from + MOST];
}

function cut(from, to, all) {
  return h("p", { class: "note" }, t("page.text.cut", { from: from + 1, to, count: all }));
}

/** Highlights the selection. */
export function draw(app) {
  const { view, parts } = app;
  const at = app.at();
  const other = at.side === "row" ? "column" : "row";
  if (!parts[at.side].tokens.has(at[at.side])) mount(app, app.stage);
  const { found } = links(view, at.side, at[at.side]);
  const lit = new Map(found.map((link) => [link.index, link.weight]));
  for (const [i, node] of app.parts[other].tokens) {
    light(app, node, lit.has(i) ? lit.get(i) : null, at.side === "row" ? at.row : i);
    node.classList.remove("chosen");
  }
  for (const [i, node] of app.parts[at.side].tokens) {
    light(app, node, null, i);
    node.classList.toggle("chosen", i === at[at.side]);
    node.classList.toggle("locked", i === at[at.side] && app.state.lock);
  }
  reveal(app.parts[at.side].line, app.parts[at.side].tokens.get(at[at.side]));
  const far = found.map((link) => app.parts[other].tokens.get(link.index)).filter(Boolean);
  if (far.length && !far.some((node) => inSight(app.parts[other].line, node))) reveal(app.parts[other].line, far[0]);
  app.parts.linked = () => connect(app, at, found);
  app.parts.linked();
}

function inSight(line, node) {
  if (!line.classList.contains("tall")) return true;
  const [box, frame] = [node.getBoundingClientRect(), line.getBoundingClientRect()];
  return box.bottom > frame.top + 2 && box.top < frame.bottom - 2;
}

/** Scrolls a text, and nothing but it, to a token. */
function reveal(line, node) {
  if (!node || inSight(line, node)) return;
  const [box, frame] = [node.getBoundingClientRect(), line.getBoundingClientRect()];
  line.scrollTop += (box.top + box.bottom - frame.top - frame.bottom) / 2;
}

function light(app, node, weight, row) {
  node.classList.toggle("lit", weight !== null);
  if (weight === null) {
    node.style.background = node.style.color = "";
    node.removeAttribute("title");
    return;
  }
  const strength = share(app.view, app.state.scale, row, weight);
  node.style.background = colour(app.theme, strength);
  node.style.color = ink(app.theme, strength);
  node.title = number(weight);
}

/** Curves between linked tokens, as wide as their weights. */
function connect(app, at, found) {
  const { curves, row, column } = app.parts;
  const frame = curves.getBoundingClientRect();
  const chosen = app.parts[at.side].tokens.get(at[at.side]);
  const ends = at.side === "row" ? column.tokens : row.tokens;
  const seen = chosen && inSight(app.parts[at.side].line, chosen);
  const paths = (seen ? found.slice(0, 40) : []).flatMap((link) => {
    const end = ends.get(link.index);
    if (!end || !chosen || !inSight(ends === row.tokens ? row.line : column.line, end)) return [];
    const [low, high] = at.side === "row" ? [chosen, end] : [end, chosen];
    return [path(anchor(low, frame, "top"), anchor(high, frame, "bottom"), link.weight)];
  });
  curves.replaceChildren(...paths);
  curves.style.color = INKS[app.theme].mark;
}

function anchor(node, frame, edge) {
  const box = node.getClientRects()[0] ?? node.getBoundingClientRect();
  return [box.left + box.width / 2 - frame.left, box[edge] - frame.top];
}

function path([x1, y1], [x2, y2], weight) {
  const bend = (y1 - y2) / 2;
  return s("path", {
    d: `M${x1} ${y1}C${x1} ${y1 - bend} ${x2} ${y2 + bend} ${x2} ${y2}`,
    "stroke-width": (0.75 + 5 * Math.min(1, weight)).toFixed(2),
    "stroke-opacity": (0.25 + 0.6 * Math.min(1, weight)).toFixed(2),
  });
}

/** Arrow keys go along a text; up and down go to the strongest partner on the other side. */
export function arrow(app, dx, dy) {
  const { view } = app;
  const at = app.at();
  if (dy) {
    const wanted = dy < 0 ? "column" : "row";
    if (wanted === at.side) return;
    const best = links(view, at.side, at[at.side]).found[0];
    app.move({ side: wanted, [wanted]: best ? best.index : at[wanted] });
    return;
  }
  const all = at.side === "row" ? view.rows : view.columns;
  const node = app.parts[at.side].tokens.get(at[at.side]);
  const step = node?.closest(".line")?.dir === "rtl" ? -dx : dx;
  const next = Math.max(0, Math.min(all.length - 1, at[at.side] + step));
  app.move({ side: at.side, [at.side]: next });
}
