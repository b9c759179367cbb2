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
  // Values of an axis that a logarithm can show: numbers above 0, but for marks without a value.
  const along = (traces, name) => traces
    .filter((trace) => trace.meta !== "no value")
    .filter((trace) => trace[`${name[0]}axis`] === undefined ? name.length === 5 : trace[`${name[0]}axis`] === name.replace("axis", ""))
    .flatMap((trace) => trace[name[0]]).filter((value) => typeof value === "number" && value > 0);
  const spread = (values) => (values.length ? Math.max(...values) / Math.min(...values) : 1);
  const WIDE = 20; // from which factor on log axes read better
  const numeric = (more) => Object.keys(more).filter((key) => /^[xy]axis/.test(key) && more[key].type !== "category");
  // Labels 1, 2, 5, 10, or only powers of ten where there would be many; GPUs in powers of two.
  const marksOf = (least, most, twos) => {
    const ticks = [];
    if (twos) for (let tick = 1; tick <= most; tick *= 2) ticks.push(tick);
    else for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power += 1) {
      for (const digit of most / least > 1000 ? [1] : [1, 2, 5]) ticks.push(Number(`${digit}e${power}`));
    }
    return ticks.filter((tick) => tick >= 0.7 * least && tick <= (twos ? 1 : 1.4) * most);
  };
  const logarithmic = (traces, more) => {
    const whole = { ...more };
    for (const name of numeric(more)) {
      const values = along(traces, name);
      if (!values.length) continue;
      const twos = name[0] === "x" && values.every(Number.isInteger);
      const ticks = twos && more[name].range
        ? marksOf(1, more[name].range[1], true)
        : marksOf(Math.min(...values), Math.max(...values), twos);
      const range = more[name].range && more[name].range.map((end) => Math.log10(Math.max(end, 0.7)));
      whole[name] = { ...more[name], type: "log", ...(range ? { range } : {}),
        ...(ticks.length > 1 ? { tickmode: "array", tickvals: ticks, ticktext: ticks.map(String) } : {}) };
    }
    return whole;
  };
  // Drawn now, and again whenever the theme or the switch between linear and log axes changes.
  const draw = (place, figure) => {
    const first = figure();
    const axes = numeric(first.layout).map((name) => along(first.traces, name));
    const wide = axes.some((values) => spread(values) >= WIDE);
    const choice = place.parentElement.insertBefore(document.createElement("p"), place.nextSibling);
    choice.className = "help";
    const label = choice.appendChild(document.createElement("label"));
    label.className = "inline";
    const box = label.appendChild(document.createElement("input"));
    Object.assign(box, { type: "checkbox", id: "log-axes", checked: wide });
    label.append(" Logarithmic axes");
    const all = () => {
      const { traces, layout: more } = figure();
      return Plotly.react(place, traces, layout(box.checked ? logarithmic(traces, more) : more), config);
    };
    window.addEventListener("themechange", all);
    window.addEventListener("growth", all);
    box.addEventListener("change", all);
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
