// Light or dark: the system's preference unless the toggle was used. Runs before the page is drawn.
"use strict";
(() => {
  const root = document.documentElement;
  const wish = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage is off: the wish holds */ }
  const dark = () => (chosen ? chosen === "dark" : wish.matches);
  const apply = () => {
    root.dataset.theme = dark() ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) {
      button.hidden = false;
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours");
    }
    window.dispatchEvent(new Event("themechange"));
  };
  apply();
  wish.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      chosen = dark() ? "light" : "dark";
      try { localStorage.setItem("theme", chosen); } catch { /* it holds for this page */ }
      apply();
    });
    const refused = document.getElementById("refused");
    if (refused) refused.focus();
  });
})();
