// The panel of the live page that asks "what if": other answers, a forced one, and changes after
// which the model decodes again, with both maps and their difference side by side.

import { Trace } from "./data.js";
import { bdi, fill, h, number, s, spoken } from "./dom.js";
import { named, rich, t } from "./messages.js";
import { short, shown } from "./tokens.js";
import { kindName } from "./view.js";

const MOST = 40; // rows and columns of a small map; those after them are said to be left out
const CELL = 16;
const SHADES = 8;
const LISTED = 40; // heads that can be chosen, those that differ most first

/** Asks for answers and changes; `live` asks the server. */
export class WhatIf {
  constructor(live) {
    this.live = live;
    this.changes = [];
    this.answer = h("output", { class: "answer", dir: "auto" });
    this.copied = h("span", { class: "dim", role: "status" });
    this.list = h("ul", { class: "changes", ...named("page.what-if.changes") });
    this.answers = h("ol", { class: "answers", ...named("page.answers") });
    this.result = h("div", { class: "result", "aria-live": "polite" });
    this.selected = h("p", { class: "dim", id: "what-if-cell" });
    this.root = h("div", { class: "what-if", hidden: true },
      h("p", { class: "plain" }, spoken("span", "page.answer", { class: "dim" }), this.answer,
        spoken("button", "page.copy", { type: "button", onclick: () => this.copy() }),
        spoken("button", "page.copy-link", { type: "button", onclick: () => this.copyLink() }), this.copied),
      h("details", {}, spoken("summary", "page.answers.other"), this.decoding(), this.answers),
      h("details", {}, spoken("summary", "page.what-if"), this.form(), this.list, this.selected, this.buttons(), this.result),
    );
  }

  /** Shows the answer of a trace, and what can be changed in it. */
  show(trace) {
    this.trace = trace;
    this.root.hidden = false;
    this.answer.textContent = trace.target.text;
    this.answers.replaceChildren(); // those of another text
    this.copied.textContent = "";
    this.beam.box.value = this.live.model.beam ?? 5;
    const tokens = trace.source.tokens.map((token, i) => [token, i]).filter(([token]) => !token.special && token.span);
    fill(this.token, ...tokens.map(([token, i]) => h("option", { value: i }, `${i}: ${short(token.text, 24)}`)));
    this.drop(() => true);
    this.follow();
  }

  /** Copies the address, which holds the text, the model and the view. */
  async copyLink() {
    const lacks = this.live.linkLacks();
    try {
      await navigator.clipboard.writeText(location.href);
      this.copied.textContent = t(lacks ? "page.link-without-text" : "page.link-copied");
    } catch {
      this.copied.textContent = t("page.link-in-address");
    }
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.answer.textContent);
      this.copied.textContent = t("page.copied");
    } catch {
      const range = document.createRange();
      range.selectNodeContents(this.answer);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      this.copied.textContent = t("page.selected");
    }
  }

  /** Beam, n-best, samples and temperature, the longest answer, and a target to force. */
  decoding() {
    const limit = (this.live.info.limits?.beam ?? 16);
    this.beam = input("page.answers.beam", { type: "number", min: 1, max: limit, value: 5 });
    this.nbest = input("page.answers.count", { type: "number", min: 1, max: limit, value: 5 });
    this.temperature = input("page.answers.temperature", { type: "number", min: 0.1, max: 5, step: 0.1, value: 1 });
    this.longest = input("page.answers.longest", { type: "number", min: 1, max: this.live.info.limits?.tokens ?? null, onchange: () => this.live.ask() });
    this.target = input("page.answers.target", { type: "text", autocomplete: "off", spellcheck: "false" });
    return h("form", { class: "fields", onsubmit: (event) => event.preventDefault() },
      this.beam.field, this.nbest.field,
      spoken("button", "page.answers.search", { type: "button", onclick: () => this.search() }),
      this.temperature.field,
      spoken("button", "page.answers.sample", { type: "button", onclick: () => this.sample() }),
      this.longest.field,
      this.target.field,
      spoken("button", "page.answers.force", { type: "button", onclick: () => this.force(this.target.box.value) }),
    );
  }

  search() {
    const nbest = Number(this.nbest.box.value);
    return this.find({ beam: Math.max(nbest, Number(this.beam.box.value)), nbest });
  }

  sample() {
    return this.find({ samples: Number(this.nbest.box.value), temperature: Number(this.temperature.box.value) });
  }

  /** Lists answers; each can be looked at, as an output that is forced. */
  find(options) {
    return this.live.request("api/answers", options, ({ answers }) => {
      fill(this.answers, ...answers.map(({ text, log_prob }) => h("li", {},
        h("button", { type: "button", onclick: () => this.force(text) }, bdi(text || t("page.answers.nothing"))),
        h("span", { class: "dim" }, " ", t("page.log-probability", { value: log_prob.toFixed(2) })))));
    });
  }

  force(target) {
    return this.live.request("api/run", { target }, async (trace) => {
      await this.live.app.show(trace, trace.source.text);
      this.answer.textContent = trace.target.text;
      this.forced = { target };
    });
  }

  /** A token to replace, and a prefix. */
  form() {
    this.token = h("select", {});
    this.text = input("page.what-if.by", { type: "text", autocomplete: "off", spellcheck: "false" });
    this.prefix = input("page.what-if.prefix", { type: "text", autocomplete: "off", spellcheck: "false" });
    return h("form", { class: "fields", onsubmit: (event) => event.preventDefault() },
      h("label", { class: "field" }, spoken("span", "page.what-if.token"), this.token), this.text.field,
      spoken("button", "page.what-if.replace", { type: "button", onclick: () => this.replace() }),
      this.prefix.field,
    );
  }

  /** The head and the cell that are selected in the figure, and the button that asks. */
  buttons() {
    this.weight = input("page.what-if.weight", { type: "number", min: 0, max: 1, step: 0.05, value: 0.9, "aria-describedby": "what-if-cell" });
    return h("form", { class: "fields", onsubmit: (event) => event.preventDefault() },
      this.weight.field,
      spoken("button", "page.what-if.set-cell", { type: "button", "aria-describedby": "what-if-cell", onclick: () => this.setCell() }),
      spoken("button", "page.what-if.switch-off", { type: "button", "aria-describedby": "what-if-cell", onclick: () => this.switchOff() }),
      spoken("button", "page.what-if.decode", { type: "button", class: "primary", onclick: () => this.ask() }),
    );
  }

  /** Says which cell is selected; click another in the figure, or move with the arrow keys. */
  follow() {
    const { app } = this.live;
    if (!this.trace || !app.state?.kind) return;
    const place = this.place();
    const name = (side, i) => short(app.trace.tokens(side)[i]?.text ?? "", 20);
    const [rows, columns] = place.layer.sides;
    fill(this.selected, ...rich("page.what-if.selected", {
      row: bdi(name(rows, place.row)), column: bdi(name(columns, place.column)),
      kind: kindName(place.kind), layer: place.number, head: headName(place.head),
    }));
  }

  place() {
    const { state, trace } = this.live.app;
    const layer = trace.layers(state.kind).find((one) => one.layer === state.layer);
    const head = layer.heads === 1 ? 0 : state.head === "mean" ? null : state.head;
    return { kind: state.kind, number: state.layer, layer, head, row: state.row, column: state.column ?? 0 };
  }

  replace() {
    const token = Number(this.token.value);
    const text = this.text.box.value;
    this.add({ replace: { token, text } }, `token ${token}`, () => t("page.what-if.becomes", { token, text: shown(text) }));
  }

  setCell() {
    const { kind, number: layer, head, row, column } = this.place();
    const weight = Number(this.weight.box.value);
    const cell = { kind, layer, ...(head === null ? {} : { head }), row, column, weight };
    this.add({ cells: cell }, `cell ${[row, column, kind, layer, head]}`, () => t("page.what-if.cell", { row, column, kind, layer, head: headName(head), weight }));
  }

  switchOff() {
    const { kind, number: layer, layer: { heads }, head } = this.place();
    for (const one of head === null ? Array(heads).keys() : [head]) {
      this.add({ heads_off: { kind, layer, head: one } }, `head ${[kind, layer, one]}`, () => t("page.what-if.off", { head: one, kind, layer }));
    }
  }

  /** Adds a change to the list, in the place of one of the same thing. */
  add(change, key, words) {
    this.changes = this.changes.filter((other) => other.key !== key);
    this.changes.push({ key, change, words });
    this.drawChanges();
  }

  drop(which) {
    this.changes = this.changes.filter((change) => !which(change));
    this.drawChanges();
    this.result.replaceChildren();
  }

  drawChanges() {
    fill(this.list, ...this.changes.map((one) => h("li", {}, bdi(one.words()), " ",
      h("button", { type: "button", "aria-label": t("page.what-if.undo", { change: one.words() }), onclick: () => this.drop((other) => other === one) }, "×"))));
  }

  ask() {
    const of = (name) => this.changes.map(({ change }) => change[name]).filter(Boolean);
    const prefix = this.prefix.box.value;
    const options = { replace: of("replace"), heads_off: of("heads_off"), cells: of("cells"), ...(prefix ? { prefix } : {}) };
    return this.live.request("api/what-if", options, (found) => this.compare(found));
  }

  /** Writes what depends on the language again. */
  relabel() {
    this.copied.textContent = "";
    this.answers.replaceChildren(); // their words are those of a request that is over
    this.result.replaceChildren();
    this.drawChanges();
    this.follow();
  }

  /** Shows both answers, and three maps of the head that differs most. */
  async compare(found) {
    this.pair = found.traces.map((json) => new Trace(json));
    const heads = found.distance.heads.slice(0, LISTED);
    const maps = h("div", { class: "three" });
    const choice = h("select", { onchange: () => this.draw(maps, heads[choice.value]) },
      ...heads.map((one, i) => h("option", { value: i }, t("page.what-if.apart", { kind: one.kind, layer: one.layer, head: one.head, distance: number(one.distance) }))));
    const same = found.answers[0] === found.answers[1];
    fill(this.result,
      h("ul", {}, ...found.changes.map((words) => h("li", {}, t("page.what-if.question", { change: words })))),
      h("dl", {}, h("dt", {}, t("page.what-if.before")), h("dd", { dir: "auto" }, found.answers[0] || t("page.answers.nothing")),
        h("dt", {}, t("page.what-if.after")), h("dd", { dir: "auto" }, found.answers[1] || t("page.answers.nothing"), same ? h("span", { class: "dim" }, " ", t("page.what-if.same")) : "")),
      heads.length ? h("label", { class: "field" }, h("span", {}, t("page.what-if.maps")), choice) : "",
      maps,
      ...[...found.notes, ...found.distance.notes].map((note) => h("p", { class: "note" }, t("page.sentence", { text: note }))),
    );
    if (heads.length) await this.draw(maps, heads[0]);
  }

  async draw(place, { kind, layer, head }) {
    const layers = this.pair.map((trace) => trace.layers(kind).find((one) => one.layer === layer));
    await Promise.all(layers.map((one) => one.load()));
    const maps = layers.map((one, i) => {
      const [rows, columns] = one.sides.map((side) => this.pair[i].tokens(side).map((token) => token.text));
      const weights = one.head(head);
      return { rows, columns, at: (r, c) => weights[r * columns.length + c] };
    });
    const [before, after] = maps;
    const both = (a, b) => b.slice(0, a.length).map((text, i) => (a[i] === text ? text : `${a[i]} → ${text}`));
    const less = {
      rows: both(before.rows, after.rows), columns: both(before.columns, after.columns),
      at: (r, c) => after.at(r, c) - before.at(r, c),
    };
    fill(place, ...[["before", before], ["after", after], ["difference", less]].map(([name, map]) => figure(t(`page.what-if.${name}`), map)),
      h("p", { class: "note key" }, ...rich("page.what-if.key", { gained: ramp("q"), lost: ramp("n") })));
  }
}

/** A labelled box; `field` is what is put into the page. */
function input(key, attributes) {
  const box = h("input", attributes);
  return { box, field: h("label", { class: "field" }, spoken("span", key), box) };
}

/** The name of a head, or of all of them. */
function headName(head) {
  return head === null ? t("page.all-heads") : t("page.head", { head });
}

const fillOf = (value) => `var(--${value < 0 ? "n" : "q"}${Math.round(Math.min(1, Math.abs(value)) * SHADES)})`;

function ramp(hue) {
  const boxes = Array.from({ length: SHADES + 1 }, (_, i) => s("rect", { x: i * 10, width: 10, height: 10, style: { fill: `var(--${i ? hue : "q"}${i})` } }));
  return s("svg", { width: 90, height: 10, "aria-hidden": "true" }, ...boxes);
}

/** A small map, with its strongest cell in words. */
function figure(name, { rows, columns, at }) {
  const [tall, wide] = [Math.min(rows.length, MOST), Math.min(columns.length, MOST)];
  const label = (text) => short(shown(text), 14);
  const left = 8 + 7 * Math.max(1, ...rows.slice(0, tall).map((text) => label(text).length));
  const top = 14 + 5.2 * Math.max(1, ...columns.slice(0, wide).map((text) => label(text).length));
  const parts = [s("rect", { x: left, y: top, width: wide * CELL, height: tall * CELL, style: { fill: "var(--q0)" } })];
  let best = [0, 0];
  for (let r = 0; r < tall; r++) {
    for (let c = 0; c < wide; c++) {
      const value = at(r, c);
      if (Math.abs(value) > Math.abs(at(...best))) best = [r, c];
      if (Math.round(Math.abs(value) * SHADES) === 0) continue;
      const title = s("title", {}, `${rows[r]} ← ${columns[c]}: ${value.toFixed(2)}`);
      parts.push(s("rect", { x: left + c * CELL, y: top + r * CELL, width: CELL - 1, height: CELL - 1, style: { fill: fillOf(value) } }, title));
    }
    parts.push(s("text", { x: left - 5, y: top + (r + 0.72) * CELL, "text-anchor": "end" }, label(rows[r])));
  }
  for (let c = 0; c < wide; c++) {
    parts.push(s("text", { transform: `translate(${left + (c + 0.6) * CELL} ${top - 5}) rotate(-45)` }, label(columns[c])));
  }
  const words = tall && wide ? `${rows[best[0]]} ← ${columns[best[1]]} ${at(...best).toFixed(2)}` : t("page.nothing");
  const [width, height] = [left + wide * CELL + 40, top + tall * CELL + 4];
  const cut = tall < rows.length || wide < columns.length ? t("page.what-if.cut", { tall, wide, rows: rows.length, columns: columns.length }) : "";
  return h("figure", {},
    h("figcaption", {}, name, h("span", { class: "dim" }, cut)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("page.what-if.map", { name }) },
      s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("page.what-if.strongest-label", { name, cell: words }) }, ...parts)),
    h("p", { class: "dim" }, ...rich("page.what-if.strongest", { cell: bdi(words) })));
}
