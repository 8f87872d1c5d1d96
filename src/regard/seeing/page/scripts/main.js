// Assembles the page: one state, one view of it, tabs that draw it.

import * as checks from "./checks.js";
import { controls, saving, tracePicker } from "./controls.js";
import { Trace } from "./data.js";
import { drawDetail } from "./detail.js";
import { fill, h, number, oncePerFrame, spoken } from "./dom.js";
import * as heads from "./heads.js";
import { helpDialog, listen } from "./keys.js";
import { Live } from "./live.js";
import * as matrix from "./matrix.js";
import { choose, current, languages, relabel, t } from "./messages.js";
import * as overlay from "./overlay.js";
import { ramp } from "./palette.js";
import * as picture from "./picture.js";
import { keepHash, readHash, TABS } from "./state.js";
import { drawTable } from "./table.js";
import * as text from "./text.js";
import { short, wordsHelp } from "./tokens.js";
import { links, makeView, saysSomething } from "./view.js";
import { cellSentence, exact, sentence } from "./words.js";

const VIEWS = { text, matrix, heads, checks, picture };
/** Settings that change the view, and settings that change the controls. */
const REBUILD = ["trace", "tab", "kind", "layer", "head", "words", "mass", "scale", "sort", "overlay"];

class App {
  constructor(documents, root) {
    this.documents = documents;
    this.root = root;
    this.preview = null;
    this.version = 0;
    this.traces = new Map();
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = oncePerFrame(() => this.draw());
  }

  /** Makes the page and shows what the address asks for. */
  async start() {
    this.root.dataset.started = "";
    this.frame();
    this.dark.addEventListener("change", () => this.set({}));
    addEventListener("hashchange", () => this.set(readHash(location.hash)));
    new ResizeObserver(() => this.redraw()).observe(this.stage);
    await this.set({ trace: 0, ...readHash(location.hash) });
  }

  get theme() {
    return this.state?.theme ?? (this.dark.matches ? "dark" : "light");
  }

  frame() {
    const found = (name) => this.root.querySelector(`[data-place="${name}"]`);
    this.places = Object.fromEntries(
      ["picker", "meta", "tabs", "save", "controls", "legend", "detail", "sentence", "table", "live"].map((n) => [n, found(n)]),
    );
    this.stage = found("stage");
    this.dialog = helpDialog();
    this.root.append(this.dialog);
    listen(this, this.stage);
    found("theme").addEventListener("click", () => this.set({ theme: this.theme === "dark" ? "light" : "dark" }));
    found("help").addEventListener("click", () => this.help());
    this.places.save.replaceChildren(saving(this));
    this.makeTabs();
  }

  makeTabs() {
    const tabs = TABS.map((tab) =>
      spoken("button", `page.tab.${tab}`, {
        type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": "stage-panel",
        onclick: () => this.set({ tab }),
      }),
    );
    this.places.tabs.replaceChildren(...tabs);
    this.places.tabs.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const there = TABS.filter((tab) => this.has(tab));
      const next = there[(there.indexOf(this.state.tab) + step + there.length) % there.length];
      this.set({ tab: next }).then(() => tabs[TABS.indexOf(next)].focus());
      event.preventDefault();
    });
  }

  /** Changes the state and shows it. */
  async set(patch, { controls: anew = true } = {}) {
    const state = { ...this.state, ...patch };
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (state.trace !== this.shownTrace || patch.reload) await this.openTrace(state, patch);
    if (turn !== this.turn) return;
    delete state.reload;
    this.opens = state.row === undefined && state.column === undefined;
    fit(this.trace, state);
    this.state = state;
    this.preview = null;
    document.documentElement.dataset.theme = this.theme;
    const layer = this.trace.layers(state.kind).find((one) => one.layer === state.layer);
    if (layer) await layer.load();
    if (state.tab === "checks") await this.trace.loadDerived();
    if (state.tab === "picture") await this.trace.loadBackdrop();
    if (turn !== this.turn) return;
    const rebuild = !this.view || patch.reload || REBUILD.some((name) => name in patch) || !Object.keys(patch).length || "theme" in patch;
    if (rebuild) this.rebuild(layer, anew);
    keepHash(state);
    this.draw();
    this.root.dataset.ready = String(this.version);
  }

  async openTrace(state, patch) {
    state.trace = Math.min(state.trace, this.documents.length - 1);
    const document = this.documents[state.trace];
    if (!this.traces.has(state.trace)) this.traces.set(state.trace, new Trace(document.json()));
    this.trace = this.traces.get(state.trace);
    // the head that Python has found the sharpest, unless the address names another
    if (document.best && !("layer" in patch) && !("head" in patch)) Object.assign(state, document.best);
    if (this.shownTrace !== undefined && !("row" in patch)) Object.assign(state, { row: undefined, column: undefined, lock: false });
    if (!("words" in patch)) state.words = wordsHelp(this.trace).wanted;
    this.shownTrace = state.trace;
  }

  rebuild(layer, anew) {
    this.version += 1;
    const { state } = this;
    const byToken = state.tab === "checks" || state.tab === "heads";
    this.view = layer ? makeView(this.trace, layer, state, state.words && !byToken) : null;
    if (layer && overlay.wanted(state, layer)) this.view.overlay = overlay.makeOverlay(this.view, state.mass);
    for (const tab of TABS) {
      const button = this.places.tabs.querySelector(`#tab-${tab}`);
      button.hidden = !this.has(tab);
      if (tab === "picture") button.textContent = picture.tabName(this.trace.backdrop?.kind);
      button.setAttribute("aria-selected", String(tab === state.tab));
      button.tabIndex = tab === state.tab ? 0 : -1;
    }
    this.root.dataset.tab = state.tab;
    if (anew) this.places.controls.replaceChildren(...controls(this));
    fill(this.places.picker, tracePicker(this));
    this.places.meta.replaceChildren(...meta(this.trace));
    if (state.column === undefined) this.chooseStrongest();
    if (this.view) VIEWS[state.tab].mount(this, this.stage);
    else this.stage.replaceChildren(h("p", { class: "note" }, t("page.no-attention")));
    this.root.classList.toggle("bare", !this.view);
    this.drawLegend();
  }

  /** Without a column chosen, the strongest of the row is; without a row, the first that says something is shown. */
  chooseStrongest() {
    this.state.column = 0;
    const { view, state } = this;
    const rows = [...(view?.rows.keys() ?? [])].slice(view?.rowOf(state.row));
    const looks = rows.filter((row) => links(view, "row", row).found.length);
    const row = looks.find((one) => !this.opens || saysSomething(view, one)) ?? looks[0];
    if (row === undefined) return;
    const best = links(view, "row", row).found[0];
    Object.assign(state, { row: view.rows[row].tokens[0], column: best.item.tokens[0] });
  }

  /** Draws the selection: figure, panel, sentence, table. */
  draw() {
    if (!this.view) return;
    VIEWS[this.state.tab].draw(this);
    drawDetail(this, this.places.detail);
    drawTable(this, this.places.table);
    this.live?.whatIf.follow();
    const at = this.at();
    const cell = ["matrix", "picture"].includes(this.state.tab) && at.side === "row" ? ` ${cellSentence(this.view, at)}` : "";
    const heads = this.view.overlay ? overlay.sentence(this.view, at) : "";
    const words = (this.state.lock ? t("page.words.locked") : "") + sentence(this.view, at) + cell + heads;
    if (this.places.sentence.textContent !== words) this.places.sentence.textContent = words;
  }

  drawLegend() {
    if (!this.view) return;
    if (this.view.overlay) {
      fill(this.places.legend, ...overlay.legend(this));
      return;
    }
    const table = ramp(this.theme);
    const over = this.state.tab === "picture" && this.view && picture.fits(this.view);
    const stops = over ? picture.stops(this.theme) : [0, 51, 102, 153, 204, 255].map((i) => `rgb(${table[i].join(",")})`);
    const all = this.state.tab === "heads"; // each small map has a scale of its own, and all of its mass
    const own = { map: exact(this.view.max), row: t("page.legend.strongest") }[this.state.scale];
    const end = this.state.scale === "fixed" ? "1" : all ? t("page.legend.head") : own;
    fill(
      this.places.legend,
      h("span", {}, "0"),
      h("span", { class: "ramp", style: { background: `linear-gradient(to right, ${stops.join()})` } }),
      h("span", {}, end),
      h("span", { class: "dim" }, all ? "" : this.hiddenSentence()),
    );
  }

  /** A sentence about the mass that is not drawn. */
  hiddenSentence() {
    const { hidden } = this.view;
    if (!hidden.length) return "";
    const mean = hidden.reduce((a, b) => a + b, 0) / hidden.length;
    const most = hidden.reduce((a, b) => Math.max(a, b), 0);
    return most < 0.0005 ? t("page.legend.all") : t("page.legend.hidden", { mean: number(mean), most: number(most) });
  }

  /** The selection as indices of rows and columns of the view. */
  at() {
    const { row, column, side } = this.preview ?? this.state;
    return { row: this.view.rowOf(row), column: this.view.columnOf(column), side };
  }

  /** The selection of a place in the view, as numbers of tokens; the other side is its strongest. */
  selection({ side, row, column }) {
    const { view } = this;
    const at = this.at();
    const best = (i) => links(view, side, i).found[0]?.index;
    if (side === "row") column ??= row === undefined || row === at.row ? at.column : (best(row) ?? at.column);
    else row ??= column === undefined || column === at.column ? at.row : (best(column) ?? at.row);
    row ??= at.row;
    column ??= at.column;
    return { side, row: view.rows[row]?.tokens[0] ?? 0, column: view.columns[column]?.tokens[0] ?? 0 };
  }

  hover(at) {
    if (this.state.lock) return;
    this.preview = this.selection(at);
    this.redraw();
  }

  leave() {
    if (!this.preview) return;
    this.preview = null;
    this.redraw();
  }

  pick(at) {
    this.preview = null;
    const next = this.selection(at);
    const same = ["side", "row", "column"].every((name) => next[name] === this.state[name]);
    this.set({ ...next, lock: !(same && this.state.lock) });
    this.stage.focus({ preventScroll: true });
  }

  move(at) {
    this.preview = null;
    Object.assign(this.state, this.selection(at));
    if (this.state.tab === "matrix") matrix.follow(this);
    keepHash(this.state);
    this.draw();
  }

  lock() {
    this.set({ ...(this.preview ?? {}), lock: !this.state.lock });
  }

  free() {
    this.set({ lock: false });
  }

  arrow(dx, dy) {
    if (this.view) VIEWS[this.state.tab].arrow(this, dx, dy);
  }

  /** Through all heads of all layers of this kind, the mean of a layer before its heads. */
  nextHead(step) {
    const all = this.trace.layers(this.state.kind).flatMap((layer) =>
      (layer.heads > 1 ? ["mean", ...Array(layer.heads).keys()] : ["mean"]).map((head) => ({ layer: layer.layer, head })),
    );
    if (!all.length) return;
    const here = all.findIndex(({ layer, head }) => layer === this.state.layer && head === this.state.head);
    this.set(all[(here + step + all.length) % all.length]);
  }

  toggleOverlay() {
    if (overlay.TABS.includes(this.state.tab)) this.set({ overlay: !this.state.overlay });
  }

  toggleWords() {
    if (wordsHelp(this.trace).differ) this.set({ words: !this.state.words });
  }

  tabNumber(index) {
    if (this.has(TABS[index])) this.set({ tab: TABS[index] });
  }

  /** Whether a tab has something to show. */
  has(tab) {
    return tab !== "picture" || Boolean(this.trace?.backdrop);
  }

  open(layer, head) {
    const only = this.trace.layers(this.state.kind).find((one) => one.layer === layer).heads === 1;
    this.set({ layer, head: only ? "mean" : head, tab: "matrix" }).then(() => this.stage.focus({ preventScroll: true }));
  }

  help() {
    this.dialog.showModal();
  }

  /** Shows the same in another language. */
  speak(language) {
    choose(language);
    this.live?.relabel();
    if (this.state) this.set({});
  }

  /** Shows another trace than before, in the same way. */
  show(json, label) {
    this.documents = [{ label, best: null, json: () => json }];
    this.traces.clear();
    if (!this.state) return this.start();
    return this.set({ reload: true, trace: 0, row: undefined, column: undefined, side: "row", lock: false });
  }

  targetLabel(row) {
    return this.view.rows[row]?.text ?? "";
  }

  get title() {
    const [source, target] = [this.trace.source.text, this.trace.target.text];
    // a text that is only read, or that goes on with its source, is named once
    const texts = target.startsWith(source) ? [target] : [source, target];
    return texts.map((text) => short(text, 40)).join(" → ");
  }
}

/** Fits a state to a trace: settings that it does not have are replaced. */
function fit(trace, state) {
  const kinds = [state.kind, "hops", "cross", ...trace.kinds]; // in this order, as in the terminal
  state.kind = kinds.find((kind) => trace.kinds.includes(kind));
  const layers = trace.layers(state.kind);
  const layer = layers.find((one) => one.layer === state.layer) ?? layers.at(-1);
  state.layer = layer?.layer ?? 0;
  if (!layer || layer.heads === 1 || !(state.head < layer.heads)) state.head = "mean";
  const within = (value, count) => Math.max(0, Math.min(value ?? 0, count - 1));
  state.row = within(state.row, layer?.rows ?? 0);
  if (state.column !== undefined) state.column = within(state.column, layer?.columns ?? 0);
  // a tab that nobody chose follows the model, as from texts to pictures
  const opens = trace.backdrop ? "picture" : "text";
  if ([undefined, state.opened].includes(state.tab) || (state.tab === "picture" && !trace.backdrop)) state.tab = opens;
  state.opened = opens;
  state.side ??= "row";
  state.mass ??= 0.9;
  state.lock ??= false;
  state.sort ??= "layer";
  // where a row is spread over hundreds of inputs, a scale to 1 would show an empty map
  if (trace.backdrop) state.scale ??= "row";
  state.scale ??= (layer?.columns ?? 0) > 64 ? "map" : "fixed";
}

function meta({ model, decoded, notes }) {
  const ranked = t("page.meta.beam-ranked", { beam: decoded.beam ?? "", rank: decoded.rank + 1 });
  const how = {
    beam: decoded.rank ? ranked : t("page.meta.beam", { beam: decoded.beam ?? "" }),
    greedy: t("page.meta.greedy"), sample: t("page.meta.sample"), forced: t("page.meta.forced"),
  };
  const facts = [
    model.name, model.kind !== model.name ? model.kind : "", model.step !== null ? t("page.meta.step", { step: model.step }) : "",
    model.checkpoint ? t("page.meta.checkpoint", { hash: model.checkpoint.slice(0, 8) }) : "",
    how[decoded.mode] ?? decoded.mode,
    decoded.log_prob !== null ? t("page.log-probability", { value: decoded.log_prob.toFixed(2) }) : "",
  ];
  return [...facts.filter(Boolean), ...notes].map((fact) => h("li", {}, String(fact)));
}

function documents() {
  return [...document.querySelectorAll("script.trace")].map((node) => ({
    label: node.dataset.label,
    best: node.dataset.best ? JSON.parse(node.dataset.best) : null,
    json: () => JSON.parse(node.textContent),
  }));
}

/** The button that names the other language, in that language. */
function languageSwitch(app) {
  const button = document.getElementById("language");
  const next = () => languages()[(languages().indexOf(current()) + 1) % languages().length];
  const name = () => {
    button.lang = next();
    button.textContent = button.dataset[next()];
  };
  button.addEventListener("click", () => {
    app.speak(next());
    name();
  });
  name();
  button.hidden = false;
}

async function main() {
  relabel();
  const root = document.getElementById("app");
  const app = new App(documents(), root);
  const about = document.getElementById("live");
  if (about) app.live = new Live(app, JSON.parse(about.textContent));
  else if (!app.documents.length) return;
  languageSwitch(app);
  root.hidden = false;
  document.getElementById("static")?.remove();
  if (app.documents.length) await app.start();
}

main();
