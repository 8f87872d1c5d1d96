// Repairs of the theme for keyboards and screen readers: every landmark gets a name of its own, and
// every box that scrolls can be reached with the keyboard.

for (const section of document.querySelectorAll(".md-nav .md-nav[aria-labelledby]")) {
  section.removeAttribute("aria-labelledby");
  section.ariaLabel = section.querySelector(".md-nav__title").textContent.trim();
}

const search = document.querySelector(".md-search");
if (search) search.ariaLabel = search.querySelector("input[type=text]").placeholder;

const repair = () => {
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav) => {
    nav.ariaLabel = nav.closest("[id]").id;
  });
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) box.tabIndex = 0;
};
new MutationObserver(repair).observe(document.body, { childList: true, subtree: true });
repair();
