// A job's progress as it comes; the page is reloaded when the job has ended.
"use strict";
(() => {
  const panel = document.getElementById("progress");
  const bar = document.getElementById("bar");
  const place = document.getElementById("place");
  const told = document.getElementById("told");
  const source = new EventSource(panel.dataset.events);
  let spoken = 0;
  const ordinal = (number) => {
    const last = { one: "st", two: "nd", few: "rd", other: "th" };
    return `${number}${last[new Intl.PluralRules("en", { type: "ordinal" }).select(number)]}`;
  };
  // How long it is until a moment, which is the service's estimate.
  const until = (moment) => {
    const left = Math.round((new Date(moment) - Date.now()) / 1000);
    if (left < 2) return "at once";
    if (left < 120) return `in about ${left} s`;
    if (left < 7200) return `in about ${Math.round(left / 60)} min`;
    return `in about ${(left / 3600).toFixed(1)} h`;
  };
  const placeOf = ({ state, queue }) => {
    if (!queue) return "";
    const end = queue.ends_at ? until(queue.ends_at) : "";
    if (state === "running") return end && `expected to end ${end}`;
    if (state !== "queued") return "";
    const before = queue.place > 1 ? `, ${queue.place - 1} before it` : "";
    const words = [`${ordinal(queue.place)} of ${queue.of} in the queue${before}`, `waits for ${queue.waits_for}`];
    if (queue.starts_at) words.push(`expected to start ${until(queue.starts_at)}${end && ` and to end ${end}`}`);
    return words.join("; ");
  };
  const wordsOf = (job) => job.state === "queued"
    ? job.stage
    : `${Math.round(100 * job.progress)} %${job.stage ? `, ${job.stage}` : ""}`;
  const show = (event) => {
    const job = JSON.parse(event.data);
    bar.value = job.progress;
    bar.textContent = `${Math.round(100 * job.progress)} %`;
    const state = document.getElementById("state");
    state.textContent = job.cancel_requested ? "cancelling" : job.state;
    state.className = `state ${job.state}`;
    document.getElementById("words").textContent = wordsOf(job);
    place.textContent = placeOf(job);
    place.hidden = !place.textContent;
    if (job.points) window.dispatchEvent(new CustomEvent("points", { detail: job.points }));
    // Announced to screen readers now and then, not at every step.
    if (Date.now() - spoken > 5000) {
      spoken = Date.now();
      told.textContent = job.state === "queued" && place.textContent
        ? `queued, ${place.textContent}`
        : `${job.state}, ${Math.round(100 * job.progress)} percent`;
    }
  };
  const end = (event) => {
    source.close();
    told.textContent = event.type;
    location.reload();
  };
  source.addEventListener("progress", show);
  for (const name of ["done", "failed", "cancelled"]) source.addEventListener(name, end);
  window.addEventListener("pagehide", () => source.close());
})();
