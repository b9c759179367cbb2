// Refreshes the table of jobs while some of them are active.
"use strict";
(() => {
  const place = document.getElementById("jobs");
  const active = () => place.querySelectorAll("[data-state=queued], [data-state=running]").length;
  const refresh = async () => {
    const address = new URL(location.href);
    address.searchParams.set("part", "table");
    const answer = await fetch(address, { redirect: "error" }).catch(() => null);
    // What has the focus would lose it: it waits for the next time.
    if (answer && answer.ok && !place.contains(document.activeElement)) {
      const before = active();
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      place.replaceChildren(...fresh.body.children);
      const after = active();
      if (after < before) {
        document.getElementById("told").textContent = `${after} jobs are queued or running`;
      }
    }
    if (active()) setTimeout(refresh, 2000);
  };
  if (active()) setTimeout(refresh, 2000);
})();
