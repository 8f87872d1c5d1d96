// Makes elements. Text of a model gets in as text nodes alone, so that no token can become markup.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

function present(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== "");
}

/** Puts children in the place of those that an element has; null and "" are none. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
}

/** An HTML element; children are elements or strings, and strings become text. */
export function h(tag, attributes, ...children) {
  return make(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return make(document.createElementNS(SVG, tag), attributes, children);
}

/** Characters of a label that fit into a line of any width. */
const WHOLE = 12;

/**
 * A token inside `<bdi>`, so that its direction does not turn the words around it.
 * A short one is not broken, as `22-23` would be after its hyphen.
 */
export function bdi(text, attributes) {
  const found = h("bdi", attributes, text);
  if (text.length <= WHOLE) found.classList.add("whole");
  return found;
}

/** A weight with two digits; what would round to nothing is said to be small. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value > 0 && value < 0.005) return "<0.01";
  return value.toFixed(2);
}

/** At most one call of `act` per frame, with nothing but the newest state. */
export function oncePerFrame(act) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      act();
    });
  };
}
