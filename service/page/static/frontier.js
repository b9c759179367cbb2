// The frontier: time against memory; a point's details on hover, its plan on click. Pipelines are
// numbered after the points.
"use strict";
(() => {
  const { data, colour, seconds, size, GIB } = Plots;
  const { points, pipelines, replayed } = data;
  const place = document.getElementById("plot");
  const details = document.getElementById("details");
  const slider = document.getElementById("at");
  let at = data.start;

  // The axes: the replayed peak (the sum where an answer has no peak), the time that was searched.
  const bytes = [...points.map((point) => point[data.memory]), ...pipelines.map((one) => one.peak_bytes)];
  const memory = bytes.map((value) => value / GIB);
  const time = [...points.map((point) => point[data.time]), ...pipelines.map((one) => one.step_s)];
  const title = (i) => (i < points.length ? `point ${i + 1}` : pipelines[i - points.length].words);
  const known = (value) => value !== null && value !== undefined;
  const only = (keep) => points.map((point, i) => (keep(point, i) ? i : -1)).filter((i) => i >= 0);
  const marks = (name, indices, marker) => ({
    x: indices.map((i) => memory[i]), y: indices.map((i) => time[i]), customdata: indices,
    mode: "markers", name, marker, hoverinfo: "text",
    text: indices.map((i) => `${title(i)}<br>${size(bytes[i])}<br>${seconds(time[i])}`),
  });
  const figure = () => {
    const fits = only((point) => point.feasible !== false);
    const not = only((point) => point.feasible === false);
    const traces = [
      {
        x: data.line.map((i) => memory[i]), y: data.line.map((i) => time[i]), mode: "lines", name: "frontier", hoverinfo: "skip", showlegend: false,
        line: { shape: "hv", color: colour("accent"), width: 1.5 },
      },
      marks("fits", fits, { color: colour("accent"), size: 7 }),
    ];
    if (not.length) {
      traces.push(marks("does not fit", not, { color: colour("faint"), size: 7, symbol: "x-thin-open" }));
    }
    const others = replayed ? [] : only((point) => known(point.replayed_time_s));
    if (others.length) {
      traces.push({
        ...marks("replayed", others, { color: colour("p2"), size: 6, symbol: "diamond" }),
        visible: "legendonly",
        x: others.map((i) => memory[i]),
        y: others.map((i) => points[i].replayed_time_s),
      });
    }
    if (data.knee !== null) {
      traces.push(marks("turning point", [data.knee], { color: colour("bad"), size: 12, symbol: "star" }));
    }
    if (pipelines.length) {
      const every = pipelines.map((_, i) => points.length + i);
      traces.push(marks("pipelines", every, { color: colour("p2"), size: 9, symbol: "diamond" }));
    }
    traces.push({
      ...marks("shown", [at], {
        color: "rgba(0,0,0,0)", size: 17, line: { color: colour("text"), width: 2 },
      }),
      hoverinfo: "skip", showlegend: false,
    });
    const shapes = [];
    if (data.limit_bytes && data.limit_bytes / GIB <= 1.5 * Math.max(...memory)) {
      const x = data.limit_bytes / GIB;
      shapes.push({
        type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1,
        line: { color: colour("bad"), dash: "dash", width: 1 },
      });
    }
    return {
      traces,
      layout: {
        shapes,
        xaxis: { title: { text: `${data.peak ? "peak " : ""}memory of one GPU (GiB)` } },
        yaxis: { title: { text: "time of a step (s)" } },
      },
    };
  };

  const cell = (row, tag, text, kind) => {
    const made = row.appendChild(document.createElement(tag));
    made.textContent = text;
    if (kind) made.className = kind;
    if (tag === "th") made.scope = "row";
    return made;
  };
  const table = (caption, whole, parts, values, unit) => {
    const made = document.createElement("table");
    made.className = "plain";
    made.createCaption().textContent = caption;
    const body = made.createTBody();
    const first = body.insertRow();
    cell(first, "th", "Together", "sum");
    cell(first, "td", unit(whole), "n sum");
    cell(first, "td", "", "n");
    for (const [key, name] of parts) {
      if (!known(values[key])) continue;
      const row = body.insertRow();
      cell(row, "th", name);
      cell(row, "td", unit(values[key]), "n");
      cell(row, "td", whole > 0 ? `${((100 * values[key]) / whole).toFixed(1)} %` : "", "n");
    }
    details.append(made);
  };
  const list = (lines) => {
    const made = document.createElement("ul");
    made.className = "splits";
    for (const line of lines) made.appendChild(document.createElement("li")).textContent = line;
    details.append(made);
  };
  const say = (text) => { details.appendChild(document.createElement("p")).textContent = text; };
  const ofReplay = (point) => {
    table("Time of a step", point.replayed_time_s, [["compute_s", "Compute"], ["exposed_s", "Exposed communication"]],
      point, seconds);
    table("Communication, exposed or hidden", point.communication_s,
      data.time_parts.filter(([key]) => key !== "compute_s"), point.time ?? {}, seconds);
    table("Memory of one GPU, added up", point.memory_bytes, data.memory_parts, point.memory ?? {}, size);
  };
  const ofSums = (point) => {
    table("Time of a step", point.time_s, data.time_parts,
      point.time ?? { compute_s: point.compute_s, synchronisation_s: point.communication_s }, seconds);
    table(data.peak ? "Memory of one GPU, added up" : "Memory of one GPU", point.memory_bytes, data.memory_parts, point.memory ?? {}, size);
    if (known(point.replayed_time_s)) {
      const words = `Replayed: ${seconds(point.replayed_time_s)} a step with communication overlapped`;
      say(point.replayed_peak_bytes ? `${words}, ${size(point.replayed_peak_bytes)} at the peak` : words);
    }
  };
  const ofPipeline = (one) => {
    say(one.words);
    say(`fits the memory, ${size(one.peak_bytes)} at the peak, ${seconds(one.step_s)} a step`);
    say(`GPUs wait for ${(100 * one.idle).toFixed(1)} % of the step`);
    details.appendChild(document.createElement("h3")).textContent = "Its stages";
    list(one.labels.map((label, stage) => `${stage}, from ${one.first_units[stage]}: ${label}`));
  };
  const show = (index) => {
    at = index;
    const piped = index >= points.length;
    slider.value = index;
    slider.setAttribute("aria-valuetext", `${title(index)}: ${size(bytes[index])}, ${seconds(time[index])}`);
    document.getElementById("what").textContent = piped ? "Pipeline" : "Point";
    document.getElementById("number").textContent = piped ? index - points.length + 1 : index + 1;
    document.getElementById("many").textContent = piped ? pipelines.length : points.length;
    document.getElementById("chosen").value = index;
    details.replaceChildren();
    if (piped) ofPipeline(pipelines[index - points.length]);
    else ofPoint(index);
  };
  const ofPoint = (index) => {
    const point = points[index];
    if (point.label) say(point.label);
    const words = [];
    if (data.names[index]) words.push(data.names[index]);
    words.push(point.feasible === false ? "does not fit the memory" : "fits the memory");
    if ((point.micro_batches ?? 1) > 1) words.push(`${point.micro_batches} micro-batches`);
    say(words.join(", "));
    if (replayed) say(`${size(bytes[index])} at the peak, ${seconds(time[index])} a step`);
    if (known(point.gap)) say(`At most ${(100 * point.gap).toFixed(1)} % faster is possible with no more memory`);
    if (point.places) list(point.places.map((one) =>
      `${one.place}: ${size(one.peak_bytes)} at the peak of ${size(one.memory_limit_bytes)}`));
    if (replayed) ofReplay(point);
    else ofSums(point);
    if (point.splits && point.splits.length) {
      details.appendChild(document.createElement("h3")).textContent = "Its plan";
      const lines = point.splits.map((split) => `${split.groups} × ${split.split}`);
      if (point.other_splits) lines.push(`and ${point.other_splits} other ways`);
      list(lines);
    }
  };
  const ring = () => {
    const shown = place.data.length - 1;
    Plotly.restyle(place, { x: [[memory[at]]], y: [[time[at]]] }, [shown]);
  };
  show(at);
  document.getElementById("slide").hidden = false;
  slider.addEventListener("input", () => { show(Number(slider.value)); ring(); });
  Plots.draw(place, figure).then(() => {
    place.on("plotly_hover", (event) => { show(event.points[0].customdata); ring(); });
    place.on("plotly_click", ({ event }) => {
      const point = Plots.pointed(place, event);
      if (point !== null) Plots.submit(point);
    });
    place.dataset.drawn = "yes";
  });
})();
