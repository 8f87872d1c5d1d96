"use strict";
(() => {
  const table = document.querySelector(".habits");
  const body = table.tBodies[0];
  const root = document.documentElement;

  const value = (row, column) => row.cells[column].dataset.value ?? "";

  function compare(a, b, column, down) {
    const [one, other] = [value(a, column), value(b, column)];
    if (one === "" || other === "") return (one === "") - (other === ""); // the unknown come last
    const [x, y] = [Number(one), Number(other)];
    const order = Number.isNaN(x) || Number.isNaN(y) ? one.localeCompare(other) : x - y;
    return down ? -order : order;
  }

  function sort(header, column) {
    const down = header.getAttribute("aria-sort") === "none"
      ? header.dataset.first !== "up" : header.getAttribute("aria-sort") === "ascending";
    for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => compare(a, b, column, down));
    body.append(...rows);
  }

  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    if (!header.hasAttribute("aria-sort")) header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(header, column));
  });

  function choose(id) {
    const sections = [...document.querySelectorAll(".head")];
    const chosen = sections.find((section) => section.id === id) ?? sections[0];
    for (const section of sections) {
      section.classList.toggle("chosen", section === chosen);
      if (section === chosen) section.querySelector("details").open = true;
    }
    for (const link of body.querySelectorAll("a")) {
      const here = Boolean(chosen) && link.hash === `#${chosen.id}`;
      if (here) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      link.closest("tr").classList.toggle("here", here);
    }
  }

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    const link = row && row.querySelector("a");
    if (link && !event.target.closest("a")) location.hash = link.hash;
  });
  addEventListener("hashchange", () => {
    choose(location.hash.slice(1));
    document.querySelector(".head.chosen")?.scrollIntoView({ block: "nearest" });
  });
  root.dataset.script = "";
  choose(location.hash.slice(1));
})();
