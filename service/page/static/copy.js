// Copies a text, and says so. Where the clipboard is not allowed (plain http, a policy), the text
// is selected and copied as a person would.
"use strict";
(() => {
  const told = document.getElementById("copied");
  const select = (text) => {
    const range = document.createRange();
    range.selectNodeContents(text);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      return true;
    } catch {
      select(text);
      try { return document.execCommand("copy"); } catch { return false; }
    }
  };
  for (const button of document.querySelectorAll("[data-copies]")) {
    const text = document.getElementById(button.dataset.copies);
    let timer = 0;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(text);
      button.textContent = done ? "Copied" : "Selected";
      told.textContent = done
        ? `${button.dataset.name}: copied`
        : `${button.dataset.name}: selected, not copied; press Control and C`;
      clearTimeout(timer);
      timer = setTimeout(() => { button.textContent = "Copy"; told.textContent = ""; }, 4000);
    });
  }
})();
