// The controls above the figure: trace, attention, threshold, and buttons that save.

import { h, spoken } from "./dom.js";
import { save } from "./export.js";
import { named, rich, t } from "./messages.js";
import { TABS as OVERLAID } from "./overlay.js";
import { SCALES } from "./state.js";
import { short, wordsHelp } from "./tokens.js";
import { kindName } from "./view.js";

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
  return select(t("page.controls.example"), options, app.state.trace, (value) => app.set({ trace: Number(value) }));
}

/** Kind, layer, head, words, scale, mass. */
export function controls(app) {
  const { trace, state } = app;
  const layers = trace.layers(state.kind);
  const layer = layers.find((one) => one.layer === state.layer) ?? layers[0];
  if (!layer) return [];
  const kinds = trace.kinds.map((kind) => [kind, kindName(kind)]);
  const heads = Array.from({ length: layer.heads }, (_, i) => [i, t("page.head", { head: i })]);
  const numbers = layers.map((one) => [one.layer, t("page.layer", { layer: one.layer })]);
  const choose = (value) => app.set({ head: value === "mean" ? value : Number(value) });
  const single = state.tab !== "heads"; // which head is what that tab itself is for
  const drawn = single && state.tab !== "checks";
  return [
    select(t("page.controls.attention"), kinds, state.kind, (kind) => app.set({ kind })),
    single && layers.length > 1 ? select(t("page.controls.layer"), numbers, layer.layer, (value) => app.set({ layer: Number(value) })) : null,
    single && layer.heads > 1 ? select(t("page.controls.head"), [["mean", t("page.controls.mean")], ...heads], state.head, choose) : null,
    drawn ? wordsOrTokens(app) : null,
    state.tab === "checks" ? null : select(t("page.controls.colours"), SCALES.map((name) => [name, t(`page.scale.${name}`)]), state.scale, (scale) => app.set({ scale })),
    drawn ? mass(app) : null,
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
    h("span", { id: "by" }, t("page.controls.by")),
    h("div", { class: "segments", role: "group", "aria-labelledby": "by" }, button(true, t("page.controls.words")), button(false, t("page.controls.tokens"))),
  );
}

function mass(app) {
  const shown = (value) => `${Math.round(100 * value)}%`;
  const output = h("output", {}, shown(app.state.mass));
  const slider = h("input", {
    type: "range", min: "50", max: "100", step: "1", value: String(Math.round(100 * app.state.mass)),
    "aria-label": t("page.controls.mass-label"),
    oninput: (event) => {
      output.textContent = shown(event.target.value / 100);
      app.set({ mass: event.target.value / 100 }, { controls: false });
    },
  });
  return h("label", { class: "field" }, h("span", {}, ...rich("page.controls.mass", { share: output })), slider);
}

function overlayBox(app) {
  const box = h("input", { type: "checkbox", checked: Boolean(app.state.overlay), onchange: (e) => app.set({ overlay: e.target.checked }) });
  return h("label", { class: "field check" }, box, " ", t("page.controls.overlay"));
}

/** Buttons that save. */
export function saving(app) {
  const button = (format) =>
    h("button", { type: "button", "data-save": format, onclick: () => save(app, format) }, format.toUpperCase());
  return h(
    "div",
    { class: "segments save", role: "group", ...named("page.save.as") },
    spoken("span", "page.save", { class: "dim" }),
    ...["svg", "png", "csv", "json"].map(button),
  );
}
