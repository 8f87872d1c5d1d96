// A sequential palette of one hue. Lightness alone encodes the weight, so it is safe for
// colour-blind readers and for print; the mark of a selection is orange, which is distinct from
// blue for colour-blind readers.

const LIGHT = ["#f4f7fb", "#d3e2f4", "#a3c4e8", "#6a9dd6", "#3873b8", "#184e92", "#08306b"];
const DARK = ["#171d26", "#1c3350", "#21507f", "#2c70b2", "#5595d6", "#93c0ee", "#d8eaff"];

/** The channels of a colour. */
export const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function table(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(at), colours.length - 2);
    return colours[low].map((c, k) => Math.round(c + (colours[low + 1][k] - c) * (at - low)));
  });
}

const TABLES = { light: table(LIGHT), dark: table(DARK) };

/** The colours of a theme, "light" or "dark", as numbers from 0 to 255. */
export function ramp(theme) {
  return TABLES[theme];
}

/** The colour of a share from 0 to 1. */
export function colour(theme, share) {
  const at = Math.round(255 * Math.min(1, Math.max(0, share)));
  return `rgb(${TABLES[theme][at].join(",")})`;
}

/** Black or white, whichever has more contrast on the colour of a share. */
export function ink(theme, share) {
  const at = Math.round(255 * Math.min(1, Math.max(0, share)));
  return luminance(TABLES[theme][at]) > 0.179 ? "#000000" : "#ffffff";
}

function luminance(channels) {
  const [r, g, b] = channels.map((c) => {
    const v = c / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Colours of figures besides the ramp. */
export const INKS = {
  light: { text: "#1b222c", dim: "#59636f", line: "#d5dbe3", ground: "#ffffff", mark: "#c2410c" },
  dark: { text: "#e8ecf2", dim: "#9aa5b3", line: "#333c48", ground: "#12161c", mark: "#ffa857" },
};
