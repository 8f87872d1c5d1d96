// The input of the live page: streams the answer token by token, then shows its trace.

import { bdi, fill, h, number, spoken } from "./dom.js";
import { csvOf, forecastButtons } from "./forecast.js";
import { current, named, t } from "./messages.js";
import { colour } from "./palette.js";
import { readHash } from "./state.js";
import { short, shown } from "./tokens.js";
import { WhatIf } from "./what_if.js";

const WAIT = 250; // milliseconds without a key before the server is asked
const NAMED = 16; // inputs at most that are all named above the strips
const FORECAST = "regard-forecast"; // the format of an answer that is no trace
const LINK = 2000; // characters at most that the address of the page keeps

/** Asks the server, one question at a time; a newer one ends an older. */
export class Live {
  constructor(app, info) {
    Object.assign(this, { app, info, asked: null, timer: 0, inputs: [] });
    const before = readHash(location.hash);
    this.box = h("textarea", {
      id: "live-text", rows: "2", maxlength: info.limits?.chars ?? null, spellcheck: "false", dir: "auto",
      ...named("page.live.placeholder", "placeholder"), autocomplete: "off",
    });
    this.status = h("p", { class: "status", role: "status" });
    this.stream = h("ol", { class: "stream", ...named("page.live.so-far") });
    this.picker = this.models();
    this.examples = h("p", { class: "examples" });
    this.reads = h("p", { class: "reads", id: "live-reads" });
    this.box.setAttribute("aria-describedby", "live-reads");
    this.box.addEventListener("input", () => this.later());
    this.chooser = h("input", { type: "file", id: "live-file", "aria-describedby": "live-reads" });
    this.chooser.addEventListener("change", () => this.take(this.chooser.files));
    this.forecast = h("figure", { class: "forecast", hidden: true });
    this.whatIf = new WhatIf(this);
    this.label = spoken("label", "page.live.input", { for: "live-text" });
    const place = app.root.querySelector('[data-place="live"]');
    place.append(
      h("div", { class: "ask" }, this.label, this.picker ?? "", this.box, this.chooser), this.reads, this.examples, this.status, this.stream, this.forecast, this.whatIf.root,
    );
    place.hidden = false;
    this.listenForFiles(place);
    this.introduce();
    this.box.value = before.text ?? (this.shown = this.example());
    if (this.asks) this.ask();
    else if (!this.readsFiles) this.box.focus();
  }

  /** The server's description of the selected model. */
  get model() {
    const models = this.info.models ?? [];
    return models.find((model) => model.name === this.picker?.value) ?? models[0] ?? {};
  }

  /** True if the model reads frames, typed as rows of numbers. */
  get readsFrames() {
    return this.model.source?.tokenizer === "vectors";
  }

  /** True if the model reads files, such as pictures, which are chosen or dropped. */
  get readsFiles() {
    return Boolean(this.model.source?.files);
  }

  /** True if there is something to ask about. */
  get asks() {
    return this.readsFiles ? Boolean(this.file) : Boolean(this.box.value.trim());
  }

  /** A file may be dropped anywhere on the input. */
  listenForFiles(place) {
    for (const name of ["dragenter", "dragover"]) {
      place.addEventListener(name, (event) => {
        if (!this.readsFiles || !event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        place.classList.add("dropping");
      });
    }
    place.addEventListener("dragleave", () => place.classList.remove("dropping"));
    place.addEventListener("drop", (event) => {
      place.classList.remove("dropping");
      if (!this.readsFiles) return;
      event.preventDefault();
      this.take(event.dataTransfer?.files);
    });
  }

  /** Asks about the first of some files, unless it is larger than the server allows. */
  async take(files) {
    const file = files?.[0];
    if (!file) return;
    const most = this.info.limits?.file_bytes;
    this.file = null;
    if (most && file.size > most) {
      this.say(t("page.live.too-large", { name: file.name, bytes: file.size.toLocaleString("en"), most: most.toLocaleString("en") }));
      return;
    }
    this.file = { name: file.name, content: await base64(file) };
    await this.ask();
  }

  /** The words of the server about a model, in the language of the page where it has them. */
  said(model) {
    return { ...model, ...model.said?.[current()] };
  }

  /** Describes the models, and the input of the selected one. */
  introduce() {
    for (const [i, option] of [...(this.picker?.options ?? [])].entries()) {
      const { name, about } = this.said(this.info.models[i]);
      option.textContent = about ? t("page.live.option", { name, about: short(about, 60) }) : name;
    }
    const files = this.model.source?.files;
    this.box.hidden = Boolean(files);
    this.chooser.hidden = !files;
    this.chooser.accept = (files ?? []).join();
    this.label.htmlFor = files ? "live-file" : "live-text";
    this.label.dataset.text = files ? "page.live.choose-file" : "page.live.input";
    this.label.textContent = t(this.label.dataset.text);
    const { name, reads, about } = this.said(this.model);
    fill(this.reads, about ? t("page.live.about", { name, about }) : "", reads ? t("page.live.reads", { name, reads }) : "");
    this.offerExamples();
    // the limit of characters is one of texts; frames are counted by the server
    if (this.readsFrames) this.box.removeAttribute("maxlength");
    else if (this.info.limits?.chars) this.box.maxLength = this.info.limits.chars;
  }

  /** Examples of what the model reads, as they are typed. */
  typedExamples() {
    const examples = this.model.examples ?? (this.model.example ? [this.model.example] : []);
    return examples.map((one) => (Array.isArray(one) ? one.map((row) => row.join(" ")).join("\n") : one));
  }

  /** The first example, or nothing. */
  example() {
    return this.typedExamples()[0] ?? "";
  }

  /** A button for each example. */
  offerExamples() {
    const all = this.typedExamples();
    const button = (text) => h("button", { type: "button", onclick: () => this.tryExample(text) }, bdi(short(text, 40)));
    this.examples.hidden = !all.length;
    fill(this.examples, t("page.live.examples"), ...all.flatMap((text) => [" ", button(text)]));
  }

  tryExample(text) {
    this.box.value = this.shown = text;
    this.ask();
  }

  /** Writes everything again, in the language that was chosen. */
  relabel() {
    this.introduce();
    this.say("");
    this.whatIf.relabel();
  }

  /** Asks another model: with its own example, unless the reader has typed something. */
  choose() {
    const typed = this.box.value !== this.shown;
    this.introduce();
    if (!typed || !this.box.value.trim()) this.box.value = this.shown = this.example();
    const endings = this.model.source?.files;
    if (this.file && endings && !endings.some((ending) => this.file.name.toLowerCase().endsWith(ending))) {
      this.file = null; // the last model's, which this one cannot read
      this.chooser.value = "";
    }
    if (!this.asks) {
      this.hasForecast(true); // nothing is shown of what another model said
      this.forecast.replaceChildren();
    }
    this.ask();
  }

  models() {
    const names = (this.info.models ?? []).map((model) => model.name ?? model);
    if (names.length < 2) return null;
    const chosen = readHash(location.hash).model;
    const options = names.map((name) => h("option", { value: name, selected: name === chosen }));
    return h("select", { ...named("page.live.model"), onchange: () => this.choose() }, ...options);
  }

  later() {
    clearTimeout(this.timer);
    this.asked?.abort(); // its answer is stale
    this.timer = setTimeout(() => this.ask(), WAIT);
  }

  question() {
    const model = this.picker?.value;
    const source = this.readsFiles ? { file: this.file?.content } : this.readsFrames ? { frames: frames(this.box.value) } : { text: this.box.value };
    const longest = Number(this.whatIf.longest?.box.value);
    return { ...source, ...(model ? { model } : {}), ...(longest ? { max_len: longest } : {}) };
  }

  async ask() {
    this.asked?.abort();
    const typed = this.readsFiles ? "" : this.box.value;
    if (!this.asks) {
      this.stream.replaceChildren(); // of a question that was taken back
      this.say("");
      return;
    }
    await this.during(async (signal) => {
      this.stream.replaceChildren();
      this.inputs = [];
      const question = this.question();
      // a wider search knows its answer at the end; only a greedy one can be watched
      if ((this.model.beam ?? 1) > 1) {
        await this.done(await (await post("api/run", question, signal)).json(), question, typed);
        return;
      }
      const reply = await post("api/stream", question, signal);
      for await (const [name, data] of events(reply)) {
        if (name === "source") this.source(data);
        else if (name === "token") this.token(data);
        else if (name === "error") throw new Refused(data.error ?? data);
        else if (name === "done") await this.done(data.trace, question, typed);
      }
    });
  }

  /** Runs one request; shows its error unless it was superseded. */
  async during(work) {
    const asked = (this.asked = new AbortController());
    this.say("…");
    try {
      await work(asked.signal);
      this.say("");
    } catch (error) {
      if (asked.signal.aborted) return;
      this.stream.replaceChildren();
      this.say(error instanceof Refused ? error.message : t("page.live.no-answer"));
    }
  }

  say(words) {
    this.status.textContent = words;
  }

  /** Labels above the strips: each input, or the first and last of many. */
  source({ tokens }) {
    this.inputs = tokens;
    const few = tokens.length <= NAMED;
    const named = few ? tokens : [tokens[0], "…", tokens.at(-1)];
    const names = named.map((text) => bdi(short(text, 12)));
    this.stream.append(
      h("li", { class: "names", "aria-hidden": "true" }, h("span", {}, t("page.side.output")),
        h("span", { class: few ? "inputs" : "inputs ends" }, ...names), h("span", {}, t("page.live.looked-most-at")), h("span", { class: "value" }, "p")),
    );
  }

  /** A token as it comes: its row as a strip of colours, and the strongest of it in words. */
  token({ token, prob, row }) {
    const strip = h("span", { class: "strip", "aria-hidden": "true" });
    if (row?.length) strip.style.background = stripes(row, this.app.theme);
    const chance = h("span", { class: "value" }, prob === null ? "" : number(prob));
    this.stream.append(h("li", {}, bdi(shown(token)), strip, this.strongest(row), chance));
    this.stream.scrollTop = this.stream.scrollHeight;
  }

  strongest(row) {
    if (!row?.length) return h("span", { class: "dim" }, t("page.live.cannot-look"));
    const best = row.indexOf(Math.max(...row));
    const name = this.inputs[best] === undefined ? t("page.live.input-number", { number: best + 1 }) : short(this.inputs[best], 16);
    return h("span", { class: "most" }, "← ", bdi(name), ` ${number(row[best])}`);
  }

  /** Shows the figure of a forecast, which is no trace, and hides all that is about one. */
  showForecast(found) {
    const { title, legend, figure, narrow_figure: narrow, notes } = found;
    const drawn = [figure, narrow].filter(Boolean).map((one) => document.importNode(new DOMParser().parseFromString(one, "image/svg+xml").documentElement, true));
    const measure = h("button", { type: "button", class: "primary", onclick: () => this.measure() }, t("page.checks.measure-now"));
    const remarks = notes.map((note) => h("p", { class: "note" }, note));
    fill(this.forecast, h("h2", {}, bdi(title)), h("p", { class: "note" }, legend), ...drawn, ...remarks, remarks.length ? null : measure);
    const labels = { themeLabel: t("page.theme"), saveLabel: t("page.save.as") };
    this.forecast.prepend(forecastButtons(this.forecast, labels, () => csvOf(forecastRows(found)), (theme) => this.app.state && this.app.set({ theme })));
    this.stream.replaceChildren();
    this.hasForecast(true);
  }

  /** Shows either the figure of a forecast or everything about a trace. */
  hasForecast(shown) {
    this.forecast.hidden = !shown;
    this.app.root.toggleAttribute("data-forecast", shown);
    this.whatIf.root.hidden = true;
  }

  /** Shows what the forecast changes by without parts of its history. */
  async measure() {
    await this.request("api/check", {}, (found) => this.done(found, this.question(), ""));
  }

  async done(trace, question, typed) {
    if (trace.format === FORECAST) {
      this.showForecast({ ...trace, title: trace.title.replace(trace.name, this.file?.name ?? trace.name) });
      return;
    }
    this.hasForecast(false);
    this.whatIf.forced = {};
    const label = question.text ?? (question.file && this.file?.name) ?? trace.source.text;
    await this.app.show(trace, label);
    if (this.model.target?.tokenizer !== "numbers") this.whatIf.show(this.app.trace);
    this.stream.replaceChildren();
    await this.app.set({ text: typed && typed.length <= LINK ? typed : undefined, model: question.model });
  }

  /** Whether the address lacks what was asked: a file, or a text that is too long for it. */
  linkLacks() {
    return this.readsFiles || this.box.value.length > LINK;
  }

  /** Asks about the text that is typed, with more options; `use` is given the answer. */
  async request(address, options, use) {
    this.asked?.abort();
    await this.during(async (signal) => {
      await use(await (await post(address, { ...this.question(), ...options }, signal)).json());
    });
  }

  /** Runs the checks for the shown text, and for the answer that was forced. */
  async check(app) {
    this.asked?.abort();
    await this.during(async (signal) => {
      this.say(t("page.live.measuring"));
      const question = { ...this.question(), ...this.whatIf.forced };
      const trace = await (await post("api/check", question, signal)).json();
      await app.show(trace, question.text ?? trace.source.text);
      await app.set({ tab: "checks" });
    });
  }
}

/** The numbers of a forecast, with a title for each column. */
function forecastRows({ series, times, point, levels, quantiles }) {
  const titles = series.flatMap((name) => [name, ...levels.map((level) => `${name} ${level}`)]);
  return [["time", ...titles], ...times.map((time, i) => [time, ...series.flatMap((_, j) => [point[i][j], ...quantiles[i][j]])])];
}

/** Frames as they are pasted: one on each line, numbers with blanks, commas or tabs between them. */
function frames(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return lines.map((line, i) => line.trim().split(/[\s,;]+/).filter(Boolean).map((word) => {
    const value = Number(word);
    if (Number.isFinite(value)) return value;
    throw new Refused({ message: t("page.live.no-number", { line: i + 1, word: short(word, 20) }), hint: t("page.live.frames") });
  }));
}

/** The content of a file in base64. */
function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

class Refused extends Error {
  constructor({ message = t("page.live.refuses"), hint = "" }) {
    super((hint ? t("page.live.refusal", { message, hint }) : t("page.live.refusal-alone", { message })).replace(/\.\.$/, "."));
  }
}

async function post(address, content, signal) {
  const reply = await fetch(address, {
    method: "POST",
    headers: { "content-type": "application/json", "accept-language": current() },
    body: JSON.stringify(content),
    signal,
  });
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => ({}));
  throw new Refused(told.error ?? { message: t("page.live.status", { status: reply.status }) });
}

/** The server-sent events of a reply, as [name, data]. */
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const found = parsed(part);
      if (found) yield found;
    }
  }
}

function parsed(part) {
  let name = "message";
  const data = [];
  for (const line of part.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null;
}

function stripes(row, theme) {
  const stops = row.map((weight, i) => {
    const [from, to] = [i, i + 1].map((edge) => `${((100 * edge) / row.length).toFixed(2)}%`);
    return `${colour(theme, weight)} ${from} ${to}`;
  });
  return `linear-gradient(to right, ${stops.join()})`;
}
