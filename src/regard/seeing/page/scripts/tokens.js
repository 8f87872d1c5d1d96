// Labels of tokens, and sub-words merged to words.

const PICTURES = { "\n": "↵", "\r": "⏎", "\t": "⇥", "\u00a0": "⍽", "\u3000": "⬚" };
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}\u00a0\u3000]/gu;
const SHAPING = /^(?:\u200c|\u200d|\ufe0e|\ufe0f)+$/u;
const RTL = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const SEGMENTS = new Intl.Segmenter();

/** A visible label: an empty token, a space and a newline have symbols of their own. */
export function shown(text) {
  if (text === "") return "∅";
  if (SHAPING.test(text)) return [...text].map(code).join(""); // no letter is there to be shaped
  const seen = text.replace(UNSEEN, visible);
  if (text.trim() === "") return seen.replace(/\p{Zs}/gu, (char) => (char === " " ? "␣" : code(char)));
  return /^\p{M}/u.test(seen) ? `◌${seen}` : seen; // a mark without a letter needs one to sit on
}

function visible(char) {
  if (char in PICTURES) return PICTURES[char];
  if ("\u200c\u200d\ufe0e\ufe0f".includes(char)) return char; // they shape the letters beside them
  return code(char);
}

function code(char) {
  return `⟨${char.codePointAt(0).toString(16).toUpperCase()}⟩`;
}

/** A label of `most` characters at most. */
export function short(text, most = 24) {
  const seen = shown(text);
  if (seen.length <= most) return seen;
  // an emoji may be several code points that must not be torn apart
  const parts = Array.from(SEGMENTS.segment(seen), (part) => part.segment);
  return parts.length <= most ? seen : `${parts.slice(0, most - 1).join("")}…`;
}

/** The direction of a text, from the first letter that has one. */
export function direction(text) {
  const letter = /\p{L}/u.exec(text);
  return letter && RTL.test(letter[0]) ? "rtl" : "ltr";
}

/**
 * What stands along a side: tokens, or words made of them.
 * Each item has a label, the tokens it is made of, and where it stands in the text.
 */
export function items(tokens, text, words) {
  const letters = [...text]; // spans count characters, not the halves that JavaScript counts
  const found = [];
  tokens.forEach((token, i) => {
    const last = found.at(-1);
    if (words && last && sameWord(last, token)) last.tokens.push(i);
    else found.push({ tokens: [i], word: token.word, special: token.special });
  });
  return found.map((item) => finished(item, tokens, letters, words));
}

function sameWord(last, token) {
  return !last.special && !token.special && token.word !== null && last.word === token.word;
}

function finished(item, tokens, letters, words) {
  const parts = item.tokens.map((i) => tokens[i]);
  const found = parts.length === 1 ? parts[0].text : whole(parts, letters);
  const plain = (piece) => (words && piece.replace(/^▁/, "")) || piece; // without the sign that starts a word
  const text = plain(found);
  const probs = parts.map((part) => part.prob);
  const spans = parts.map((part) => part.span);
  return {
    ...item,
    text,
    label: shown(text),
    span: spans.every(Boolean) ? [spans[0][0], spans.at(-1)[1]] : null,
    prob: probs.every((p) => p !== null) ? probs.reduce((a, b) => a * b, 1) : null,
    alternatives: parts.length === 1 ? parts[0].alternatives.map(([piece, prob]) => [plain(piece), prob]) : [],
  };
}

/** A word as in the text; its tokens joined if their spans are unknown. */
function whole(parts, letters) {
  if (parts.every((part) => part.span)) {
    return letters.slice(parts[0].span[0], parts.at(-1).span[1]).join("");
  }
  return parts.map((part) => part.text.replace(/^##/, "")).join("");
}

/** True if every token is a single character, which would be lost by merging. */
function oneByOne({ tokens, text }) {
  const letters = [...text];
  const real = tokens.filter((token) => token.word !== null && !token.special);
  // an unknown token stands for a piece of the text
  const pieces = real.map((token) => (token.span ? letters.slice(...token.span).join("") : token.text));
  return pieces.every((piece) => [...SEGMENTS.segment(piece)].length <= 1);
}

function merges({ tokens }) {
  return tokens.some((token, i) => i > 0 && sameWord(tokens[i - 1], token));
}

/**
 * What words would bring: whether they differ from tokens at all, and which sides to merge. Where
 * one side is characters and the other is not, only the other is merged.
 */
export function wordsHelp({ source, target }) {
  const sides = { source: !oneByOne(source), target: !oneByOne(target) };
  const wanted = sides.source || sides.target;
  const pieces = merges(source) || merges(target);
  if (!wanted) return { differ: pieces, wanted, sides: { source: true, target: true } };
  return { differ: (sides.source && merges(source)) || (sides.target && merges(target)), wanted, sides };
}
