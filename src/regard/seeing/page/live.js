// The box of the live page: what is typed is answered token by token, and then shown whole.

import { bdi, h, number } from "./dom.js";
import { colour } from "./palette.js";
import { readHash } from "./state.js";
import { short, shown } from "./tokens.js";

const WAIT = 250; // milliseconds without a key before the server is asked
const NAMED = 16; // inputs at most that are all named above the strips

/** Asks the server, one question at a time; a newer one ends an older. */
export class Live {
  constructor(app, info) {
    Object.assign(this, { app, info, asked: null, timer: 0, inputs: [] });
    const before = readHash(location.hash);
    this.box = h("textarea", {
      id: "live-text", rows: "2", maxlength: info.limits?.chars ?? null, spellcheck: "false", dir: "auto",
      placeholder: "Type, and see where the answer looks", autocomplete: "off",
    });
    this.status = h("p", { class: "status", role: "status" });
    this.stream = h("ol", { class: "stream", "aria-label": "Answer so far" });
    this.picker = this.models();
    this.box.value = before.text ?? "";
    this.box.addEventListener("input", () => this.later());
    const label = h("label", { for: "live-text" }, "Input");
    const place = app.root.querySelector('[data-place="live"]');
    place.append(h("div", { class: "ask" }, label, this.picker ?? "", this.box), this.status, this.stream);
    place.hidden = false;
    if (this.box.value) this.ask();
    else this.box.focus();
  }

  models() {
    const names = (this.info.models ?? []).map((model) => model.name ?? model);
    if (names.length < 2) return null;
    const chosen = readHash(location.hash).model;
    const options = names.map((name) => h("option", { value: name, selected: name === chosen }, name));
    return h("select", { "aria-label": "Model", onchange: () => this.ask() }, ...options);
  }

  later() {
    clearTimeout(this.timer);
    this.asked?.abort(); // its answer is stale
    this.timer = setTimeout(() => this.ask(), WAIT);
  }

  question() {
    const model = this.picker?.value;
    return { text: this.box.value, ...(model ? { model } : {}) };
  }

  async ask() {
    this.asked?.abort();
    const question = this.question();
    if (!question.text.trim()) {
      this.stream.replaceChildren(); // of a question that was taken back
      this.say("");
      return;
    }
    await this.during(async (signal) => {
      this.stream.replaceChildren();
      this.inputs = [];
      const reply = await post("api/stream", question, signal);
      for await (const [name, data] of events(reply)) {
        if (name === "source") this.source(data);
        else if (name === "token") this.token(data);
        else if (name === "error") throw new Refused(data.error ?? data);
        else if (name === "done") await this.done(data.trace, question);
      }
    });
  }

  /** Runs one request; what goes wrong is said, unless the reader has typed on. */
  async during(work) {
    const asked = (this.asked = new AbortController());
    this.say("…");
    try {
      await work(asked.signal);
      this.say("");
    } catch (error) {
      if (asked.signal.aborted) return;
      this.stream.replaceChildren();
      this.say(error instanceof Refused ? error.message : "The server does not answer. Is it still running?");
    }
  }

  say(words) {
    this.status.textContent = words;
  }

  /** What the strips are of: a name above each input, or the first and the last where they are many. */
  source({ tokens }) {
    this.inputs = tokens;
    const few = tokens.length <= NAMED;
    const named = few ? tokens : [tokens[0], "…", tokens.at(-1)];
    const names = named.map((text) => bdi(short(text, 12)));
    this.stream.append(
      h("li", { class: "names", "aria-hidden": "true" }, h("span", {}, "output"),
        h("span", { class: few ? "inputs" : "inputs ends" }, ...names), h("span", {}, "looked most at"), h("span", { class: "value" }, "p")),
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
    if (!row?.length) return h("span", { class: "dim" }, "cannot look");
    const best = row.indexOf(Math.max(...row));
    const name = this.inputs[best] === undefined ? `input ${best + 1}` : short(this.inputs[best], 16);
    return h("span", { class: "most" }, "← ", bdi(name), ` ${number(row[best])}`);
  }

  async done(trace, question) {
    await this.app.show(trace, question.text);
    this.stream.replaceChildren();
    await this.app.set({ text: question.text, model: question.model });
  }

  /** Measures what mattered, for the text that is shown. */
  async check(app) {
    this.asked?.abort();
    const question = this.question();
    await this.during(async (signal) => {
      this.say("Measuring: each input is taken away in turn …");
      const trace = await (await post("api/check", { ...question, beam: 1 }, signal)).json();
      await app.show(trace, question.text);
      await app.set({ tab: "checks" });
    });
  }
}

class Refused extends Error {
  constructor({ message = "The server refuses", hint = "" }) {
    super(`${message}${hint ? `: ${hint}` : ""}.`.replace(/\.\.$/, "."));
  }
}

async function post(address, content, signal) {
  const reply = await fetch(address, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(content),
    signal,
  });
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => ({}));
  throw new Refused(told.error ?? { message: `The server answers with ${reply.status}` });
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
