// Parses the JSON of a trace. Weights are unpacked on demand.

import { halves, inflate } from "./bytes.js";
import { t } from "./messages.js";

/** Weights from bytes that hold square roots, in `steps` steps from 0 to 1. */
export function squares(bytes, from, count, steps) {
  const found = new Float32Array(count);
  for (let i = 0; i < count; i++) found[i] = (bytes[from + i] / steps) ** 2;
  return found;
}

async function matrix(packed) {
  const bytes = await inflate(packed.data);
  const size = packed.shape.reduce((a, b) => a * b, 1);
  const values = packed.encoding === "sqrt8" ? squares(bytes, 0, size, packed.steps) : halves(bytes, 0, size);
  return { rows: packed.shape[0], columns: packed.shape[1], values };
}

/** The weights of one layer; after `load`, each head is available synchronously. */
class Layer {
  constructor(json) {
    Object.assign(this, { kind: json.kind, layer: json.layer, causal: json.causal });
    this.sides = [json.rows, json.columns];
    [this.heads, this.rows, this.columns] = json.weights.shape;
    this.packed = json.weights;
    this.packedMissing = json.missing;
    this.cache = new Map();
  }

  async load() {
    this.loading ??= this.unpack();
    await this.loading;
    return this;
  }

  async unpack() {
    this.bytes = await inflate(this.packed.data);
    this.missing = this.packedMissing
      ? (await matrix(this.packedMissing)).values
      : new Float32Array(this.heads * this.rows);
  }

  /** The weights of a head, or with "mean" of all of them, row after row. */
  head(which) {
    if (!this.cache.has(which)) {
      if (this.cache.size > 12) this.cache.clear();
      this.cache.set(which, which === "mean" ? this.mean() : this.one(which));
    }
    return this.cache.get(which);
  }

  one(head) {
    const size = this.rows * this.columns;
    if (this.packed.encoding !== "sqrt8") return halves(this.bytes, head * size, size);
    return this.restored(squares(this.bytes, head * size, size, this.packed.steps), head);
  }

  /**
   * Rows brought back to the sum that they had, which rounding has moved a little. A row of which it
   * has left nothing was near even, and over thousands of columns: it is even again.
   */
  restored(weights, head) {
    for (let r = 0; r < this.rows; r++) {
      const row = weights.subarray(r * this.columns, (r + 1) * this.columns);
      if (!row.some((w) => w > 0)) row.fill(1, 0, this.causal ? r + 1 + this.columns - this.rows : this.columns);
      const total = row.reduce((a, b) => a + b, 0);
      const factor = total > 0 ? (1 - this.missing[head * this.rows + r]) / total : 0;
      for (let c = 0; c < row.length; c++) row[c] *= factor;
    }
    return weights;
  }

  mean() {
    const sum = new Float32Array(this.rows * this.columns);
    for (let head = 0; head < this.heads; head++) {
      const one = this.one(head);
      for (let i = 0; i < sum.length; i++) sum[i] += one[i] / this.heads;
    }
    return sum;
  }

  /** The mass that a row of a head lacks to 1. */
  lacks(which, row) {
    if (which !== "mean") return this.missing[which * this.rows + row];
    let sum = 0;
    for (let head = 0; head < this.heads; head++) sum += this.missing[head * this.rows + row];
    return sum / this.heads;
  }
}

/** A trace as the page uses it. */
export class Trace {
  constructor(json) {
    this.json = json;
    const { source, target, model, decoded, checks, notes } = json;
    Object.assign(this, { source, target, model, decoded, checks, notes });
    this.maps = json.maps.map((map) => new Layer(map));
    this.kinds = [...new Set(this.maps.map((map) => map.kind))];
    this.derived = {};
    this.backdrop = source.backdrop ?? null;
  }

  /** The pixels of what the source looks like, if it is no text. */
  async loadBackdrop() {
    if (this.backdrop) this.backdrop.bytes ??= await inflate(this.backdrop.data);
    return this.backdrop;
  }

  /** The layers of a kind, lowest first. */
  layers(kind) {
    return this.maps.filter((map) => map.kind === kind).sort((a, b) => a.layer - b.layer);
  }

  /** The tokens along a side of a map; `read` is the target as the decoder reads it, `slots` a memory's, `hops` the readings of a story. */
  tokens(side) {
    if (side === "source") return this.source.tokens;
    if (side === "target") return this.target.tokens;
    const plain = { span: null, word: null, special: false, prob: null, alternatives: [] };
    if (side === "slots") {
      const count = Math.max(0, ...this.maps.filter((map) => map.sides[1] === side).map((map) => map.columns));
      return Array.from({ length: count }, (_, i) => ({ ...plain, text: t("page.slot", { number: i + 1 }) }));
    }
    if (side === "hops") {
      const count = Math.max(0, ...this.maps.filter((map) => map.sides[0] === side).map((map) => map.rows));
      const answer = this.target.text && ` → ${this.target.text}`;
      return Array.from({ length: count }, (_, i) => {
        return { ...plain, text: `${t("page.hop", { number: i + 1 })}${i + 1 === count ? answer : ""}` };
      });
    }
    return [{ ...plain, text: "<s>", special: true }, ...this.target.tokens.slice(0, -1)];
  }

  /** Attributions by name: ablation, gradient, rollout. */
  async loadDerived() {
    for (const [name, packed] of Object.entries(this.json.derived)) {
      this.derived[name] ??= await matrix(packed);
    }
    return this.derived;
  }
}
