// The switch between light and dark, and the list of pages on narrow screens.
"use strict";
(() => {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (stored() === "dark" || stored() === "light") root.dataset.theme = stored();
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* the choice holds for this page */ }
    });
    const menu = document.getElementById("menu"), pages = document.getElementById("pages");
    menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(pages.classList.toggle("open"))));
    const here = pages.querySelector("[aria-current]");
    if (here) pages.scrollTop = here.offsetTop - pages.clientHeight / 3;
    // A block or table that scrolls sideways can be reached by keyboard.
    for (const wide of document.querySelectorAll("main pre, main table")) if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
    const asked = new URLSearchParams(location.search).get("q");
    if (asked) for (const input of document.querySelectorAll("input[name=q]")) input.value = asked;
  });
})();
