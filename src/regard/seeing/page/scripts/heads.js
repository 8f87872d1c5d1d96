// Thumbnails of all heads of a kind.

import { h, number } from "./dom.js";
import { t } from "./messages.js";
import { ramp } from "./palette.js";
import { pooled, real, sharpness } from "./view.js";

/** Heads that are in the page at once. */
const MOST = 400;
const SIZE = 88;

/** Puts a small map of each head into the stage; those of a layer come when it is unpacked. */
export function mount(app, stage) {
  const layers = app.trace.layers(app.state.kind);
  const all = layers.flatMap((layer) => Array.from({ length: layer.heads }, (_, head) => ({ layer, head })));
  const thumbs = all.slice(0, MOST).map((one) => thumb(app, one));
  const grid = h("div", { class: "heads" }, ...thumbs.map((one) => one.node));
  const cut = all.length > MOST ? t("page.heads.cut", { most: MOST, count: all.length }) : "";
  const note = h(
    "p",
    { class: "note" },
    `${t("page.heads.note")}${cut}`,
  );
  stage.replaceChildren(note, sorter(app), grid);
  app.parts = { thumbs, grid };
  app.parts.done = fill(app, app.parts);
}

function sorter(app) {
  const button = (sort, text) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(app.state.sort === sort),
        onclick: () => app.set({ sort }),
      },
      text,
    );
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": t("page.heads.order") },
    button("layer", t("page.heads.by-layer")),
    button("sharp", t("page.heads.sharpest-first")),
  );
}

function thumb(app, { layer, head }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const name = h("span", { class: "name" }, t("page.heads.name", { layer: layer.layer, head }));
  const meter = h("span", { class: "meter" }, h("i"));
  const figure = h("span", { class: "figure" }, "…");
  const node = h(
    "button",
    { type: "button", class: "thumb", tabindex: "-1", onclick: () => app.open(layer.layer, head) },
    canvas,
    name,
    meter,
    figure,
  );
  return { layer, head, node, canvas, meter, figure, sharp: 0 };
}

async function fill(app, parts) {
  for (const one of parts.thumbs) {
    await one.layer.load();
    if (app.parts !== parts) return;
    paint(app, one);
    if (one.head === 0) await new Promise((next) => setTimeout(next));
  }
  const best = parts.thumbs.reduce((a, b) => (b.sharp > a.sharp ? b : a), parts.thumbs[0]);
  best?.node.append(h("span", { class: "badge" }, t("page.heads.sharpest")));
  if (app.state.sort === "sharp") {
    parts.thumbs.sort((a, b) => b.sharp - a.sharp);
    parts.grid.replaceChildren(...parts.thumbs.map((one) => one.node));
  }
  draw(app);
}

function paint(app, one) {
  const { layer, head, canvas } = one;
  const factor = SIZE / Math.max(layer.rows, layer.columns, 1);
  const size = (count) => Math.max(1, Math.min(count, Math.round(count * Math.max(1, factor))));
  const [height, width] = [Math.min(size(layer.rows), SIZE), Math.min(size(layer.columns), SIZE)];
  const values = measured(app, one, height, width);
  one.figure.textContent = number(one.sharp);
  one.meter.firstChild.style.width = `${Math.round(100 * one.sharp)}%`;
  one.node.setAttribute(
    "aria-label",
    t("page.heads.open", { layer: layer.layer, head, sharpness: number(one.sharp) }),
  );
  [canvas.width, canvas.height] = [width, height];
  const peak = app.state.scale === "fixed" ? 1 : values.reduce((a, b) => Math.max(a, b), 1e-9);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const table = ramp(app.theme);
  values.forEach((value, i) => {
    image.data.set([...table[Math.round(255 * Math.min(1, value / peak))], 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

/** A max-pooled map of a head; its sharpness is measured on the way. */
function measured(app, one, height, width) {
  const { layer, head } = one;
  const [rows, columns] = layer.sides.map((side) => real(app.trace.tokens(side)));
  const weights = layer.one(head);
  one.sharp = sharpness(weights, layer.columns, rows, columns);
  return pooled(weights, null, layer.rows, layer.columns, height, width);
}

/** Marks the head that the other tabs show. */
export function draw(app) {
  for (const { layer, head, node } of app.parts.thumbs) {
    const chosen = layer.layer === app.state.layer && head === app.state.head;
    node.setAttribute("aria-pressed", String(chosen));
  }
}

/** Arrow keys go from head to head, through the rows of the grid as they stand. */
export function arrow(app, dx, dy) {
  const nodes = app.parts.thumbs.map((one) => one.node);
  const focused = nodes.indexOf(document.activeElement);
  const at = focused >= 0 ? focused : nodes.findIndex((n) => n.ariaPressed === "true");
  const top = nodes[0]?.offsetTop;
  const across = Math.max(1, nodes.filter((node) => node.offsetTop === top).length);
  const next = focused < 0 && at < 0 ? 0 : at + dx + dy * across;
  nodes[Math.max(0, Math.min(nodes.length - 1, next))]?.focus();
}
