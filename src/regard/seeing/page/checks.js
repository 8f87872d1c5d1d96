// Compares attention with attribution methods for one output, and shows the faithfulness of each.

import { bdi, fill, h, number } from "./dom.js";
import { short } from "./tokens.js";

/** Inputs in the table at once. */
const MOST = 60;

/** Descriptions of the measures. */
const MEASURES = {
  looked: ["looked at", "weight of the attention that is chosen above"],
  ablation: ["mattered: ablation", "nats that the output loses when this input is taken away"],
  gradient: ["gradient", "how much the output would change if this input changed a little"],
  "input-gradient": ["gradient × input", "effect of this input, if the model were linear"],
  "integrated-gradients": ["integrated gradients", "share in the change from unknown inputs to these, in nats"],
  relevance: ["AttnLRP", "relevance that is propagated back from the logit"],
  attention: ["attention", "mean weight over all layers and heads"],
  rollout: ["rollout", "attention followed down through all layers"],
  norms: ["value norms", "length of the vectors that attention carries, as a share"],
};

/** Columns of the table of faithfulness: name in the trace, and what it says. */
const FAITHFUL = [
  ["insertion", "area while inputs are put back; higher is better"],
  ["deletion", "area while inputs are taken away; lower is better"],
  ["comprehensiveness", "loss without the highest inputs; higher is better"],
  ["sufficiency", "loss with nothing but them; lower is better"],
];

/** Puts the comparison and the numbers of `regard check` into the stage. */
export function mount(app, stage) {
  const body = h("div", { class: "compare" });
  fill(stage, body, numbers(app.trace.checks));
  app.parts = { body };
}

/** Shows the selected output, by tokens: the ablation of a word is not a sum over its tokens. */
export function draw(app) {
  const { view, trace, parts } = app;
  const names = Object.keys(trace.derived);
  if (!looksAtInputs(view) && !names.length) {
    fill(parts.body, nothing(app, "This kind of attention has nothing to compare with."));
    return;
  }
  const measures = collected(app, names);
  const at = app.at();
  const top = h(
    "p",
    { class: "asked" },
    "What did ",
    bdi(short(app.targetLabel(at.row), 40), { class: "token chosen" }),
    " rest on?",
    h("span", { class: "dim" }, " Up and down choose another output."),
  );
  const hint = names.length ? null : nothing(app, "There are no measurements beside attention.");
  fill(parts.body, top, outputs(app, at), table(app, measures, at), hint);
}

/** Whether rows are outputs and columns inputs, as in cross-attention. */
function looksAtInputs(view) {
  const [rows, columns] = view.layer.sides;
  return rows === "target" && columns === "source";
}

function collected(app, names) {
  const { view, trace } = app;
  const found = [];
  if (looksAtInputs(view)) {
    found.push({ name: "looked", values: view.weights, columns: view.columns.length });
  }
  for (const name of names) found.push({ name, ...trace.derived[name] });
  for (const one of found) {
    one.top = one.values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);
  }
  return found;
}

function outputs(app, at) {
  const items = looksAtInputs(app.view) ? app.view.rows : [];
  const from = Math.max(0, Math.min(items.length - 120, at.row - 60));
  const chips = items.slice(from, from + 120).map((item, i) =>
    bdi(short(item.text, 24), {
      class: `token${from + i === at.row ? " chosen" : ""}${item.special ? " special" : ""}`,
      onclick: () => app.pick({ side: "row", row: from + i }),
    }),
  );
  return h("p", { class: "outputs" }, ...chips.flatMap((chip) => [chip, " "]));
}

function table(app, measures, at) {
  const tokens = app.trace.source.tokens;
  const strength = (c) => Math.max(...measures.map((m) => Math.abs(value(m, at.row, c)) / m.top));
  const { layer } = app.view;
  // a language model has read no more than this when it wrote the output
  const read = layer.causal && looksAtInputs(app.view) ? at.row + 1 + layer.columns - layer.rows : tokens.length;
  let shownRows = tokens.map((_, c) => c).slice(0, read);
  if (shownRows.length > MOST) {
    shownRows = shownRows.sort((a, b) => strength(b) - strength(a)).slice(0, MOST);
    shownRows.sort((a, b) => a - b);
  }
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "input"),
    ...measures.map(({ name }) => h("th", { scope: "col" }, ...heading(name))),
  );
  const rows = shownRows.map((c) =>
    h(
      "tr",
      { class: c === at.column ? "here" : null },
      h("th", { scope: "row" }, bdi(short(tokens[c].text), { class: "token" })),
      ...measures.map((measure) => h("td", {}, bar(measure, at.row, c))),
    ),
  );
  const cut = read > MOST ? ` The ${MOST} strongest of ${read} inputs are shown.` : "";
  const caption = `Each bar is as long as its measure is strong, against the largest of the whole map.${cut}`;
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Looked at and mattered" },
    h("table", { class: "checks" }, h("caption", {}, h("span", {}, caption)), h("thead", {}, head), h("tbody", {}, ...rows)),
  );
}

/** Title and description of a measure; in contrast, its name ends in the token that was not written. */
function heading(name) {
  const [method, ...token] = name.split(" versus ");
  const known = MEASURES[token.length ? method : name];
  const [title, what] = known ?? [name, "as `regard check` has measured it"];
  if (!known || !token.length) return [title, h("small", {}, what)];
  return [title, " versus ", bdi(short(token.join(" versus "), 24)), h("small", {}, "why this output, and not that one")];
}

function value(measure, row, column) {
  return measure.values[row * measure.columns + column] ?? 0;
}

function bar(measure, row, column) {
  const found = value(measure, row, column);
  const width = `${((100 * Math.abs(found)) / measure.top).toFixed(1)}%`;
  const inner = h("i", { class: found < 0 ? "less" : null, style: { width } });
  const digits = found <= -0.005 ? `−${number(-found)}` : number(Math.max(0, found));
  return [h("span", { class: "bar", "aria-hidden": "true" }, inner), h("span", { class: "value" }, digits)];
}

function nothing(app, why) {
  const how = app.live
    ? h("button", { type: "button", class: "primary", onclick: () => app.live.check(app) }, "Measure now")
    : h("span", {}, "Make them with ", h("code", {}, 'regard check RUN "text" -o page.html'), ".");
  return h(
    "p",
    { class: "note" },
    `${why} Attention says where the model looked; whether it mattered is measured by taking inputs away. `,
    how,
  );
}

/** The sentences and numbers of `regard check`. */
function numbers(checks) {
  const { sentences = [], tau_ablation_by_head: heads, faithfulness, methods, unavailable_methods, ...rest } = checks ?? {};
  const names = Object.keys(rest);
  if (!names.length && !sentences.length) return "";
  return h(
    "section",
    { class: "numbers" },
    h("h2", {}, "What the checks found"),
    h("ul", {}, ...sentences.map((sentence) => h("li", {}, String(sentence)))),
    faithfulness ? byMethod(faithfulness) : "",
    heads?.flat().length > 1 ? byHead(heads) : "",
    names.length ? h("details", {}, h("summary", {}, "All numbers"), list(rest)) : "",
  );
}

function titleOf(name) {
  return name === "ablation" ? name : (MEASURES[name]?.[0] ?? name);
}

/** The faithfulness of each method, best first, with bars of the gain. */
function byMethod(found) {
  // a saved file may hold anything
  const methods = Object.entries(found).filter(([, one]) => one !== null && typeof one === "object").slice(0, 20);
  const gain = (one) => (typeof one.gain === "number" ? one.gain : 0);
  const top = Math.max(1e-9, ...methods.map(([, one]) => Math.abs(gain(one))));
  const rows = methods.map(([name, one]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name === "random" ? "random order" : titleOf(name)),
      h("td", {}, bar({ values: [gain(one)], columns: 1, top }, 0, 0)),
      h("td", {}, `${worded(one.gain_low)} to ${worded(one.gain_high)}`),
      ...FAITHFUL.map(([key]) => h("td", {}, worded(one[key]))),
    ),
  );
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "method"),
    h("th", { scope: "col" }, "gain", h("small", {}, "insertion less deletion; 0 is a random order")),
    h("th", { scope: "col" }, "95% interval", h("small", {}, "of the gain, over outputs")),
    ...FAITHFUL.map(([name, what]) => h("th", { scope: "col" }, name, h("small", {}, what))),
  );
  const caption = h("caption", {}, h("span", {}, "Which method to trust here: what taking inputs away in its order does to the output"));
  const table = h("table", { class: "checks faithfulness" }, caption, h("thead", {}, head), h("tbody", {}, ...rows));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Faithfulness of methods" }, table);
}

function byHead(layers) {
  const rows = layers.slice(0, 48).map((taus, layer) =>
    h("tr", {}, h("th", { scope: "row" }, `layer ${layer}`), ...taus.map((tau) => h("td", {}, worded(tau)))),
  );
  const head = h("tr", {}, h("td"), ...(layers[0] ?? []).map((_, i) => h("th", { scope: "col" }, `head ${i}`)));
  const caption = h("caption", {}, h("span", {}, "How each head's order of the inputs agrees with ablation (tau, 1 is the same)"));
  const table = h("table", { class: "weights" }, caption, h("thead", {}, head), h("tbody", {}, ...rows));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Agreement by head" }, table);
}

function list(found) {
  const entries = Object.entries(found).slice(0, 60);
  return h(
    "dl",
    {},
    ...entries.flatMap(([name, item]) => [
      h("dt", {}, name.replaceAll("_", " ")),
      h("dd", {}, worded(item)),
    ]),
  );
}

function worded(item) {
  if (item === null || item === undefined) return "–";
  if (typeof item === "number") return Number.isInteger(item) ? String(item) : item.toFixed(2);
  if (Array.isArray(item)) {
    const some = item.slice(0, 40).map((one) => (typeof one === "object" ? JSON.stringify(one) : worded(one)));
    return some.join(", ") + (item.length > 40 ? `, … (${item.length})` : "");
  }
  return typeof item === "object" ? list(item) : String(item);
}

/** Up and down choose the output, left and right an input. */
export function arrow(app, dx, dy) {
  const { view } = app;
  const at = app.at();
  const within = (index, count) => Math.max(0, Math.min(count - 1, index));
  app.move({
    side: "row",
    row: within(at.row + dy, view.rows.length),
    column: within(at.column + dx, view.columns.length),
  });
}
