// Exports the view: SVG and PNG with the selection, CSV and JSON with all weights.

import { h, s } from "./dom.js";
import { picture } from "./matrix.js";
import { t } from "./messages.js";
import * as overlay from "./overlay.js";
import { colour, INKS } from "./palette.js";
import { stops } from "./picture.js";
import { short } from "./tokens.js";
import { share } from "./view.js";
import { exact, sentence } from "./words.js";

const FONT = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
/** Cells beyond which a map is embedded as an image with one pixel per weight. */
const DRAWN = 10_000;
/** Pixels along a side of such an image; where there are more weights, the strongest are shown. */
const PIXELS = 2048;

/** The figure as an SVG element: the texts on their tab, else the map. */
export function figure(app) {
  const drawn = { text: textFigure, picture: app.parts.seen ? pictureFigure : mapFigure };
  const found = (drawn[app.state.tab] ?? mapFigure)(app);
  found.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return found;
}

function frame(app, width, height, children) {
  const inks = INKS[app.theme];
  const title = app.title;
  const fits = Math.floor((width - 32) / 6.6);
  const lines = [app.hiddenSentence(), sentence(app.view, app.at())].flatMap((text) => wrapped(text, fits));
  const total = height + 24 + 17 * lines.length;
  const caption = lines.map((line, i) =>
    label(line, 16, height + 20 + 17 * i, { fill: inks.dim, "font-size": 12 }),
  );
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${total}`, width, height: total, "font-family": FONT, role: "img" },
    s("title", {}, title),
    s("desc", {}, sentence(app.view, app.at())),
    s("rect", { width, height: total, fill: inks.ground }),
    label(short(title, Math.floor((width - 32) / 8.6)), 16, 26, { fill: inks.text, "font-size": 15, "font-weight": 600 }),
    ...children,
    ...caption,
  );
}

function label(text, x, y, attributes) {
  return s("text", { x: round(x), y: round(y), style: { unicodeBidi: "isolate" }, ...attributes }, text);
}

const round = (value) => Math.round(value * 10) / 10;

/** Lines of `most` columns; Chinese, which has no spaces, is broken between any two characters. */
function wrapped(text, most) {
  const lines = [""];
  for (const [, space, word] of text.matchAll(/( *)([\p{Script=Han}\u3000-\u303f\uff00-\uffef][，。；：、）]*|[^ \p{Script=Han}\u3000-\u303f\uff00-\uffef]+)/gu)) {
    if (columnsOf(lines.at(-1)) + columnsOf(word) > most && lines.at(-1)) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? space : ""}${word}`;
  }
  return lines;
}

/** Columns that a caption takes: two for Chinese characters. */
function columnsOf(text) {
  return text.length + (text.match(/[\p{Script=Han}\u3000-\u303f\uff00-\uffef]/gu)?.length ?? 0);
}

function mapFigure(app) {
  const { view, theme } = app;
  const [rows, columns] = [view.rows.length, view.columns.length];
  const small = rows * columns <= DRAWN;
  const cell = small ? (columns > 40 ? 14 : 26) : Math.max(1, Math.min(4, 1200 / columns));
  const names = small ? [view.rows, view.columns].map((side) => side.map((i) => short(i.text, 22))) : [[], []];
  const [longRow, longColumn] = names.map((side) => Math.max(4, ...side.map(breadth)));
  const lean = longColumn * 5 + 10;
  const box = { cell, left: 28 + longRow * 7, top: 44 + (small ? longColumn * 5.4 + 12 : 20) };
  const width = Math.max(480, box.left + columns * cell + lean + 16);
  const body = small ? vectorCells(app, box) : [dots(app, box)];
  const parts = [...body, ...sideLabels(app, box, names), ...selection(app, box)];
  const bottom = box.top + rows * cell + 18;
  return frame(app, width, bottom + 26, [...parts, ...legend(app, box.left, bottom)]);
}

/** Twice as much for wide letters. */
function breadth(text) {
  return [...text].reduce((sum, c) => sum + (c.codePointAt(0) > 0x1100 ? 2 : 1), 0);
}

function vectorCells(app, { cell, left, top }) {
  const { view, theme, state } = app;
  const found = [];
  view.rows.forEach((_, r) =>
    view.columns.forEach((__, c) => {
      const i = r * view.columns.length + c;
      const strength = view.mask[i] ? share(view, state.scale, r, view.weights[i]) : 0;
      const at = { x: round(left + c * cell), y: round(top + r * cell) };
      const fill = view.overlay ? overlay.cell(view, state.scale, theme, r, c).fill : colour(theme, strength);
      found.push(s("rect", { ...at, width: cell - 1, height: cell - 1, fill }));
    }),
  );
  return found;
}

function dots(app, { cell, left, top }) {
  const { view, state, theme } = app;
  const [rows, columns] = [view.rows.length, view.columns.length];
  const pixels = [rows, columns].map((count) => Math.min(count, PIXELS));
  const href = picture(view, state.scale, theme, ...pixels).toDataURL("image/png");
  return s("image", {
    href, x: left, y: top, width: columns * cell, height: rows * cell,
    style: { imageRendering: "pixelated" }, preserveAspectRatio: "none",
  });
}

function sideLabels(app, { cell, left, top }, [rowNames, columnNames]) {
  const { view, theme } = app;
  const at = app.at();
  const look = (chosen, special) => ({
    fill: special && !chosen ? INKS[theme].dim : INKS[theme].text,
    "font-size": Math.min(13, cell - 1),
    "font-weight": chosen ? 700 : 400,
  });
  const rows = rowNames.map((text, r) =>
    label(text, left - 9, top + (r + 0.5) * cell + 4, {
      "text-anchor": "end",
      ...look(r === at.row, view.rows[r].special),
    }),
  );
  const columns = columnNames.map((text, c) => {
    const [x, y] = [round(left + (c + 0.5) * cell), round(top - 7)];
    const turn = { transform: `rotate(-45 ${x} ${y})` };
    return label(text, x, y, { ...turn, ...look(c === at.column, view.columns[c].special) });
  });
  return [...rows, ...columns];
}

function selection(app, { cell, left, top }) {
  const { view, theme } = app;
  const at = app.at();
  const line = { fill: "none", stroke: INKS[theme].text };
  const [wide, tall] = [view.columns.length * cell, view.rows.length * cell];
  const band =
    at.side === "row"
      ? { x: left - 1.5, y: top + at.row * cell - 1.5, width: wide + 2, height: cell + 2 }
      : { x: left + at.column * cell - 1.5, y: top - 1.5, width: cell + 2, height: tall + 2 };
  const one = { x: left + at.column * cell, y: top + at.row * cell, width: cell - 1, height: cell - 1 };
  return [
    s("rect", { class: "selected", ...band, ...line }),
    s("rect", { class: "selected-cell", ...one, width: Math.max(1, one.width), height: Math.max(1, one.height), ...line, "stroke-width": 2 }),
  ];
}

function legend(app, x, y, fills = Array.from({ length: 10 }, (_, i) => colour(app.theme, i / 9))) {
  if (app.view.overlay) return headLegend(app, x, y, app.theme);
  const step = 120 / fills.length;
  const steps = fills.map((fill, i) => s("rect", { x: x + step * i, y, width: step, height: 9, fill }));
  const end = app.state.scale === "map" ? exact(app.view.max) : app.state.scale === "row" ? t("page.legend.strongest") : "1";
  return [...steps, label(t("page.range", { low: 0, high: end }), x + 128, y + 8.5, { fill: INKS[app.theme].dim, "font-size": 11 })];
}

/** The colour of each head that has one. */
function headLegend(app, x, y, theme) {
  const { hues } = app.view.overlay;
  return [...hues].flatMap(([head, fill], i) => [
    s("rect", { x: x + 68 * i, y, width: 12, height: 9, fill }),
    label(t("page.head", { head }), x + 68 * i + 16, y + 8.5, { fill: INKS[theme].dim, "font-size": 11 }),
  ]);
}

/** The source under the weights of the chosen row, as it stands on the screen. */
function pictureFigure(app) {
  const { seen } = app.parts;
  const [width, height] = [seen.clientWidth, seen.clientHeight];
  const looks = label(t("page.picture.caption", { side: app.view.names[0], output: short(app.targetLabel(app.at().row), 40) }), 16, 48, { fill: INKS[app.theme].text, "font-size": 13 });
  const href = seen.toDataURL("image/png");
  const parts = [looks, s("image", { href, x: 16, y: 58, width, height })];
  return frame(app, Math.max(420, width + 32), height + 90, [...parts, ...legend(app, 16, height + 68, stops(app.theme))]);
}

/** The two texts as they stand on the screen, those that scroll there as a whole. */
function textFigure(app) {
  const tall = [...app.stage.querySelectorAll(".tall")].map((line) => [line, line.scrollTop]);
  for (const [line] of tall) line.style.maxHeight = "none";
  app.parts.linked();
  const found = wholeTexts(app);
  for (const [line, top] of tall) [line.style.maxHeight, line.scrollTop] = ["", top];
  app.parts.linked();
  return found;
}

function wholeTexts(app) {
  const { stage, theme } = app;
  const origin = stage.getBoundingClientRect();
  const [dx, dy] = [16 - origin.left, 44 - origin.top];
  const found = [];
  for (const line of stage.querySelectorAll("h2, .note")) {
    const box = line.getBoundingClientRect();
    found.push(label(line.textContent, box.left + dx, box.bottom + dy - 4, { fill: INKS[theme].dim, "font-size": 12 }));
  }
  const frameBox = app.parts.curves.getBoundingClientRect();
  const shift = `translate(${round(frameBox.left + dx)} ${round(frameBox.top + dy)})`;
  const curves = [...app.parts.curves.children].map((path) => path.cloneNode());
  found.push(s("g", { transform: shift, fill: "none", stroke: INKS[theme].mark }, ...curves));
  for (const node of stage.querySelectorAll(".token")) found.push(...drawnToken(node, dx, dy, theme));
  const bottom = stage.querySelector(".texts").getBoundingClientRect().bottom + dy;
  return frame(app, Math.max(420, origin.width + 32), bottom + 30, [...found, ...legend(app, 16, bottom + 8)]);
}

function drawnToken(node, dx, dy, theme) {
  const box = node.getClientRects()[0];
  if (!box) return [];
  const look = getComputedStyle(node);
  const size = parseFloat(look.fontSize);
  const chosen = node.classList.contains("chosen");
  const place = { x: round(box.left + dx), y: round(box.top + dy), width: round(box.width), height: round(box.height), rx: 4 };
  const lit = node.classList.contains("lit") ? node.style.background : "none";
  const stroke = chosen ? INKS[theme].mark : "none";
  const back = chosen || lit !== "none" ? [s("rect", { ...place, class: chosen ? "selected" : null, fill: lit, stroke, "stroke-width": 2 })] : [];
  const text = label(short(node.textContent, 80), box.left + dx + box.width / 2, box.top + dy + box.height / 2 + size * 0.35, {
    fill: look.color, "font-size": size, "text-anchor": "middle",
  });
  return [...back, text];
}

/** The text of an SVG file. */
export function svgText(app) {
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(figure(app))}`;
}

/** Pixels along a side of a PNG, as many as browsers draw. */
const DRAWABLE = 16_384;

/** The figure as PNG, at two pixels per CSS pixel where these can be drawn. */
export async function pngBlob(app) {
  const node = figure(app);
  const size = [node.getAttribute("width"), node.getAttribute("height")].map(Number);
  const image = new Image();
  const address = URL.createObjectURL(new Blob([svgText(app)], { type: "image/svg+xml" }));
  try {
    image.src = address;
    await image.decode();
  } finally {
    URL.revokeObjectURL(address);
  }
  const canvas = document.createElement("canvas");
  const scale = Math.min(2, DRAWABLE / Math.max(...size));
  [canvas.width, canvas.height] = size.map((points) => Math.floor(scale * points));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((give) => canvas.toBlob(give, "image/png"));
}

/** All weights of the view, a line for each, nothing left out. */
export function csvText(app) {
  const { view } = app;
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const head = "kind,layer,head,row,column,row_text,column_text,weight";
  const place = [view.kind, view.layer.layer, view.head].join();
  const lines = view.rows.flatMap((row, r) =>
    view.columns.map((column, c) => {
      const weight = view.weights[r * view.columns.length + c];
      return [place, r, c, quoted(row.text), quoted(column.text), weight.toPrecision(6)].join();
    }),
  );
  return `${[head, ...lines].join("\r\n")}\r\n`;
}

const FORMATS = {
  svg: async (app) => new Blob([svgText(app)], { type: "image/svg+xml" }),
  png: pngBlob,
  csv: async (app) => new Blob(["\ufeff", csvText(app)], { type: "text/csv" }),
  json: async (app) => new Blob([JSON.stringify(app.trace.json)], { type: "application/json" }),
};

/** Downloads a file. */
export async function save(app, format) {
  if (!app.trace || (!app.view && format !== "json")) return; // there is nothing to draw
  const address = URL.createObjectURL(await FORMATS[format](app));
  h("a", { href: address, download: `attention.${format}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

