// A running launch: its state by server-sent events, its output after the lines that are shown.
"use strict";
(() => {
  const live = document.getElementById("live");
  const log = document.getElementById("log");
  const told = document.getElementById("told");
  const source = new EventSource(live.dataset.events);
  const MOST = 2000;
  let state = "";
  let busy = false;
  let again = false;

  const refresh = async () => {
    const address = new URL(location.href);
    address.searchParams.set("part", "live");
    const answer = await fetch(address, { redirect: "error" }).catch(() => null);
    // The focused element would lose its focus: wait for the next time.
    if (!answer || !answer.ok || live.contains(document.activeElement)) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    live.replaceChildren(...fresh.body.children);
  };

  const append = (line) => {
    const row = document.createElement("div");
    row.className = line.stream === "stderr" ? "line err" : "line";
    const rank = document.createElement("span");
    rank.className = "rank";
    rank.textContent = line.rank;
    row.append(rank, line.text);
    log.append(row);
  };

  const follow = async () => {
    const address = new URL(log.dataset.lines, location.href);
    address.searchParams.set("after", log.dataset.next);
    if (log.dataset.rank) address.searchParams.set("rank", log.dataset.rank);
    const answer = await fetch(address, { redirect: "error" }).catch(() => null);
    if (!answer || !answer.ok) return false;
    const found = await answer.json();
    const below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (found.lines.length) document.getElementById("no-output")?.remove();
    found.lines.forEach(append);
    while (log.children.length > MOST) log.firstElementChild.remove();
    log.dataset.next = found.next;
    if (below) log.scrollTop = log.scrollHeight;
    return found.more;
  };

  // One round at a time; an event meanwhile requests another.
  const update = async () => {
    again = true;
    if (busy) return;
    busy = true;
    while (again) {
      again = false;
      await refresh();
      // An older page of the output stays as it is.
      if (!("more" in log.dataset)) while (await follow());
    }
    busy = false;
  };

  source.addEventListener("progress", (event) => {
    const launch = JSON.parse(event.data);
    if (launch.state !== state) told.textContent = state = launch.state;
    update();
  });
  for (const name of ["done", "failed", "stopped", "lost"]) {
    source.addEventListener(name, () => {
      source.close();
      told.textContent = name;
      location.reload();
    });
  }
  // A part's state may change without the launch's.
  const timer = setInterval(update, 5000);
  window.addEventListener("pagehide", () => { source.close(); clearInterval(timer); });
  log.scrollTop = log.scrollHeight;
})();
