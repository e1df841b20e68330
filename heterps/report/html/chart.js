// Line charts: axes with units, curves, points that matter, and tooltips.

// How wide a chart may be in its box, so that its letters are as large as the page's.
const widthOf = (box, least = 280) => Math.max(least, Math.floor(box.clientWidth || least));

function extent(values, { zero, log, pad = 0.06 }) {
  let low = Math.min(...values), high = Math.max(...values);
  if (log) return [low / 1.15, high * 1.15];
  if (zero) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [zero && low === 0 ? 0 : low - room, high + room];
}

// options: series [{name, colour, points [[x, y]], dash, steps}], x and y {label, format, log, zero, low, high},
// marks [{x, y, kind, label, title}], lines [{x | y, label}], height
function lineChart(box, options) {
  const series = options.series.map((one) => ({ ...one, points: one.points.filter(([x, y]) => known(x) && known(y)) }));
  const all = series.flatMap((one) => one.points), marks = options.marks || [], lines = options.lines || [];
  const width = widthOf(box), height = options.height || 240;
  const { x: ax, y: ay } = options;
  const xs = [...all.map((p) => p[0]), ...marks.map((m) => m.x), ...lines.filter((l) => known(l.x)).map((l) => l.x)];
  const ys = [...all.map((p) => p[1]), ...marks.map((m) => m.y), ...lines.filter((l) => known(l.y)).map((l) => l.y)];
  const [x0, x1] = extent(xs, { ...ax, pad: ax.pad ?? 0.01 }), [y0, y1] = extent(ys, ay);
  const yTicks = ay.log ? logTicks(y0, y1, 5) : ticks(y0, y1, height / 52);
  const yLabels = yTicks.map(ay.format);
  const left = 14 + 6.6 * Math.max(...yLabels.map((text) => text.length)), right = width - 14, top = 22, bottom = height - 38;
  const px = scale(x0, x1, left, right, ax.log), py = scale(y0, y1, bottom, top, ay.log);
  const xTicks = ax.log ? logTicks(x0, x1, width / 90) : ticks(x0, x1, width / 95);
  const chart = s("svg.chart", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  for (const [i, value] of yTicks.entries()) {
    put(chart, [s("line.grid", { x1: left, x2: right, y1: py(value), y2: py(value) }),
      s("text", { x: left - 7, y: py(value) + 4, "text-anchor": "end" }, yLabels[i])]);
  }
  for (const value of xTicks) {
    put(chart, [s("line.axis", { x1: px(value), x2: px(value), y1: bottom, y2: bottom + 4 }),
      s("text", { x: px(value), y: bottom + 17, "text-anchor": "middle" }, ax.format(value))]);
  }
  put(chart, [s("line.axis", { x1: left, x2: right, y1: bottom, y2: bottom }),
    s("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, ax.label),
    s("text", { x: 0, y: 11 }, ay.label)]);
  for (const line of lines) put(chart, guide(line, { px, py, left, right, top, bottom }));
  for (const one of series) put(chart, [curve(one, px, py)]);
  put(chart, bands(series, { px, left, right, top, bottom, x: ax, y: ay }));
  for (const mark of marks) put(chart, pointer(mark, px, py, { left, right, bottom }));
  return chart;
}

function guide(line, { px, py, left, right, top, bottom }) {
  if (known(line.x)) {
    const end = px(line.x) > (left + right) / 2;
    return [s("line.goal", { x1: px(line.x), x2: px(line.x), y1: top, y2: bottom }),
      s("text", { x: px(line.x) + (end ? -6 : 6), y: top + 9, "text-anchor": end ? "end" : "start" }, line.label)];
  }
  return [s("line.goal", { x1: left, x2: right, y1: py(line.y), y2: py(line.y) }),
    s("text", { x: right, y: py(line.y) - 5, "text-anchor": "end" }, line.label)];
}

function curve({ points, colour, dash, steps, dots }, px, py) {
  let path = "";
  points.forEach(([x, y], i) => {
    if (i && steps) path += `V${py(y).toFixed(1)}`;  // a staircase: this much money reaches up to this throughput
    path += `${i ? "L" : "M"}${px(x).toFixed(1)},${py(y).toFixed(1)}`;
  });
  const style = { stroke: colour, strokeDasharray: dash || "none" };
  const found = s("g", {}, s("path.curve", { d: path, style }));
  if (dots || points.length <= 12) {
    for (const [x, y] of points) put(found, [s("circle", { cx: px(x), cy: py(y), r: dots ? 3.5 : 3, style: { fill: colour } })]);
  }
  return found;
}

// Invisible stripes that tell the values under the pointer.
function bands(series, { px, left, right, top, bottom, x, y }) {
  const stops = [...new Set(series.flatMap((one) => one.points.map((p) => p[0])))].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(stops.length / 80)), shown = stops.filter((_, i) => i % every === 0);
  return shown.map((stop, i) => {
    const from = i ? (px(shown[i - 1]) + px(stop)) / 2 : left;
    const to = i + 1 < shown.length ? (px(stop) + px(shown[i + 1])) / 2 : right;
    const told = series.map((one) => {
      const point = nearest(one.points, stop);
      return point && `${one.name}: ${(y.exact || y.format)(point[1])}${one.tell ? ` (${one.tell(point)})` : ""}`;
    });
    const text = [`${x.name || x.label}: ${(x.exact || x.format)(stop)}`, ...told.filter(Boolean)].join("\n");
    return s("rect.band", { x: from, y: top, width: Math.max(0, to - from), height: bottom - top }, tip(text));
  });
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  if (high < 0) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle; else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
}

function pointer(mark, px, py, { left, right, bottom }) {
  const x = px(mark.x), y = py(mark.y), end = x > (left + right) / 2;
  const down = !mark.below ? -10 : y + 24 < bottom ? 20 : 4;  // beside it, where the axis leaves no room below
  return [s(`circle.${mark.kind}`, { cx: x, cy: y, r: 7 }, tip(mark.title)),
    s("text.strong", { x: x + (end ? -12 : 12), y: y + down, "text-anchor": end ? "end" : "start" }, mark.label)];
}

const legend = (entries) => h("div.legend", {}, entries.map(([colour, text, opacity]) =>
  h("span.type", {}, h("i.swatch", { style: { background: colour, opacity: opacity || 1 } }), text)));
