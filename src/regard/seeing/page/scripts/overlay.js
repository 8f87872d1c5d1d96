// All heads of a layer in one map: a cell has the colour of the head that looks there most.

import { h } from "./dom.js";
import { t } from "./messages.js";
import { INKS, ramp, rgb } from "./palette.js";
import { cutoff, merged, real, share, sharpness } from "./view.js";

/**
 * Colours that people with any kind of colour vision tell apart, on light and on dark (Paul Tol's
 * "bright"). Heads beyond them share a grey, and the least sharp ones are those.
 */
const HUES = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];
const OTHER = { light: "#8a8f98", dark: "#a9b0ba" };

/** Tabs that can draw all heads at once. */
export const TABS = ["matrix", "picture"];

/** Whether a state asks for all heads, and its layer has several. */
export function wanted(state, layer) {
  return Boolean(state.overlay) && TABS.includes(state.tab) && layer.heads > 1;
}

/** For each cell the head that looks there most, with its weight; and the colour of each head. */
export function makeOverlay(view, mass) {
  const { layer, rows, columns, trace } = view;
  const size = rows.length * columns.length;
  const found = { owner: new Uint16Array(size), weights: new Float32Array(size), rows, max: 0 };
  const sides = layer.sides.map((side) => real(trace.tokens(side)));
  const sharp = [];
  for (let head = 0; head < layer.heads; head++) {
    const own = layer.one(head);
    sharp.push({ head, sharp: sharpness(own, layer.columns, ...sides) });
    const weights = merged(own, layer.columns, rows, columns);
    for (let r = 0; r < rows.length; r++) {
      const row = weights.subarray(r * columns.length, (r + 1) * columns.length);
      const least = cutoff(row, mass);
      row.forEach((weight, c) => {
        const i = r * columns.length + c;
        if (weight >= least && weight > found.weights[i]) [found.weights[i], found.owner[i]] = [weight, head];
      });
    }
  }
  found.max = found.weights.reduce((a, b) => Math.max(a, b), 0);
  found.columns = columns;
  const hued = sharp.sort((a, b) => b.sharp - a.sharp || a.head - b.head).slice(0, HUES.length);
  hued.sort((a, b) => a.head - b.head);
  found.hues = new Map(hued.map(({ head }, i) => [head, HUES[i]]));
  return found;
}

/** The colour of a head. */
export function hue(overlay, head, theme) {
  return overlay.hues.get(head) ?? OTHER[theme];
}

/** Strength and colour of a cell. */
export function cell(view, scale, theme, r, c) {
  const { overlay } = view;
  const i = r * view.columns.length + c;
  const strength = Math.min(1, share(overlay, scale, r, overlay.weights[i]));
  const found = { head: overlay.owner[i], weight: overlay.weights[i], strength, hue: hue(overlay, overlay.owner[i], theme) };
  return { ...found, fill: mixed(found.hue, strength, theme) };
}

/** A hue on the colour of no weight; opaque, so that figures need no transparency. */
function mixed(hex, strength, theme) {
  return `rgb(${channels(hex, strength, theme).join(",")})`;
}

function channels(hex, strength, theme) {
  const ground = ramp(theme)[0];
  return rgb(hex).map((v, k) => Math.round(ground[k] + (v - ground[k]) * Math.min(1, strength)));
}

/** For each place of a max-pooled map, a function from its strength to the colour of its head. */
export function pooledHues(view, values, height, width, theme) {
  const { overlay } = view;
  const [rows, columns] = [view.rows.length, view.columns.length];
  const heads = new Uint16Array(values.length);
  overlay.weights.forEach((weight, i) => {
    const [y, x] = [Math.floor((Math.floor(i / columns) * height) / rows), Math.floor(((i % columns) * width) / columns)];
    if (weight === values[y * width + x]) heads[y * width + x] = overlay.owner[i];
  });
  return Array.from(heads, (head) => (strength) => channels(hue(overlay, head, theme), strength, theme));
}

/** Black or white, whichever is read on a cell. */
export function inkOn({ hue: hex, strength }, theme) {
  if (strength < 0.4) return INKS[theme].text;
  const [r, g, b] = rgb(hex);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000000" : "#ffffff";
}

/** A button for each head; it shows that head alone. */
export function legend(app) {
  const { overlay, layer } = app.view;
  const button = (head, text) =>
    h(
      "button",
      { type: "button", class: "key", "aria-label": t("page.overlay.alone", { head }), onclick: () => app.set({ head, overlay: false }) },
      h("i", { style: { background: hue(overlay, head, app.theme) }, "aria-hidden": "true" }),
      text,
    );
  const hued = [...overlay.hues.keys()].map((head) => button(head, t("page.head", { head })));
  const rest = layer.heads - hued.length;
  return [
    ...hued,
    rest ? h("span", { class: "key" }, h("i", { style: { background: OTHER[app.theme] }, "aria-hidden": "true" }), t("page.more", { count: rest })) : "",
    h("span", { class: "dim" }, t("page.overlay.legend")),
  ];
}

/** A sentence about the heads at a cell. */
export function sentence(view, at) {
  const { overlay } = view;
  const i = at.row * view.columns.length + at.column;
  const weight = overlay.weights[i];
  return weight > 0 ? t("page.overlay.most", { head: overlay.owner[i], weight: weight.toFixed(2) }) : t("page.overlay.none");
}
