// The heat map: rows are queries, columns keys. A long map has an overview beside its window.

import { h, oncePerFrame } from "./dom.js";
import { t } from "./messages.js";
import * as overlay from "./overlay.js";
import { colour, ink, INKS, ramp } from "./palette.js";
import { short } from "./tokens.js";
import { pooled, share } from "./view.js";

const FONT = 'system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const LEAST = 17; // the smallest cell beside which a label can be read
const MOST = 54;
const TALL = 34; // rows of a window

/** Puts the canvas into the stage, and an overview where the map is too large for it. */
export function mount(app, stage) {
  const canvas = h("canvas", { class: "map", "aria-hidden": "true" });
  const overview = h("canvas", { class: "overview", "aria-hidden": "true" });
  const note = h("p", { class: "note" });
  const side = h("div", { class: "beside", hidden: true }, overview, note);
  stage.replaceChildren(h("div", { class: "maps" }, side, h("div", { class: "wide" }, canvas)));
  app.parts = { canvas, overview, side, note, origin: [0, 0] };
  follow(app);
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const at = hit(app, event);
    if (at) app.hover(at);
    else app.leave();
  });
  canvas.addEventListener("pointerleave", () => app.leave());
  canvas.addEventListener("click", (event) => {
    const at = hit(app, event);
    if (at) app.pick(at);
  });
  const drag = (event) => event.buttons && jump(app, event);
  overview.addEventListener("pointerdown", drag);
  overview.addEventListener("pointermove", drag);
  app.parts.redraw = oncePerFrame(() => draw(app));
}

/** Measures: what fits into the width there is, and how large its labels are. */
export function layout(view, width, context, origin) {
  const font = width < 420 ? 11 : 12.5;
  context.font = `600 ${font}px ${FONT}`; // the chosen label is bold, and must have room
  const fit = Math.min(150, width * 0.28);
  const label = (item) => clipped(context, item.label, fit);
  const total = view.columns.length;
  const tall = width < 420 ? 18 : TALL;
  const rows = view.rows.length <= tall + 6 ? view.rows.length : tall;
  const [r0, c0] = [Math.min(origin[0], view.rows.length - rows), origin[1]];
  const rowLabels = view.rows.slice(r0, r0 + rows).map(label);
  const left = Math.ceil(Math.max(14, ...rowLabels.map((text) => context.measureText(text).width)));
  const room = width - left - 26;
  const cell = Math.max(LEAST, Math.min(MOST, Math.floor(room / total), Math.floor(660 / rows)));
  const columns = Math.max(1, Math.min(total, Math.floor(room / cell)));
  const start = Math.max(0, Math.min(c0, total - columns));
  const columnLabels = view.columns.slice(start, start + columns).map(label);
  const widest = Math.max(0, ...columnLabels.map((text) => context.measureText(text).width));
  const flat = widest <= cell - 4;
  const top = flat ? font + 12 : Math.ceil(widest * 0.72 + font + 8);
  return {
    font, left: left + 10, top, cell, rows, columns, flat, rowLabels, columnLabels,
    r0: Math.max(0, r0), c0: start, width, lean: flat ? 0 : widest * 0.7,
    height: top + rows * cell + 6,
    whole: rows === view.rows.length && columns === total,
  };
}

function clipped(context, label, width) {
  let text = short(label, 60);
  if (context.measureText(text).width <= width) return text;
  const parts = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
  while (parts.length > 1 && context.measureText(`${parts.join("")}…`).width > width) parts.pop();
  text = parts.join("");
  return `${text}…`;
}

/** Draws the window, and the overview if there is one. */
export function draw(app) {
  const { view, parts, state, theme } = app;
  const long = tooLarge(app);
  parts.side.hidden = !long;
  const width = Math.max(220, Math.floor(parts.canvas.parentElement.clientWidth));
  const context = parts.canvas.getContext("2d");
  let box = layout(view, width, context, parts.origin);
  parts.box = box;
  if (parts.chase && chase(app, box)) box = parts.box = layout(view, width, context, parts.origin);
  parts.chase = false;
  sized(parts.canvas, context, box.left + box.columns * box.cell + 16 + box.lean, box.height, width);
  context.font = `${box.font}px ${FONT}`;
  cells(context, app, box);
  labels(context, app, box);
  marks(context, app, box);
  if (long) drawOverview(app, box);
}

function tooLarge(app) {
  const { view, parts } = app;
  const width = parts.canvas.closest(".maps").clientWidth;
  const box = layout(view, width, parts.canvas.getContext("2d"), parts.origin);
  return !box.whole;
}

function sized(canvas, context, wanted, height, most) {
  const width = Math.min(Math.ceil(wanted), most);
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(scale, 0, 0, scale, 0, 0);
}

function cells(context, app, box) {
  const { view, theme, state } = app;
  for (let y = 0; y < box.rows; y++) {
    for (let x = 0; x < box.columns; x++) {
      const [r, c] = [box.r0 + y, box.c0 + x];
      const i = r * view.columns.length + c;
      const strength = view.mask[i] ? share(view, state.scale, r, view.weights[i]) : 0;
      const [left, top] = [box.left + x * box.cell, box.top + y * box.cell];
      if (view.overlay) {
        overlaid(context, app, r, c, left, top, box.cell);
        continue;
      }
      context.fillStyle = colour(theme, strength);
      context.fillRect(left, top, box.cell - 1, box.cell - 1);
      if (box.cell >= 30 && view.mask[i]) {
        value(context, view.weights[i], strength, left, top, box.cell, theme);
      }
    }
  }
}

/** A cell of all heads; a large one names the head, for readers without its colour. */
function overlaid(context, app, r, c, left, top, size) {
  const found = overlay.cell(app.view, app.state.scale, app.theme, r, c);
  context.fillStyle = found.fill;
  context.fillRect(left, top, size - 1, size - 1);
  if (size < 24 || found.strength < 0.05) return;
  context.save();
  context.font = `10.5px ${FONT}`;
  context.fillStyle = overlay.inkOn(found, app.theme);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(`h${found.head}`, left + (size - 1) / 2, top + size / 2);
  context.restore();
}

function value(context, weight, strength, left, top, cell, theme) {
  context.save();
  context.font = `10.5px ${FONT}`;
  context.fillStyle = ink(theme, strength);
  context.textAlign = "center";
  context.textBaseline = "middle";
  const text = weight >= 0.995 ? "1.0" : weight.toFixed(2).slice(1);
  context.fillText(text, left + (cell - 1) / 2, top + cell / 2);
  context.restore();
}

function labels(context, app, box) {
  const { view, theme } = app;
  const at = app.at();
  const colours = INKS[theme];
  context.textBaseline = "middle";
  box.rowLabels.forEach((text, y) => {
    const r = box.r0 + y;
    const chosen = r === at.row;
    style(context, box, chosen && at.side === "row", view.rows[r].special, chosen, colours);
    context.textAlign = "right";
    context.fillText(text, box.left - 9, box.top + (y + 0.5) * box.cell);
  });
  box.columnLabels.forEach((text, x) => {
    const c = box.c0 + x;
    const chosen = c === at.column;
    style(context, box, chosen, view.columns[c].special, chosen, colours);
    const middle = box.left + (x + 0.5) * box.cell;
    context.save();
    context.translate(middle, box.top - 7);
    context.textAlign = box.flat ? "center" : "left";
    if (!box.flat) context.rotate(-Math.PI / 4);
    context.fillText(text, 0, box.flat ? -4 : 0);
    context.restore();
  });
}

function style(context, box, bold, special, chosen, colours) {
  context.font = `${bold ? "600 " : ""}${box.font}px ${FONT}`;
  context.fillStyle = chosen ? colours.text : special ? colours.dim : colours.text;
}

function marks(context, app, box) {
  const at = app.at();
  const colours = INKS[app.theme];
  const [y, x] = [at.row - box.r0, at.column - box.c0];
  context.strokeStyle = colours.text;
  context.lineWidth = app.state.lock ? 2 : 1;
  const [wide, tall] = [box.columns * box.cell, box.rows * box.cell];
  if (at.side === "row" && y >= 0 && y < box.rows) {
    context.strokeRect(box.left - 1.5, box.top + y * box.cell - 1.5, wide + 2, box.cell + 2);
  }
  if (at.side === "column" && x >= 0 && x < box.columns) {
    context.strokeRect(box.left + x * box.cell - 1.5, box.top - 1.5, box.cell + 2, tall + 2);
  }
  if (y < 0 || x < 0 || y >= box.rows || x >= box.columns) return;
  const [left, top] = [box.left + x * box.cell, box.top + y * box.cell];
  context.lineWidth = 2;
  context.strokeRect(left, top, box.cell - 1, box.cell - 1);
}

function drawOverview(app, box) {
  const { view, parts, theme, state } = app;
  const [rows, columns] = [view.rows.length, view.columns.length];
  const most = Math.min(320, parts.overview.parentElement.clientWidth || 280);
  const factor = most / Math.max(rows, columns);
  const [height, width] = [rows, columns].map((n) => Math.max(8, Math.round(n * factor)));
  const key = [state.scale, theme, height, width].join();
  if (parts.pooled?.key !== key) {
    parts.pooled = { key, small: picture(view, state.scale, theme, Math.min(rows, height), Math.min(columns, width)) };
  }
  const { small } = parts.pooled;
  const context = parts.overview.getContext("2d");
  sized(parts.overview, context, width, height, width);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, width, height);
  context.strokeStyle = INKS[theme].mark;
  context.lineWidth = 2;
  const [sx, sy] = [width / columns, height / rows];
  context.strokeRect(box.c0 * sx, box.r0 * sy, box.columns * sx, box.rows * sy);
  const at = app.at();
  context.fillStyle = INKS[theme].mark;
  context.fillRect(0, (at.row + 0.5) * sy - 0.5, width, 1);
  parts.note.textContent = t("page.matrix.all", {
    rows, columns, r0: box.r0 + 1, r1: box.r0 + box.rows, c0: box.c0 + 1, c1: box.c0 + box.columns,
  });
}

/** A map as an image with one pixel per pooled cell. */
export function picture(view, scale, theme, height, width) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const [rows, columns] = [view.rows.length, view.columns.length];
  const values = pooled(view.overlay?.weights ?? view.weights, view.overlay ? null : view.mask, rows, columns, height, width);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const table = ramp(theme);
  const owners = view.overlay && overlay.pooledHues(view, values, height, width, theme);
  for (let i = 0; i < values.length; i++) {
    const row = Math.floor((Math.floor(i / width) * rows) / height);
    const strength = share(view.overlay ?? view, scale, row, values[i]);
    const dot = view.overlay ? owners[i](strength) : table[Math.round(255 * Math.min(1, strength))];
    image.data.set([...dot, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function hit(app, event) {
  const { canvas, box } = app.parts;
  const frame = canvas.getBoundingClientRect();
  const x = Math.floor((event.clientX - frame.left - box.left) / box.cell);
  const y = Math.floor((event.clientY - frame.top - box.top) / box.cell);
  if (x >= box.columns || y >= box.rows || (x < 0 && y < 0)) return null;
  if (x < 0) return { side: "row", row: box.r0 + y };
  if (y < 0) return { side: "column", column: box.c0 + x };
  return { side: "row", row: box.r0 + y, column: box.c0 + x };
}

function jump(app, event) {
  const { view, parts } = app;
  const frame = parts.overview.getBoundingClientRect();
  const row = ((event.clientY - frame.top) / frame.height) * view.rows.length;
  const column = ((event.clientX - frame.left) / frame.width) * view.columns.length;
  const { box } = parts;
  parts.origin = [
    Math.round(Math.max(0, Math.min(view.rows.length - box.rows, row - box.rows / 2))),
    Math.round(Math.max(0, Math.min(view.columns.length - box.columns, column - box.columns / 2))),
  ];
  parts.redraw();
}

/** Asks the next drawing to bring the chosen cell into the window. */
export function follow(app) {
  app.parts.chase = true;
}

function chase(app, box) {
  const at = app.at();
  const [r0, c0] = app.parts.origin;
  const into = (index, from, size) => {
    if (index >= from && index < from + size) return from;
    if (index === from - 1) return index;
    if (index === from + size) return from + 1;
    return Math.max(0, index - Math.floor(size / 2)); // a jump ends in the middle
  };
  app.parts.origin = [into(at.row, r0, box.rows), into(at.column, c0, box.columns)];
  return r0 !== app.parts.origin[0] || c0 !== app.parts.origin[1];
}

/** Arrow keys go from cell to cell. */
export function arrow(app, dx, dy) {
  const { view } = app;
  const at = app.at();
  const within = (value, count) => Math.max(0, Math.min(count - 1, value));
  app.move({
    side: "row",
    row: within(at.row + dy, view.rows.length),
    column: within(at.column + dx, view.columns.length),
  });
}
