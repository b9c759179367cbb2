// A comparison: every system's strategies by memory and time; a frontier is a staircase.
"use strict";
(() => {
  const { data, colour, seconds, size, GIB } = Plots;
  const place = document.getElementById("plot");
  const SYMBOLS = ["square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon", "hexagon", "triangle-left", "triangle-right", "star-diamond", "hourglass"];
  const HUES = ["p1", "p2", "p3", "bad", "note", "faint"];
  const words = (system, point) =>
    `${system.title}${point.label ? `<br>${point.label}` : ""}<br>${size(point.memory)}<br>${seconds(point.time)}`
    + (point.fits ? "" : "<br>does not fit");
  const trace = (system, number) => {
    const hue = colour(system.ours ? "accent" : HUES[number % HUES.length]);
    const symbol = system.ours && !system.frontier ? "star" : SYMBOLS[number % SYMBOLS.length];
    const big = (_, i) => (system.best === null ? 8 : i === system.best ? 12 : 6);
    return {
      x: system.points.map((point) => point.memory / GIB), y: system.points.map((point) => point.time),
      text: system.points.map((point) => words(system, point)), hoverinfo: "text", name: system.title,
      mode: system.frontier ? "lines+markers" : "markers",
      line: { shape: "hv", color: hue, width: 1.5, dash: system.splits ? "dot" : "solid" },
      marker: {
        color: hue, symbol: system.points.map((point) => symbol + (point.fits ? "" : "-open")),
        size: system.frontier ? 4 : system.ours ? 15 : system.points.map(big),
      },
    };
  };
  const line = (where, dash, hue) => ({ type: "line", ...where, line: { color: colour(hue), dash, width: 1 } });
  const WIDE_PX = 600; // below it the names would leave no room for the points, which say theirs
  const figure = () => {
    const every = data.systems.flatMap((system) => system.points);
    const limit = data.limit_bytes / GIB;
    const shapes = [];
    if (limit <= 1.5 * Math.max(...every.map((point) => point.memory / GIB))) {
      shapes.push(line({ x0: limit, x1: limit, yref: "paper", y0: 0, y1: 1 }, "dash", "bad"));
    }
    if (data.bound_s) {
      shapes.push(line({ xref: "paper", x0: 0, x1: 1, y0: data.bound_s, y1: data.bound_s }, "dot", "text"));
    }
    return {
      traces: data.systems.map(trace),
      layout: {
        shapes,
        showlegend: place.clientWidth >= WIDE_PX,
        xaxis: { title: { text: `${data.replayed ? "peak " : ""}memory of one GPU (GiB)` } },
        yaxis: { title: { text: "time of a step (s)" } },
      },
    };
  };
  Plots.draw(place, figure).then(() => {
    place.dataset.drawn = "yes";
  });
})();
