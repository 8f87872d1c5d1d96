// A layer of a long trace: the strongest weights of each row, unpacked from an element of their own.

import { halves, inflate } from "./bytes.js";

const STEPS = 255;

/** Has the interface of a layer with all weights; those that were not kept are 0 in its maps. */
export class TopLayer {
  constructor(json) {
    Object.assign(this, { kind: json.kind, layer: json.layer, causal: json.causal });
    this.sides = [json.rows, json.columns];
    const { shape, k, heads, element } = json.strongest;
    [this.heads, this.rows, this.columns] = shape;
    Object.assign(this, { k, numbers: heads, element, strongest: true });
  }

  async load() {
    this.loading ??= this.unpack();
    await this.loading;
    return this;
  }

  async unpack() {
    const bytes = await inflate(document.getElementById(this.element).textContent);
    const [rows, cells] = [this.heads * this.rows, this.heads * this.rows * this.k];
    const width = this.columns <= 1 << 16 ? 2 : 4;
    this.at = new Uint32Array(cells);
    for (let plane = width - 1; plane >= 0; plane--) {
      const from = plane * cells;
      for (let i = 0; i < cells; i++) this.at[i] = this.at[i] * 256 + bytes[from + i];
    }
    this.levels = bytes.subarray(width * cells, (width + 1) * cells);
    const rest = bytes.subarray((width + 1) * cells);
    this.peak = halves(rest, 0, rows);
    this.kept = halves(rest, rows, rows);
  }

  /** The number that a head has in the model. */
  headNumber(head) {
    return this.numbers[head];
  }

  /** The weights that were kept of a row, strongest first; of the mean, of all heads. */
  entries(which, row) {
    if (which === "mean") return this.meanEntries(row);
    const index = which * this.rows + row;
    const found = [];
    for (let i = index * this.k; i < (index + 1) * this.k && this.levels[i]; i++) {
      found.push({ column: this.at[i], weight: this.peak[index] * (this.levels[i] / STEPS) ** 2 });
    }
    return found;
  }

  meanEntries(row) {
    const sums = new Map();
    for (let head = 0; head < this.heads; head++) {
      for (const { column, weight } of this.entries(head, row)) {
        sums.set(column, (sums.get(column) ?? 0) + weight / this.heads);
      }
    }
    const found = Array.from(sums, ([column, weight]) => ({ column, weight }));
    return found.sort((a, b) => b.weight - a.weight);
  }

  /** A map with all that was kept, row after row; only the last one is held, for it is large. */
  head(which) {
    if (this.shown?.which !== which) this.shown = { which, weights: this.one(which) };
    return this.shown.weights;
  }

  one(which) {
    const weights = new Float32Array(this.rows * this.columns);
    for (let row = 0; row < this.rows; row++) {
      for (const { column, weight } of this.entries(which, row)) weights[row * this.columns + column] = weight;
    }
    return weights;
  }

  /** The mass of a row that was not kept. */
  lacks(which, row) {
    if (which !== "mean") return Math.max(0, 1 - this.kept[which * this.rows + row]);
    let sum = 0;
    for (let head = 0; head < this.heads; head++) sum += this.lacks(head, row);
    return sum / this.heads;
  }

  /** What a weight of a row that was not kept is at most. */
  most(which, row) {
    if (which === "mean") {
      let sum = 0;
      for (let head = 0; head < this.heads; head++) sum += this.most(head, row);
      return sum / this.heads;
    }
    const index = which * this.rows + row;
    const last = this.levels[(index + 1) * this.k - 1];
    if (!last) return 0; // the row has no others
    return Math.min(this.lacks(which, row), this.peak[index] * ((last + 0.5) / STEPS) ** 2);
  }

  /** True if a weight may be other than 0 although none is there. */
  unknown(which, row, column) {
    const seen = !this.causal || column <= row + this.columns - this.rows;
    return seen && this.most(which, row) > 0;
  }

  /** A max-pooled map of a head, and how sharp it is: see `sharpness` of a view. */
  thumbnail(head, height, width, rowReal, columnReal) {
    const values = new Float32Array(height * width);
    let [sum, count] = [0, 0];
    for (let row = 0; row < this.rows; row++) {
      const y = Math.floor((row * height) / this.rows) * width;
      let best = 0;
      for (const { column, weight } of this.entries(head, row)) {
        const i = y + Math.floor((column * width) / this.columns);
        if (weight > values[i]) values[i] = weight;
        if (columnReal.has(column) && weight > best) best = weight;
      }
      if (rowReal.has(row)) [sum, count] = [sum + best, count + 1];
    }
    return { values, sharp: count ? sum / count : 0 };
  }
}

/** True if a weight of a view is unknown, since it was not kept. */
export function notKept(view, row, column) {
  const { layer, head } = view;
  return Boolean(layer.strongest) && !view.weights[row * view.columns.length + column] && layer.unknown(head, row, column);
}

/** Marks what is drawn of a view of such a layer: of each row the fewest that cover `mass` of it. */
export function drawnStrongest(view, mass) {
  const { layer, head } = view;
  const width = view.columns.length;
  view.mask = new Uint8Array(view.weights.length);
  view.hidden = new Float32Array(view.rows.length);
  view.tops = new Float32Array(view.rows.length);
  view.max = 0;
  for (let row = 0; row < view.rows.length; row++) {
    let sum = 0;
    const found = layer.entries(head, row);
    for (const { column, weight } of found) {
      if (sum < mass - 1e-6 || mass >= 1) view.mask[row * width + column] = 1;
      else view.hidden[row] += weight;
      sum += weight;
    }
    view.tops[row] = found[0]?.weight ?? 0;
    if (view.tops[row] > view.max) view.max = view.tops[row];
  }
  return view;
}
