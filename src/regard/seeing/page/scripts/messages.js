// Texts of the page in all languages, which its maker embeds, and the switch between them.

const CATALOGUES = JSON.parse(document.getElementById("messages").textContent);
/** Name of the setting in the browser's storage. */
const STORED = "regard.language";
/** Attributes that hold texts. */
const ATTRIBUTES = ["aria-label", "placeholder", "title"];
const TAGS = { en: "en", zh: "zh-CN" };

let language = preferred();

/** The key of the language in which the page speaks. */
export function current() {
  return language;
}

/** Keys of all languages that the page has. */
export function languages() {
  return Object.keys(CATALOGUES);
}

/** Whether there is a text of this key. */
export function has(key) {
  return Object.hasOwn(CATALOGUES[language], key);
}

/** A text, with its placeholders filled in. */
export function t(key, values = {}) {
  return CATALOGUES[language][key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** A text whose placeholders may be elements: a list of strings and elements. */
export function rich(key, values) {
  return CATALOGUES[language][key].split(/(\{\w+\})/).map((part) => (/^\{\w+\}$/.test(part) ? values[part.slice(1, -1)] : part));
}

/** Attributes of an element with a label that follows the switch. */
export function named(key, attribute = "aria-label") {
  return { [attribute]: t(key), [`data-text-${attribute}`]: key };
}

/** Writes all texts of the document that follow the switch. */
export function relabel() {
  document.documentElement.lang = TAGS[language] ?? language;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text, node.dataset);
  for (const attribute of ATTRIBUTES) {
    for (const node of document.querySelectorAll(`[data-text-${attribute}]`)) {
      node.setAttribute(attribute, t(node.getAttribute(`data-text-${attribute}`)));
    }
  }
}

/** Speaks another language from now on, here and on the next visit. */
export function choose(name) {
  language = name;
  try {
    localStorage.setItem(STORED, name);
  } catch {
    // a page without storage, like one in a notebook's frame, forgets it
  }
  relabel();
}

/** The language that was chosen before, or the first of the reader's that the page has, or that of the document. */
function preferred() {
  const known = (tag) => Object.keys(CATALOGUES).find((name) => name === String(tag).split("-")[0].toLowerCase());
  const { lang, dataset } = document.documentElement;
  try {
    const stored = known(localStorage.getItem(STORED));
    if (stored) return stored;
  } catch {
    // no storage
  }
  const readers = dataset.language === "auto" ? navigator.languages.map(known) : [];
  return readers.find(Boolean) ?? known(lang) ?? "en";
}
