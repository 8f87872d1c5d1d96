// Bytes of packed weights.

/** Bytes of the web's "deflate", which is what Python's zlib writes, from base64. */
export async function inflate(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Half-precision numbers, given as little-endian bytes. */
export function halves(bytes, from, count) {
  const found = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    const at = 2 * (from + i);
    found[i] = half(bytes[at] | (bytes[at + 1] << 8));
  }
  return found;
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const power = (bits >> 10) & 31;
  const rest = bits & 1023;
  if (power === 0) return sign * rest * 2 ** -24;
  if (power === 31) return rest ? NaN : sign * Infinity;
  return sign * (1 + rest / 1024) * 2 ** (power - 15);
}
