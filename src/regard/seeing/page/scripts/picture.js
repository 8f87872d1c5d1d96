// The picture, spectrogram or series that a source is, under the weights of the chosen row.

import { bdi, h } from "./dom.js";
import { has, t } from "./messages.js";
import * as overlay from "./overlay.js";
import { INKS, rgb } from "./palette.js";
import { share } from "./view.js";

const FONT = 'system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif';
/** Largest height of the picture, in pixels, and of one from which a row is chosen. */
const TALL = 460;
const SMALL = 200;
/** Heights of a spectrogram, of the curve of weights above it, of its axis, and of a line of a series. */
const BAND = 150;
const CURVE = 46;
const AXIS = 24;
const LANE = 26;
/** Features up to which a series is drawn as lines. */
const LINES = 6;
/** Opacity of the strongest weight. */
const OPAQUE = 0.78;
/** Outputs that are in the page at once. */
const MOST = 400;

/** The name of the tab by the kind of the source. */
export function tabName(kind) {
  return t(has(`page.tab.${kind}`) ? `page.tab.${kind}` : "page.tab.picture");
}

/** Whether the columns of a map lie on the picture. */
export function fits(view) {
  return view.layer.sides[1] === "source";
}

/** Puts the picture into the stage, and the outputs from which one is chosen. */
export function mount(app, stage) {
  const { view, trace } = app;
  app.parts = {};
  if (!trace.backdrop || !fits(view)) {
    stage.replaceChildren(h("p", { class: "note" }, t("page.picture.other")));
    return;
  }
  const seen = h("canvas", { class: "seen", "aria-hidden": "true" });
  listen(app, seen, (cell) => ({ side: "row", column: view.columnOf(trace.backdrop.first + cell) }));
  const title = (name, role) => h("h2", {}, name, h("span", { class: "dim" }, " ", t(role)));
  const remark = `page.picture.${trace.backdrop.kind}`; // what a reader must know of the drawing
  const looked = h("section", { class: "looked" }, title(view.names[1], "page.is-looked-at"), seen, has(remark) ? h("p", { class: "note" }, t(remark)) : null);
  app.parts = { seen, chips: new Map() };
  const beside = trace.backdrop.kind === "picture" ? "pictured beside-it" : "pictured";
  stage.replaceChildren(h("div", { class: beside }, outputs(app, title(view.names[0], "page.looks")), looked));
}

/** The rows: tokens to point at, and a small picture where rows are parts of it themselves. */
function outputs(app, title) {
  const { view, trace } = app;
  const own = view.layer.sides[0] === "source";
  const shown = own ? view.rows.slice(0, trace.backdrop.first) : view.rows.slice(0, MOST);
  const chips = shown.map((item, row) => {
    const at = { side: "row", row };
    const chip = bdi(item.label, { class: item.special ? "token special" : "token" });
    chip.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && app.hover(at));
    chip.addEventListener("pointerleave", () => app.leave());
    chip.addEventListener("click", () => app.pick(at));
    app.parts.chips.set(row, chip);
    return chip;
  });
  const line = h("p", { class: "line" }, ...chips.flatMap((chip) => [chip, " "]));
  const rest = !own && view.rows.length > MOST ? h("p", { class: "note" }, t("page.picture.cut", { most: MOST, count: view.rows.length })) : null;
  let chooser = null;
  if (own) {
    chooser = h("canvas", { class: "chooser", "aria-hidden": "true" });
    listen(app, chooser, (cell) => ({ side: "row", row: view.rowOf(trace.backdrop.first + cell) }));
    app.parts.chooser = chooser;
  }
  return h("section", { class: "looks" }, title, chips.length ? line : null, rest, chooser);
}

function listen(app, canvas, at) {
  const cell = (event) => {
    const box = canvas.box;
    const frame = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top - (box?.top ?? 0)];
    if (!box || x < 0 || x >= box.width || y < 0 || y >= box.height) return null;
    const [rows, columns] = app.trace.backdrop.grid;
    return Math.floor((y / box.height) * rows) * columns + Math.floor((x / box.width) * columns);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const found = cell(event);
    if (found === null) app.leave();
    else app.hover(at(found));
  });
  canvas.addEventListener("pointerleave", () => app.leave());
  canvas.addEventListener("click", (event) => {
    const found = cell(event);
    if (found !== null) app.pick(at(found));
  });
}

/** Draws the selection. */
export function draw(app) {
  const { parts, view, trace, state } = app;
  if (!parts.seen) return;
  const at = app.at();
  const { first } = trace.backdrop;
  const width = view.columns.length;
  const shares = Array.from({ length: width - first }, (_, i) => {
    const cell = at.row * width + first + i;
    return view.mask[cell] ? share(view, state.scale, at.row, view.weights[cell]) : 0;
  });
  const cells = view.overlay && shares.map((_, i) => overlay.cell(view, state.scale, app.theme, at.row, first + i));
  const drawn = cells ? cells.map((one) => one.strength) : shares;
  paint(app, parts.seen, { shares: drawn, hues: cells?.map((one) => one.hue), chosen: at.column - first, tall: TALL });
  if (parts.chooser) paint(app, parts.chooser, { chosen: at.row - first, tall: SMALL });
  for (const [row, chip] of parts.chips) {
    chip.classList.toggle("chosen", row === at.row);
    chip.classList.toggle("locked", row === at.row && state.lock);
  }
}

/** Paints the source, tinted by shares, with one cell outlined. */
function paint(app, canvas, { shares, hues, chosen, tall }) {
  const { backdrop } = app.trace;
  const colours = INKS[app.theme];
  const room = Math.max(160, canvas.parentElement.clientWidth);
  const box = measures(backdrop, room, tall, Boolean(shares));
  canvas.box = box;
  const ratio = window.devicePixelRatio || 1;
  const height = box.top + box.height + box.axis;
  [canvas.width, canvas.height] = [Math.round(box.width * ratio), Math.round(height * ratio)];
  Object.assign(canvas.style, { width: `${box.width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const lines = backdrop.kind === "series" && backdrop.shape[0] <= LINES;
  if (lines) drawLines(context, backdrop, box, colours);
  else context.drawImage(raster(backdrop, app.theme, Boolean(shares)), 0, box.top, box.width, box.height);
  const [rows, columns] = backdrop.grid;
  const [wide, high] = [box.width / columns, box.height / rows];
  (shares ?? []).forEach((strength, i) => {
    if (strength <= 0) return;
    const [x, y] = [(i % columns) * wide, Math.floor(i / columns) * high];
    context.fillStyle = tint(hues?.[i] ?? colours.mark, OPAQUE * Math.min(1, strength) * (rows === 1 ? 0.75 : 1));
    context.fillRect(x, box.top + y, wide, high);
    if (!box.top) return;
    context.fillStyle = hues?.[i] ?? colours.mark;
    const up = (box.top - 6) * Math.min(1, strength);
    context.fillRect(x, box.top - 3 - up, Math.max(1, wide - (wide > 3 ? 1 : 0)), up);
  });
  if (box.axis) axis(context, app, box, colours);
  if (chosen < 0) return;
  if (rows > 1) outline(context, (chosen % columns) * wide, Math.floor(chosen / columns) * high, wide, high, colours);
  else pointer(context, (chosen + 0.5) * wide, box.top + box.height, colours);
}

/** Sizes: a picture keeps its proportions; what runs in time takes the width there is. */
function measures(backdrop, room, tall, weighted) {
  const [height, width] = backdrop.shape;
  if (backdrop.kind === "picture") {
    const scale = Math.min(room / width, tall / height);
    return { top: 0, width: Math.round(width * scale), height: Math.round(height * scale), axis: 0 };
  }
  const lanes = height <= LINES && backdrop.kind === "series" ? Math.max(60, LANE * height) : BAND;
  return { top: weighted ? CURVE : 0, width: Math.round(room), height: lanes, axis: AXIS };
}

/** The pixels as an image: in colour alone, and pale grey under weights. */
function raster(backdrop, theme, pale) {
  const key = `${theme}${pale}`;
  backdrop.images ??= new Map();
  if (backdrop.images.has(key)) return backdrop.images.get(key);
  const [height, width, channels] = backdrop.shape;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const photo = backdrop.kind === "picture";
  for (let i = 0; i < width * height; i++) {
    const at = (k) => backdrop.bytes[i * channels + (channels === 3 ? k : 0)];
    const grey = (at(0) + at(1) + at(2)) / 3;
    const level = photo || theme === "dark" ? grey : 255 - grey;
    const soft = theme === "dark" ? 0.7 * level : 64 + 0.75 * level;
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = photo && !pale ? at(k) : soft;
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  backdrop.images.set(key, canvas);
  return canvas;
}

/** Each feature in a lane of its own, which needs no colours to tell them apart. */
function drawLines(context, backdrop, box, colours) {
  const [features, width] = backdrop.shape;
  const lane = box.height / features;
  for (let f = 0; f < features; f++) {
    context.beginPath();
    for (let x = 0; x < width; x++) {
      const value = backdrop.bytes[f * width + x] / 255;
      const y = box.top + (f + 1) * lane - 3 - value * (lane - 6);
      context.lineTo(((x + 0.5) / width) * box.width, y);
    }
    context.strokeStyle = colours.text;
    context.lineWidth = 1.25;
    context.stroke();
    context.fillStyle = colours.line;
    context.fillRect(0, Math.round(box.top + (f + 1) * lane) - 1, box.width, 1);
  }
}

function outline(context, x, y, wide, high, colours) {
  // a pale line beneath, so that the mark stands out on any picture
  for (const [stroke, thick] of [[colours.ground, 4], [colours.text, 2]]) {
    context.strokeStyle = stroke;
    context.lineWidth = thick;
    context.strokeRect(x, y, wide, high);
  }
}

/** A mark under a position, which may be too narrow for a frame. */
function pointer(context, x, y, colours) {
  context.fillStyle = colours.mark;
  context.beginPath();
  context.moveTo(x, y + 1);
  context.lineTo(x - 5, y + 8);
  context.lineTo(x + 5, y + 8);
  context.fill();
}

/** Labels of some positions: times of a recording, numbers of frames of a series. */
function axis(context, app, box, colours) {
  const { first, grid } = app.trace.backdrop;
  const tokens = app.trace.source.tokens.slice(first);
  const least = box.width < 480 ? 64 : 84;
  const step = Math.max(1, Math.ceil((least * grid[1]) / box.width));
  context.font = `11px ${FONT}`;
  context.fillStyle = colours.dim;
  context.textBaseline = "top";
  for (let i = 0; i < tokens.length; i += step) {
    const x = (i / grid[1]) * box.width;
    context.fillRect(Math.round(x), box.top + box.height, 1, 4);
    const text = app.trace.backdrop.kind === "series" ? t("page.picture.frame", { number: tokens[i].text }) : tokens[i].text;
    const wide = context.measureText(text).width;
    if (x + wide <= box.width) context.fillText(text, x, box.top + box.height + 9);
  }
}

function tint(hex, alpha) {
  return `rgba(${rgb(hex).join(",")},${alpha.toFixed(3)})`;
}

/** Colours of the legend, from no weight to the strongest. */
export function stops(theme) {
  return [0, 0.25, 0.5, 0.75, 1].map((part) => tint(INKS[theme].mark, part * OPAQUE));
}

/** Left and right choose the output; up and down another line of patches, or another input. */
export function arrow(app, dx, dy) {
  const { view, trace } = app;
  const at = app.at();
  const within = (value, count) => Math.max(0, Math.min(count - 1, value));
  const own = view.layer.sides[0] === "source";
  const [rows, columns] = trace.backdrop?.grid ?? [1, 1];
  if (own && rows > 1) {
    app.move({ side: "row", row: within(at.row + dx + dy * columns, view.rows.length) });
  } else if (dx) app.move({ side: "row", row: within(at.row + dx, view.rows.length) });
  else app.move({ side: "row", row: at.row, column: within(at.column + dy, view.columns.length) });
}
