// Charts to look into: the values under the pointer or the arrow keys, zoom, a logarithmic scale. Drawn by uPlot;
// without script a page has the same in words and as a table. What is drawn stands in the figure's
// data-plot (console/charts.py): {x: "step"|"time", title, words, isLog, lines, marks, broken}.
"use strict";
(() => {
  const HEIGHT = 280;
  const NEAR_PX = 28;  // a point farther from the pointer than this is not what it points at
  const INKS = { fault: "--bad", incident: "--bad", bad: "--bad", resume: "--good", attempt: "--good", redo: "--good", save: "--busy", skip: "--wait" };
  const kept = new Map();  // by figure: its scale and its stretch, so that a refresh leaves them as they are
  const shown = new Map();  // by figure: the plot and its observer

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => (Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4))));
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  const day = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 10);
  const moment = (seconds, isLong) => (isLong ? `${day(seconds)} ${clock(seconds).slice(0, 5)}Z` : `${clock(seconds)}Z`);
  const element = (tag, classes, text) => { const made = document.createElement(tag); made.className = classes; if (text) { made.textContent = text; } return made; };

  // One table per line; uPlot joins them over all x. null parts a line, what is missing does not.
  function tables(lines) {
    return lines.map((line) => (line.low ? [line.xs, line.ys, line.low, line.high] : [line.xs, line.ys]));
  }

  function series(lines) {
    const found = [{}];
    const bands = [];
    for (const line of lines) {
      found.push({ label: line.name, stroke: ink(line.newest ? "--curve" : "--curve-old"), width: line.newest ? 2 : 1.4, points: { show: line.xs.length === 1, size: 6, fill: ink(line.newest ? "--curve" : "--curve-old") } });
      if (line.low) {
        const at = found.length;
        found.push({ label: "", stroke: "transparent", points: { show: false } }, { label: "", stroke: "transparent", points: { show: false } });
        bands.push({ series: [at + 1, at], fill: ink("--band") });
      }
    }
    return { found, bands };
  }

  // Zones, rules and crosses, with each label in the lowest row where it touches no other.
  function drawMarks(plot, about) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio || 1;
    const place = (x) => plot.valToPos(x, "x", true);
    const inside = (x) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, x));
    const ends = [];
    ctx.save();
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.font = `${11.5 * scale}px system-ui, sans-serif`;
    for (const mark of [...about.marks].sort((one, other) => one.low - other.low)) {
      const left = place(mark.low);
      const right = mark.high === null ? left : place(mark.high);
      if (right < bbox.left || left > bbox.left + bbox.width) { continue; }
      const colour = ink(INKS[mark.kind] || "--quiet");
      ctx.strokeStyle = colour;
      ctx.fillStyle = colour;
      ctx.lineWidth = 1.3 * scale;
      ctx.setLineDash(["fault", "incident", "save"].includes(mark.kind) ? [5 * scale, 3 * scale] : []);
      if (mark.high !== null) {
        ctx.globalAlpha = 0.14;
        ctx.fillRect(inside(left), bbox.top, Math.max(inside(right) - inside(left), 2 * scale), bbox.height);
        ctx.globalAlpha = 1;
      }
      ctx.beginPath();
      ctx.moveTo(inside(left), bbox.top);
      ctx.lineTo(inside(left), bbox.top + bbox.height);
      ctx.stroke();
      if (!mark.label) { continue; }
      const wide = ctx.measureText(mark.label).width;
      const at = Math.max(bbox.left, Math.min(inside(left) + 4 * scale, bbox.left + bbox.width - wide));
      const row = [...ends, -1].findIndex((end) => end < at);
      ends[row] = at + wide + 8 * scale;
      ctx.setLineDash([]);
      ctx.strokeStyle = ink("--sheet");
      ctx.lineWidth = 3 * scale;
      const high = bbox.top + (13 + 15 * row) * scale;
      ctx.strokeText(mark.label, at, high);
      ctx.fillText(mark.label, at, high);
    }
    ctx.setLineDash([]);
    ctx.strokeStyle = ink("--bad");
    ctx.lineWidth = 1.8 * scale;
    for (const x of about.broken.map(place).filter((one) => one >= bbox.left && one <= bbox.left + bbox.width)) {
      const size = 4 * scale;
      const y = bbox.top + bbox.height - 10 * scale;
      ctx.beginPath();
      ctx.moveTo(x - size, y - size); ctx.lineTo(x + size, y + size);
      ctx.moveTo(x + size, y - size); ctx.lineTo(x - size, y + size);
      ctx.stroke();
    }
    ctx.restore();
  }

  // The value of each line that is nearest to the cursor, in words.
  function reading(plot, about) {
    const { idx, left } = plot.cursor;
    if (idx === null || idx === undefined || left < 0) { return ""; }
    const xs = plot.data[0];
    const found = [];
    plot.series.forEach((one, number) => {
      if (number === 0 || !one.label) { return; }
      const values = plot.data[number];
      for (let away = 0; away < xs.length; away += 1) {
        const index = [idx - away, idx + away].find((at) => typeof values[at] === "number" && Math.abs(plot.valToPos(xs[at], "x") - left) <= NEAR_PX);
        if (index !== undefined) {
          const line = about.lines.find((other) => other.name === one.label);
          const around = line && line.low ? line.xs.indexOf(xs[index]) : -1;
          const band = around >= 0 && line.low[around] !== null && line.low[around] !== line.high[around] ? ` (${short(line.low[around])} to ${short(line.high[around])})` : "";
          found.push(`${one.label}, ${about.x === "time" ? moment(xs[index], xs[xs.length - 1] - xs[0] > 86400) : `step ${Math.round(xs[index])}`}: ${short(values[index])}${band}`);
          return;
        }
        if (idx - away < 0 && idx + away >= xs.length) { return; }
      }
    });
    return found.slice(-3).join("; ");
  }

  function mount(figure) {
    const about = JSON.parse(figure.dataset.plot);
    const name = figure.dataset.name;
    const state = kept.get(name) || { isLog: about.isLog, stretch: null };
    kept.set(name, state);
    const data = uPlot.join(tables(about.lines));
    const canLog = about.lines.every((line) => line.ys.concat(line.low || []).every((one) => one === null || one > 0));
    const frame = element("div", "drawn");
    const bar = element("div", "tools");
    const sheet = element("div", "sheet");
    const reader = element("p", "reading quiet small");
    sheet.tabIndex = 0;
    sheet.setAttribute("role", "group");
    sheet.setAttribute("aria-roledescription", "chart");
    sheet.setAttribute("aria-label", `${about.words} Arrow keys read values, plus and minus zoom, 0 shows all, L changes the scale.`);
    reader.setAttribute("role", "status");
    const button = (text, label, act) => { const made = element("button", "", text); made.type = "button"; made.setAttribute("aria-label", `${text}, ${label}: ${about.title}`); made.title = label; made.addEventListener("click", act); bar.append(made); return made; };
    frame.append(bar, sheet, reader);
    figure.querySelector("figcaption").after(frame);

    const whole = () => [data[0][0], data[0][data[0].length - 1]];
    const reach = () => {
      const marks = about.x === "step" ? about.marks.flatMap((mark) => [mark.low, mark.high]).filter((one) => one !== null) : [];
      const [low, high] = whole();
      const [first, last] = [Math.min(low, ...marks, ...about.broken), Math.max(high, ...marks, ...about.broken)];
      const air = (last - first || 1) * 0.02;
      return [first - air, last + air];
    };
    const look = "11.5px system-ui, sans-serif";
    const axis = { stroke: ink("--quiet"), font: look, grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1 } };
    let plot = null;
    function draw() {
      if (plot) { plot.destroy(); }
      const { found, bands } = series(about.lines);
      plot = new uPlot({
        width: Math.max(sheet.clientWidth, 240),
        height: HEIGHT,
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        legend: { show: false },
        cursor: { drag: { x: true, y: false, uni: 20 }, points: { size: 7 } },
        scales: {
          x: { time: about.x === "time", range: (_, low, high) => (state.stretch ? state.stretch : low === null ? reach() : state.stretch || reach()) },
          y: state.isLog && canLog ? { distr: 3 } : {},
        },
        axes: [{ ...axis, space: about.x === "time" ? 84 : 50, incrs: about.x === "time" && whole()[1] - whole()[0] > 2 * 86400 ? [1, 2, 7, 14, 30].map((one) => one * 86400) : undefined, values: about.x === "time" ? (_, ticks) => ticks.map((one) => (ticks.length > 1 && ticks[ticks.length - 1] - ticks[0] > 86400 ? day(one) : clock(one))) : undefined }, { ...axis, size: 56, values: (_, ticks) => ticks.map((one) => (one === null ? "" : short(one))) }],
        series: found,
        bands,
        hooks: {
          draw: [(one) => drawMarks(one, about)],
          setCursor: [(one) => { reader.textContent = reading(one, about) || resting; }],
          setSelect: [(one) => {
            if (one.select.width < 4) { return; }
            stretch([one.posToVal(one.select.left, "x"), one.posToVal(one.select.left + one.select.width, "x")]);
            one.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          }],
        },
      }, data, sheet);
      plot.over.addEventListener("dblclick", () => stretch(null));
    }
    const resting = "Point at the curve or use the arrow keys to read values; drag to zoom.";
    reader.textContent = resting;
    function stretch(to) {
      state.stretch = to;
      const [low, high] = to || reach();
      plot.setScale("x", { min: low, max: high });
      all.disabled = to === null;
    }
    function zoom(by) {
      const { min, max } = plot.scales.x;
      const middle = plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : (min + max) / 2;
      const [low, high] = reach();
      const next = [Math.max(low, middle - (middle - min) * by), Math.min(high, middle + (max - middle) * by)];
      stretch(next[0] <= low && next[1] >= high ? null : next);
    }
    function rescale() {
      if (!canLog) { return; }
      state.isLog = !state.isLog;
      log.setAttribute("aria-pressed", String(state.isLog));
      draw();
    }
    function read(by) {
      const xs = data[0];
      const { min, max } = plot.scales.x;
      const start = plot.cursor.left >= 0 && plot.cursor.idx !== null && plot.cursor.idx !== undefined ? plot.cursor.idx + by : by > 0 ? xs.findIndex((x) => x >= min) : xs.findLastIndex((x) => x <= max);
      const at = Math.min(xs.length - 1, Math.max(0, start));
      plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: plot.over.clientHeight / 2 });
    }
    button("+", "Zoom in", () => zoom(0.5));
    button("−", "Zoom out", () => zoom(2));
    const all = button("All", "Show all", () => stretch(null));
    const log = button("Log", "Logarithmic scale", rescale);
    log.setAttribute("aria-pressed", String(Boolean(state.isLog && canLog)));
    log.disabled = !canLog;
    all.disabled = state.stretch === null;
    sheet.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => read(-1), ArrowRight: () => read(1), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => stretch(null), l: rescale, L: rescale }[event.key];
      if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); act(); }
    });
    draw();
    const watch = new ResizeObserver(() => { if (sheet.clientWidth > 0 && plot && sheet.clientWidth !== plot.width) { plot.setSize({ width: sheet.clientWidth, height: HEIGHT }); } });
    watch.observe(sheet);
    shown.set(figure, { redraw: draw, end: () => { watch.disconnect(); plot.destroy(); } });
  }

  function mountAll(part) {
    for (const [figure, plot] of shown) { if (!figure.isConnected) { plot.end(); shown.delete(figure); } }
    part.querySelectorAll("figure[data-plot]").forEach((figure) => { if (!shown.has(figure)) { mount(figure); } });
  }

  document.addEventListener("rekindle:exchanged", (event) => mountAll(event.target));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.forEach((plot) => plot.redraw()));
  document.documentElement.classList.add("has-plots");
  mountAll(document);

  // Commands to copy: the button is of use with script only, so it is made here.
  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest("button.copy") : null;
    if (!button) { return; }
    const text = button.parentElement.querySelector("code").textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { getSelection().selectAllChildren(button.parentElement.querySelector("code")); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
})();
