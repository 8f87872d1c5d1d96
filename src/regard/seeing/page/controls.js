// The controls above the figure: trace, attention, threshold, and buttons that save.

import { h } from "./dom.js";
import { save } from "./export.js";
import { TABS as OVERLAID } from "./overlay.js";
import { short, wordsHelp } from "./tokens.js";
import { KINDS } from "./view.js";

const SCALE_NAMES = { fixed: "0 to 1", map: "0 to strongest", row: "each row" };

function select(label, options, value, change) {
  const box = h("select", { onchange: (event) => change(event.target.value) });
  for (const [name, text] of options) {
    box.append(h("option", { value: name, selected: String(name) === String(value) }, text));
  }
  return h("label", { class: "field" }, h("span", {}, label), box);
}

/** The list of traces, where there are several. */
export function tracePicker(app) {
  if (app.documents.length < 2) return "";
  const options = app.documents.map((document, i) => [i, `${i + 1}. ${short(document.label, 48)}`]);
  return select("Example", options, app.state.trace, (value) => app.set({ trace: Number(value) }));
}

/** Kind, layer, head, words, scale, mass. */
export function controls(app) {
  const { trace, state } = app;
  const layers = trace.layers(state.kind);
  const layer = layers.find((one) => one.layer === state.layer) ?? layers[0];
  if (!layer) return [];
  const kinds = trace.kinds.map((kind) => [kind, KINDS[kind]?.[0] ?? kind]);
  const heads = Array.from({ length: layer.heads }, (_, i) => [i, `head ${layer.headNumber(i)}`]);
  const numbers = layers.map((one) => [one.layer, `layer ${one.layer}`]);
  const choose = (value) => app.set({ head: value === "mean" ? value : Number(value) });
  const single = state.tab !== "heads"; // which head is what that tab itself is for
  const drawn = single && state.tab !== "checks";
  return [
    select("Attention", kinds, state.kind, (kind) => app.set({ kind })),
    single && layers.length > 1 ? select("Layer", numbers, layer.layer, (value) => app.set({ layer: Number(value) })) : null,
    single && layer.heads > 1 ? select("Head", [["mean", "mean of heads"], ...heads], state.head, choose) : null,
    drawn ? wordsOrTokens(app) : null,
    state.tab === "checks" ? null : select("Colours", Object.entries(SCALE_NAMES), state.scale, (scale) => app.set({ scale })),
    drawn ? mass(app) : null,
    state.tab === "matrix" ? goldBox(app) : null,
    OVERLAID.includes(state.tab) && layer.heads > 1 ? overlayBox(app) : null,
  ].filter(Boolean);
}

function wordsOrTokens(app) {
  if (!wordsHelp(app.trace).differ) return null;
  const button = (words, text) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(app.state.words === words),
        onclick: () => app.set({ words }),
      },
      text,
    );
  return h(
    "div",
    { class: "field" },
    h("span", { id: "by" }, "By"),
    h("div", { class: "segments", role: "group", "aria-labelledby": "by" }, button(true, "words"), button(false, "tokens")),
  );
}

function mass(app) {
  const shown = (value) => `${Math.round(100 * value)}%`;
  const output = h("output", {}, shown(app.state.mass));
  const slider = h("input", {
    type: "range", min: "50", max: "100", step: "1", value: String(Math.round(100 * app.state.mass)),
    "aria-label": "Mass of each row that is drawn, in per cent",
    oninput: (event) => {
      output.textContent = shown(event.target.value / 100);
      app.set({ mass: event.target.value / 100 }, { controls: false });
    },
  });
  return h("label", { class: "field" }, h("span", {}, "Draw the top ", output, " of each row"), slider);
}

function goldBox(app) {
  if (!app.trace.gold.length) return null;
  const box = h("input", { type: "checkbox", checked: app.state.gold, onchange: (e) => app.set({ gold: e.target.checked }) });
  return h("label", { class: "field check" }, box, " gold alignment");
}

function overlayBox(app) {
  const box = h("input", { type: "checkbox", checked: Boolean(app.state.overlay), onchange: (e) => app.set({ overlay: e.target.checked }) });
  return h("label", { class: "field check" }, box, " all heads by colour");
}

/** Buttons that save. */
export function saving(app) {
  const button = (format) =>
    h("button", { type: "button", "data-save": format, onclick: () => save(app, format) }, format.toUpperCase());
  return h(
    "div",
    { class: "segments save", role: "group", "aria-label": "Save as" },
    h("span", { class: "dim" }, "Save"),
    ...["svg", "png", "csv", "json"].map(button),
  );
}
