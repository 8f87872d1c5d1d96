// Creates elements. Text of a model is inserted as text nodes only, so no token becomes markup.

import { t } from "./messages.js";

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

/** Replaces the children of an element; null and "" are skipped. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
}

/** An HTML element; children are elements or strings, and strings become text. */
export function h(tag, attributes, ...children) {
  return make(document.createElement(tag), attributes, children);
}

/** An HTML element with a text of the catalogue, which follows the switch of languages. */
export function spoken(tag, key, attributes) {
  return h(tag, { ...attributes, "data-text": key }, t(key));
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

/** A number with so many digits; one that would round to zero is marked as small. */
export function number(value, digits = 2) {
  if (!Number.isFinite(value)) return "–";
  const [sign, size, least] = [value < 0 ? "−" : "", Math.abs(value), 10 ** -digits];
  if (size > 0 && size < least / 2) return `${sign && ">"}${sign || "<"}${least.toFixed(digits)}`;
  return `${sign}${size.toFixed(digits)}`;
}

/** Throttles `act` to one call per frame, with the newest state. */
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
