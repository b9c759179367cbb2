// The curve: time and throughput against GPUs, or against bundles of several kinds; what nothing
// fits on is marked. While it is computed it grows by the points that come.
"use strict";
(() => {
  const { data, colour, seconds, size } = Plots;
  const { points } = data;
  const time = (i) => points[i][data.time];
  const place = document.getElementById("plot");
  let fits, not, samples, bundles;
  const look = () => {
    fits = points.map((_, i) => i).filter((i) => points[i].feasible);
    not = points.map((_, i) => i).filter((i) => !points[i].feasible);
    samples = points.some((point) => point.samples_per_s !== null && point.samples_per_s !== undefined);
    bundles = points.some((point) => point.bundle !== undefined);
  };
  const name = (i) => points[i].bundle ?? `${points[i].gpus} GPUs`;
  const gpus = (indices) => indices.map((i) => (bundles ? points[i].bundle : points[i].gpus));
  const words = (i) =>
    `${name(i)}<br>${seconds(time(i))} a step<br>${size(points[i].peak_bytes)} of one GPU`
    + (points[i].piped ? `<br>${points[i].piped}` : "")
    + (points[i].samples_per_s ? `<br>${points[i].samples_per_s.toPrecision(3)} samples a second` : "");
  const wrapped = (text) => text.replace(/(.{1,44})(\s|$)/g, "$1<br>");
  const figure = () => {
    look();
    const marker = { color: colour("accent"), size: 8 };
    const dots = (of) => ({ mode: "markers", x: gpus(of), customdata: of, hoverinfo: "text", text: of.map(words) });
    const plain = fits.filter((i) => !points[i].piped);
    const piped = fits.filter((i) => points[i].piped);
    const best = fits.filter((i) => points[i].best_time_s !== null && points[i].best_time_s !== undefined);
    // They have no time: they stand just above the axis, where a pointer can reach them.
    const low = 0.04 * Math.max(...fits.map(time), 0) || 0.04;
    const traces = [
      { x: gpus(best), y: best.map((i) => points[i].best_time_s), mode: "lines", name: "at most n GPUs",
        line: { shape: "hv", color: colour("accent"), width: 1.5 }, hoverinfo: "skip" },
      { ...dots(plain), y: plain.map(time), name: bundles ? "time of a step" : "exactly n GPUs", marker },
    ].slice(bundles ? 1 : 0);
    if (piped.length) {
      traces.push({ ...dots(piped), y: piped.map(time), name: "by a pipeline",
        marker: { color: colour("p2"), size: 9, symbol: "diamond" } });
    }
    if (not.length) {
      traces.push({
        x: gpus(not), y: not.map(() => low), mode: "markers", name: "infeasible", customdata: not, meta: "no value",
        marker: { color: colour("bad"), symbol: "x", size: 10 }, hoverinfo: "text",
        text: not.map((i) => `${name(i)}: infeasible<br>${wrapped(points[i].reason ?? "nothing fits")}`),
      });
    }
    const layout = {
      xaxis: bundles
        ? { type: "category", categoryorder: "array", categoryarray: points.map((point) => point.bundle),
          range: [-0.6, points.length - 0.4], tickangle: -30, automargin: true }
        : { title: { text: "GPUs" }, range: [0.4, data.most + 0.6] },
      yaxis: { title: { text: "time of a step (s)" }, rangemode: "tozero" },
    };
    if (samples) {
      traces.push({ ...dots(fits), y: fits.map((i) => points[i].samples_per_s), name: "samples per second",
        marker: { color: colour("p1"), size: 8, symbol: "diamond" }, xaxis: "x2", yaxis: "y2" });
      layout.grid = { rows: 2, columns: 1, pattern: "independent", ygap: 0.3 };
      layout.xaxis2 = { ...layout.xaxis };
      layout.xaxis = bundles
        ? { ...layout.xaxis, showticklabels: false }
        : { range: layout.xaxis.range };
      layout.yaxis2 = { title: { text: "samples per second" }, rangemode: "tozero" };
    }
    return { traces, layout };
  };
  const drawn = () => Plots.draw(place, figure).then(() => {
    place.on("plotly_click", ({ event }) => {
      const point = Plots.pointed(place, event);
      if (point !== null && points[point].feasible && document.getElementById("to-plan")) Plots.submit(point);
    });
    place.dataset.drawn = "yes";
  });
  const key = (point) => point.bundle ?? point.gpus;
  // A point whose fastest step is a pipeline's has the figures of that.
  const shown = (point) => (point.pipeline
    ? { ...point, ...point.pipeline, [data.time]: point.pipeline.step_s, feasible: true,
        piped: `${point.pipeline.stages} stages, ${point.pipeline.schedule}` }
    : point);
  const ranked = () => {
    let best = null;
    for (const point of points) {
      if (point.bundle === undefined && point.feasible && (best === null || point[data.time] < best)) best = point[data.time];
      if (point.bundle === undefined) point.best_time_s = best;
    }
  };
  const section = document.getElementById("growing");
  window.addEventListener("points", ({ detail }) => {
    const known = new Set(points.map(key));
    const added = detail.filter((point) => !known.has(key(point))).map(shown);
    if (!added.length) return;
    points.push(...added);
    points.sort((one, other) => one.gpus - other.gpus);
    data.most = Math.max(data.most, ...points.map((point) => point.gpus));
    ranked();
    document.getElementById("known").textContent = points.map(key).join(", ");
    section.hidden = false;
    if (place.dataset.drawn === "yes") window.dispatchEvent(new Event("growth"));
    else drawn();
  });
  if (points.length || !section) drawn();
})();
