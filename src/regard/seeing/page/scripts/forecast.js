// Buttons of a forecast: light or dark, and files of its figure and numbers. It imports nothing, since it is all of the
// script of a saved page.

/** Buttons for the first figure of an element; `csv` gives the numbers as text, `turned` is told the theme. */
export function forecastButtons(place, { themeLabel, saveLabel }, csv, turned = () => {}) {
  const make = (tag, attributes, ...children) => {
    const found = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    found.append(...children);
    return found;
  };
  const button = (text, label, act) => {
    const found = make("button", { type: "button", ...(label ? { "aria-label": label } : {}) }, text);
    found.addEventListener("click", act);
    return found;
  };
  const files = { SVG: svgBlob, PNG: pngBlob, CSV: () => new Blob(["\ufeff", csv()], { type: "text/csv" }) };
  const save = async (name) => {
    const address = URL.createObjectURL(await files[name](place.querySelector("svg")));
    make("a", { href: address, download: `forecast.${name.toLowerCase()}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  };
  const turn = () => {
    const root = document.documentElement;
    const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    turned(root.dataset.theme);
  };
  const group = make("div", { class: "segments", role: "group", "aria-label": saveLabel });
  group.append(...Object.keys(files).map((name) => button(name, "", () => save(name))));
  return make("div", { class: "buttons" }, group, button("◐", themeLabel, turn));
}

/** The figure as it is drawn, with colours in place of names of colours. */
function svgBlob(figure) {
  const copy = figure.cloneNode(true);
  const nodes = [...figure.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((node, i) => {
    const look = getComputedStyle(nodes[i]);
    for (const name of ["fill", "stroke"]) if (look[name] !== "none" || node.hasAttribute(name)) node.setAttribute(name, look[name]);
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("style", `background:${getComputedStyle(document.body).backgroundColor};font-family:sans-serif`);
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

/** The same at two pixels per CSS pixel. */
async function pngBlob(figure) {
  const image = new Image();
  const address = URL.createObjectURL(svgBlob(figure));
  image.src = address;
  await image.decode().finally(() => URL.revokeObjectURL(address));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = ["width", "height"].map((side) => Math.ceil(2 * Number(figure.getAttribute(side))));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((give) => canvas.toBlob(give, "image/png"));
}

/** Rows of cells as CSV. */
export function csvOf(rows) {
  const quoted = (cell) => `"${String(cell).replaceAll('"', '""')}"`;
  return rows.map((row) => row.map(quoted).join()).join("\r\n");
}

const saved = document.querySelector("figure[data-save-label]");
const cells = () => [...document.querySelector("table.rows").rows].map((row) => [...row.cells].map((cell) => cell.textContent));
saved?.prepend(forecastButtons(saved, saved.dataset, () => csvOf(cells())));
