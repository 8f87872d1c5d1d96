// Compares attention with attribution methods for one output, and shows the faithfulness of each.

import { bdi, fill, h, number } from "./dom.js";
import { has, rich, t } from "./messages.js";
import { short } from "./tokens.js";

/** Inputs in the table at once. */
const MOST = 60;

/** Columns of the table of faithfulness, by their names in the trace. */
const FAITHFUL = ["insertion", "deletion", "comprehensiveness", "sufficiency"];

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
    fill(parts.body, nothing(app, t("page.checks.nothing-to-compare")));
    return;
  }
  const measures = collected(app, names);
  const at = app.at();
  const top = h(
    "p",
    { class: "asked" },
    ...rich("page.checks.question", { output: bdi(short(app.targetLabel(at.row), 40), { class: "token chosen" }) }),
    h("span", { class: "dim" }, t("page.checks.up-and-down")),
  );
  const hint = names.length ? null : nothing(app, t("page.checks.no-measurements"));
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
    // two figures of the largest
    one.digits = one.top > 1e-9 ? Math.max(2, 1 - Math.floor(Math.log10(one.top))) : 2;
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
    h("th", { scope: "col" }, t("page.checks.input")),
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
  const cut = read > MOST ? t("page.checks.cut", { most: MOST, count: read }) : "";
  const caption = `${t("page.checks.caption")}${cut}`;
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": t("page.checks.table") },
    h("table", { class: "checks" }, h("caption", {}, h("span", {}, caption)), h("thead", {}, head), h("tbody", {}, ...rows)),
  );
}

/** Title and description of a measure; in contrast, its name ends in the token that was not written. */
function heading(name) {
  const [method, ...token] = name.split(" versus ");
  const key = `measure.${token.length ? method : name}`;
  if (!has(`${key}.title`)) return [name, h("small", {}, t("page.checks.as-measured"))];
  const title = t(`${key}.title`);
  if (!token.length) return [title, h("small", {}, t(`${key}.what`))];
  const versus = rich("page.checks.versus", { measure: title, token: bdi(short(token.join(" versus "), 24)) });
  return [...versus, h("small", {}, t("page.checks.versus-what"))];
}

function value(measure, row, column) {
  return measure.values[row * measure.columns + column] ?? 0;
}

function bar(measure, row, column) {
  const found = value(measure, row, column);
  const width = `${((100 * Math.abs(found)) / measure.top).toFixed(1)}%`;
  const inner = h("i", { class: found < 0 ? "less" : null, style: { width } });
  const digits = number(found, measure.digits);
  return [h("span", { class: "bar", "aria-hidden": "true" }, inner), h("span", { class: "value" }, digits)];
}

function nothing(app, why) {
  const how = app.live
    ? h("button", { type: "button", class: "primary", onclick: () => app.live.check(app) }, t("page.checks.measure-now"))
    : h("span", {}, ...rich("page.checks.make-them", { command: h("code", {}, 'regard check RUN "text" -o page.html') }));
  return h(
    "p",
    { class: "note" },
    t("page.checks.why", { why }),
    how,
  );
}

/** The sentences and numbers of `regard check`. */
function numbers(checks) {
  const { sentences = [], faithfulness, methods, unavailable_methods, ...rest } = checks ?? {};
  const names = Object.keys(rest);
  if (!names.length && !sentences.length) return "";
  return h(
    "section",
    { class: "numbers" },
    h("h2", {}, t("page.checks.found")),
    h("ul", {}, ...sentences.map((sentence) => h("li", {}, String(sentence)))),
    faithfulness ? byMethod(faithfulness) : "",
    names.length ? h("details", {}, h("summary", {}, t("page.checks.all-numbers")), list(rest)) : "",
  );
}

function titleOf(name) {
  if (name === "ablation") return t("measure.ablation.name");
  return has(`measure.${name}.title`) ? t(`measure.${name}.title`) : name;
}

function interval(one) {
  if (typeof one.gain_low !== "number" || typeof one.gain_high !== "number") return t("page.no-interval");
  return t("page.range", { low: worded(one.gain_low), high: worded(one.gain_high) });
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
      h("th", { scope: "row" }, name === "random" ? t("measure.random.title") : titleOf(name)),
      h("td", {}, bar({ values: [gain(one)], columns: 1, top }, 0, 0)),
      h("td", {}, interval(one)),
      ...FAITHFUL.map((key) => h("td", {}, worded(one[key]))),
    ),
  );
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, t("page.checks.method")),
    h("th", { scope: "col" }, t("measure.gain.title"), h("small", {}, t("measure.gain.what"))),
    h("th", { scope: "col" }, t("page.checks.interval"), h("small", {}, t("page.checks.interval-what"))),
    ...FAITHFUL.map((key) => h("th", { scope: "col" }, t(`measure.${key}.title`), h("small", {}, t(`measure.${key}.what`)))),
  );
  const caption = h("caption", {}, h("span", {}, t("page.checks.trust")));
  const table = h("table", { class: "checks faithfulness" }, caption, h("thead", {}, head), h("tbody", {}, ...rows));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("page.checks.faithfulness") }, table);
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
  if (typeof item === "number") return Number.isInteger(item) ? String(item) : number(item);
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
