// Keyboard shortcuts, which act only while the figure has the focus.

import { h, spoken } from "./dom.js";

/** Keys, and the names of what they do. */
const HELP = [
  ["← → ↑ ↓", "move"],
  ["Home End", "ends"],
  ["Page up, page down", "pages"],
  ["Enter", "lock"],
  ["Esc", "free"],
  ["[ ]", "heads"],
  ["w", "words"],
  ["o", "overlay"],
  ["1 2 3 4 5", "tabs"],
  ["?", "help"],
];

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const JUMPS = {
  Home: [-1e6, 0],
  End: [1e6, 0],
  PageUp: [0, -10],
  PageDown: [0, 10],
};

/** Listens on the stage. */
export function listen(app, stage) {
  stage.addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey || (event.ctrlKey && !(event.key in JUMPS))) return;
    if (act(app, event)) event.preventDefault();
  });
}

function act(app, event) {
  const { key } = event;
  if (key in ARROWS) return app.arrow(...ARROWS[key]), true;
  if (key in JUMPS) return jump(app, event), true;
  if (key === "Enter") return enter(app, event);
  if (key === "Escape") return app.free(), true;
  if (key === "[" || key === "]") return app.nextHead(key === "]" ? 1 : -1), true;
  if (key === "w") return app.toggleWords(), true;
  if (key === "o") return app.toggleOverlay(), true;
  if (key === "?") return app.help(), true;
  if ("12345".includes(key)) return app.tabNumber(Number(key) - 1), true;
  return false;
}

function jump(app, event) {
  const [dx, dy] = JUMPS[event.key];
  if (!event.ctrlKey) return app.arrow(dx, dy, true);
  app.arrow(dx, 0, true);
  return app.arrow(0, dx, true);
}

function enter(app, event) {
  if (event.target.closest("button, a")) return false; // it opens what has the focus
  app.lock();
  return true;
}

/** The dialog that lists the shortcuts. */
export function helpDialog() {
  const rows = HELP.flatMap(([keys, what]) => [
    h("dt", {}, ...keys.split(" ").flatMap((key, i) => [i ? " " : "", /^[a-z]{2}|,/i.test(key) && !/^(Home|End|Enter|Esc)$/.test(key) ? key : h("kbd", {}, key)])),
    spoken("dd", `page.keys.${what}`),
  ]);
  const close = spoken("button", "page.help.close", { type: "submit", class: "primary" });
  return h(
    "dialog",
    { class: "help", "aria-labelledby": "help-title" },
    spoken("h2", "page.help.title", { id: "help-title" }),
    spoken("p", "page.help.text"),
    spoken("h2", "page.help.keys"),
    h("dl", {}, ...rows),
    h("form", { method: "dialog" }, close),
  );
}
