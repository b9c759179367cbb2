// What all plots share: colours of the theme, units, how they are redrawn.
"use strict";
const Plots = (() => {
  delete document.createElement; // what before_plotly.js put there
  const GIB = 2 ** 30;
  const data = JSON.parse(document.getElementById("data").textContent);
  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const three = (value) =>
    Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);
  const seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0 s";
    for (const [unit, factor] of [["s", 1], ["ms", 1e3], ["µs", 1e6]]) {
      if (value * factor >= 1) return `${three(value * factor)} ${unit}`;
    }
    return `${three(value * 1e9)} ns`;
  };
  const size = (value) => {
    if (value === null || value === undefined) return "–";
    for (const [unit, power] of [["TiB", 4], ["GiB", 3], ["MiB", 2], ["KiB", 1]]) {
      if (value >= 1024 ** power) return `${three(value / 1024 ** power)} ${unit}`;
    }
    return `${value} B`;
  };
  const layout = (more) => {
    const axis = {
      gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"),
      automargin: true, fixedrange: true,
    };
    const whole = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("text"), family: "system-ui, sans-serif", size: 13 },
      margin: { l: 10, r: 14, t: 8, b: 10 }, hovermode: "closest", showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
      ...more,
    };
    for (const name of Object.keys(more).filter((key) => /^[xy]axis/.test(key))) {
      whole[name] = { ...axis, ...more[name] };
    }
    return whole;
  };
  const config = { displayModeBar: false, responsive: true, scrollZoom: false };
  // Drawn now, and again whenever the theme changes.
  const draw = (place, figure) => {
    const all = () => {
      const { traces, layout: more } = figure();
      return Plotly.react(place, traces, layout(more), config);
    };
    window.addEventListener("themechange", all);
    return all();
  };
  // The number of the point under the pointer, or null. Plotly's own answer may be the
  // point of a moment ago: it updates at most every 50 ms.
  const NEAR_PX = 20;
  const pointed = (place, event) => {
    const box = place.getBoundingClientRect();
    const layout = place._fullLayout;
    let found = null;
    let least = NEAR_PX ** 2;
    for (const trace of place.data) {
      if (!trace.customdata || trace.hoverinfo === "skip" || trace.visible === "legendonly") continue;
      const x = layout[(trace.xaxis ?? "x").replace("x", "xaxis")];
      const y = layout[(trace.yaxis ?? "y").replace("y", "yaxis")];
      trace.customdata.forEach((point, i) => {
        const right = box.left + x._offset + x.d2p(trace.x[i]) - event.clientX;
        const down = box.top + y._offset + y.d2p(trace.y[i]) - event.clientY;
        if (right ** 2 + down ** 2 < least) [found, least] = [point, right ** 2 + down ** 2];
      });
    }
    return found;
  };
  const submit = (point) => {
    const chosen = document.getElementById("chosen");
    chosen.name = "point";
    chosen.value = point;
    document.getElementById("to-plan").submit();
  };
  return { GIB, data, colour, seconds, size, draw, pointed, submit };
})();
