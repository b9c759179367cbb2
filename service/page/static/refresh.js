// Refreshes a part of the page: every `data-refresh` seconds, while rows in it are `data-active`
// (or `data-always`). `part=table` of the same address gives the new content.
"use strict";
(() => {
  const place = document.querySelector("[data-refresh]");
  const told = document.getElementById("told");
  const every = 1000 * Number(place.dataset.refresh);
  const always = "always" in place.dataset;
  const active = () => place.querySelectorAll("[data-active]").length;
  const refresh = async () => {
    const address = new URL(location.href);
    address.searchParams.set("part", "table");
    const answer = await fetch(address, { redirect: "error" }).catch(() => null);
    // The focused element would lose its focus: wait for the next time.
    if (answer && answer.ok && !place.contains(document.activeElement)) {
      const before = active();
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      place.replaceChildren(...fresh.body.children);
      const after = active();
      if (after < before && place.dataset.told) told.textContent = `${after} ${place.dataset.told}`;
    }
    if (always || active()) setTimeout(refresh, every);
  };
  if (always || active()) setTimeout(refresh, every);
})();
