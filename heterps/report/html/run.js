// Sections about the run: stages predicted and measured, the timeline, curves, tables, the environment.

const stageName = (stage, number) => `stage ${number} · ${known(stage.units) ? `${stage.units} × ` : ""}${stage.type}`;

function renderStages(data, box) {
  const most = Math.max(...data.stages.flatMap((stage) => [stage.predicted_s || 0, stage.measured_s || 0]));
  const bar = (seconds, colour, faint) => h("span.meter", {}, h("i", { style: { width: `${100 * seconds / most}%`, background: colour, opacity: faint ? 0.45 : 1 } }));
  const rows = data.stages.map((stage, i) => {
    const colour = typeColour(data, stage.type), both = known(stage.predicted_s) && known(stage.measured_s);
    return { cells: [h("span.type", {}, h("i.swatch", { style: { background: colour } }), stageName(stage, i)),
      [known(stage.predicted_s) && bar(stage.predicted_s, colour, true), known(stage.predicted_s) && h("span", { style: { display: "block", height: "3px" } }),
        known(stage.measured_s) && bar(stage.measured_s, colour)],
      known(stage.predicted_s) ? format.seconds(stage.predicted_s) : "–", known(stage.measured_s) ? format.seconds(stage.measured_s) : "–",
      both ? format.signed(stage.measured_s / stage.predicted_s - 1) : "–", known(stage.busy) ? format.share(stage.busy) : "–"] };
  });
  put(box, [table("stages", [["stage", "word"], ["predicted (faint), measured", "wide"], ["predicted", "n"], ["measured", "n"], ["off by", "n"], ["busy", "n"]], rows)]);
  const { throughput, predicted_throughput: predicted } = data.verdict;
  if (!known(predicted)) put(box, [h("p.note", {}, "Without a plan nothing was predicted.")]);
  else if (known(throughput)) {
    put(box, [h("p.note", {}, `Together ${format.rate(throughput)} measured, ${format.rate(predicted)} predicted (${format.signed(throughput / predicted - 1)}). Times are of one step.`)]);
  }
}

const SHADES = { forward: 100, pull: 100, backward: 62, push: 62, update: 34 };
function shade(data, type, name) {
  const colour = typeColour(data, type), share = SHADES[name] ?? 20;
  return share === 100 ? colour : `color-mix(in srgb, ${colour} ${share}%, var(--surface))`;
}

// Spans of a stage that overlap, as those of replicas do, lie on tracks of their own.
function lanes(spans) {
  const ends = [];
  return spans.map((span) => {
    let lane = ends.findIndex((end) => end <= span.begin_s + 1e-9);
    if (lane < 0) lane = ends.length;
    ends[lane] = span.end_s;
    return lane;
  });
}

function renderTimeline(data, box) {
  const { timeline, stages } = data, row = 24, top = 24, gap = 10;
  const typeOf = (number) => stages?.[number]?.type ?? "";
  const names = [...new Set(timeline.spans.map((span) => span.name))];
  const first = typeOf(timeline.stages[0]);
  put(box, [legend(names.map((name) => [shade(data, first, name), name]))]);
  const inner = h("div"), frame = scrolling("timeline", inner);
  put(box, [frame]);
  const width = widthOf(frame, 680), left = 112, right = width - 12;
  const px = scale(0, timeline.seconds, left, right);
  const chart = s("svg.chart", { role: "img", "aria-label": "what each stage does over time", style: { minWidth: "680px" } });
  let y = top;
  for (const number of timeline.stages) {
    const spans = timeline.spans.filter((span) => span.stage === number), lane = lanes(spans);
    const tall = row * (Math.max(...lane) + 1), type = typeOf(number), units = stages?.[number]?.units;
    put(chart, [s("text.strong", { x: 0, y: y + 11 }, `stage ${number}`), s("text", { x: 0, y: y + 25 }, `${known(units) ? `${units} × ` : ""}${type}`.slice(0, 17)),
      s("rect.track", { x: left, y, width: right - left, height: tall, rx: 4 })]);
    spans.forEach((span, i) => {
      const told = `${span.name}, step ${span.step}${known(span.micro_batch) ? `, micro-batch ${span.micro_batch}` : ""}: ${format.seconds(span.end_s - span.begin_s)}`;
      put(chart, [s("rect.span", { x: px(span.begin_s), y: y + row * lane[i] + 2, width: Math.max(0.8, px(span.end_s) - px(span.begin_s) - 0.6),
        height: row - 4, rx: 2, style: { fill: shade(data, type, span.name) } }, tip(told))]);
    });
    y += Math.max(tall, 30) + gap;
  }
  put(chart, stepMarks(timeline, px, top, y - gap));
  for (const value of ticks(0, timeline.seconds, width / 110)) {
    put(chart, [s("line.axis", { x1: px(value), x2: px(value), y1: y - gap + 2, y2: y - gap + 6 }),
      s("text", { x: Math.min(px(value), width - 18), y: y + 10, "text-anchor": "middle" }, format.seconds(value))]);
  }
  chart.setAttribute("viewBox", `0 0 ${width} ${y + 14}`);
  put(inner, [chart]);
  const idle = "A last stage does its backward within its forward.";
  put(box, [h("p.note", {}, `Steps ${timeline.first_step} to ${timeline.last_step}, ${format.seconds(timeline.seconds)} in all, ${format.duration(timeline.begin_s)} after the start. ${idle}`)]);
}

function stepMarks(timeline, px, top, bottom) {
  const begins = new Map();
  for (const span of timeline.spans) {
    if (span.stage === timeline.stages[0] && !begins.has(span.step)) begins.set(span.step, span.begin_s);
  }
  let last = -Infinity;
  return [...begins].map(([step, at]) => {
    const x = px(at), roomy = x - last > 46;
    if (roomy) last = x;
    return [s("line.goal", { x1: x, x2: x, y1: top - 6, y2: bottom, style: { opacity: 0.55 } }), roomy && s("text", { x: x + 2, y: 11 }, `step ${step}`)];
  });
}

function renderCurves(data, box) {
  const { curves } = data, grid = h("div.charts"), later = [];
  put(box, [grid]);
  const draw = (title, label, entries, options) => {
    const series = entries.filter(([key]) => curves[key]?.some((point) => known(point[1])))
      .map(([key, name, colour, dash]) => ({ name, colour, dash, points: curves[key] }));
    if (!series.length) return;
    const place = h("div"), figure = h("figure", {}, h("figcaption", {}, title), series.length > 1 && legend(series.map((one) => [one.colour, one.name])), place);
    put(grid, [h("div", {}, figure)]);
    later.push(() => put(place, [lineChart(place, { label: title, series, height: 230, x: { label: "step", format: format.short, exact: format.count }, y: { label, ...options } })]));
  };
  const figures = { format: (value) => format.digits(value, 3), exact: (value) => value.toFixed(4) };
  draw("Loss", "mean a sample", [["loss", "training", "var(--curve-0)"], ["eval/loss", "held-out", "var(--curve-1)"]], figures);
  draw("AUC", "chance of the right order", [["auc", "training, since the start", "var(--curve-0)"], ["eval/auc", "held-out", "var(--curve-1)"]], figures);
  draw("Throughput", "samples a second", [["throughput", "measured", "var(--curve-0)"]], { format: format.short, exact: format.count, zero: true });
  for (const each of later) each();  // when all have their place, and so their width
}

function renderStore(data, box) {
  const share = (one) => one.hits + one.creations > 0 ? format.share(one.hits / (one.hits + one.creations)) : "–";
  const cell = (value, how) => known(value) ? how(value) : "–";
  put(box, [table("tables", [["table", "word"], ["rows", "n"], ["memory", "n"], ["a row", "n"], ["hits", "n"], ["rows created", "n"], ["found there", "n"]],
    data.store.map((one) => ({ cells: [one.name, cell(one.rows, format.count), cell(one.bytes, format.bytes),
      one.rows > 0 && known(one.bytes) ? format.bytes(one.bytes / one.rows) : "–", cell(one.hits, format.count), cell(one.creations, format.count), share(one)] })))]);
  const growing = data.store.filter((one) => one.curves.rows?.length > 1).slice(0, 8);
  if (!growing.length) return;
  const place = h("div"), colour = (i) => i < 2 ? `var(--curve-${i})` : `var(--type-${i % 8})`;
  put(box, [h("figure", { style: { marginTop: "16px" } }, h("figcaption", {}, "Rows over time"), growing.length > 1 && legend(growing.map((one, i) => [colour(i), one.name])), place)]);
  put(place, [lineChart(place, { label: "rows of each table", height: 210, series: growing.map((one, i) => ({ name: one.name, colour: colour(i), points: one.curves.rows })),
    x: { label: "step", format: format.short, exact: format.count }, y: { label: "rows", format: format.short, exact: format.count, zero: true } })]);
}

const flat = (value) => Array.isArray(value) ? value.map(flat).join(", ") : value && typeof value === "object"
  ? Object.entries(value).filter(([, inner]) => known(inner)).map(([key, inner]) => `${key} ${flat(inner)}`).join(", ") : String(value);

const factTable = (facts) => h("dl.facts", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

function renderEnvironment(data, box) {
  const found = data.environment, facts = [], grid = h("div.two");
  put(box, [grid]);
  if (found) {
    const names = { heterps: "heterps", python: "Python", torch: "PyTorch", os: "System", cpu: "CPU", cores: "Cores", memory_bytes: "Memory" };
    for (const [key, name] of Object.entries(names)) {
      if (known(found[key])) facts.push([name, key === "memory_bytes" ? format.bytes(found[key]) : String(found[key])]);
    }
    const gpus = Array.isArray(found.gpus) ? found.gpus.filter((gpu) => gpu?.name) : [];
    facts.push(["GPUs", gpus.length ? gpus.map((gpu) => `${gpu.name}${gpu.memory_bytes ? ` (${format.bytes(gpu.memory_bytes)})` : ""}`).join(", ") : "none"]);
    for (const [key, value] of Object.entries(found)) {
      if (!(key in names) && !["gpus", "machine"].includes(key) && known(value)) facts.push([key.replaceAll("_", " "), flat(value)]);
    }
    put(grid, [h("div", {}, h("h3", {}, "Where it ran"), factTable(facts))]);
  } else put(grid, [h("div", {}, h("h3", {}, "Where it ran"), missing(data, "environment"))]);
  if (data.job) {
    const entries = Object.entries(data.job).filter(([, value]) => known(value) && flat(value) !== "");
    put(grid, [h("div", {}, h("h3", {}, "The job"), factTable(entries.map(([key, value]) => [key, flat(value)])))]);
  }
}
