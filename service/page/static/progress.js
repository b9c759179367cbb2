// A job's progress as it comes; the page is reloaded when the job has ended.
"use strict";
(() => {
  const panel = document.getElementById("progress");
  const bar = document.getElementById("bar");
  const told = document.getElementById("told");
  const source = new EventSource(panel.dataset.events);
  let spoken = 0;
  const wordsOf = (job) => {
    const queue = job.queue;
    if (job.state !== "queued" || !queue) {
      return `${Math.round(100 * job.progress)} %${job.stage ? `, ${job.stage}` : ""}`;
    }
    const start = queue.starts_at && new Date(queue.starts_at).toLocaleTimeString();
    const when = start ? `, expected to start at ${start}` : "";
    return `place ${queue.place} of ${queue.of}, waits for ${queue.waits_for}${when}`;
  };
  const show = (event) => {
    const job = JSON.parse(event.data);
    bar.value = job.progress;
    bar.textContent = `${Math.round(100 * job.progress)} %`;
    const state = document.getElementById("state");
    state.textContent = job.cancel_requested ? "cancelling" : job.state;
    state.className = `state ${job.state}`;
    document.getElementById("words").textContent = wordsOf(job);
    // Announced to screen readers now and then, not at every step.
    if (Date.now() - spoken > 5000) {
      spoken = Date.now();
      told.textContent = `${job.state}, ${Math.round(100 * job.progress)} percent`;
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
