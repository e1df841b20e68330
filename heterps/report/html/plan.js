// Sections about planning: stages, money, layers, the frontier, the methods.

function typeColour(data, name) {
  const index = data.types.findIndex((type) => type.name === name);
  return `var(--type-${(index < 0 ? 6 : index) % 8})`;
}
const typeLabel = (data, name) => h("span.type", {}, h("i.swatch", { style: { background: typeColour(data, name) } }), name);
const priceOf = (data, name) => data.types.find((type) => type.name === name)?.price_per_hour;

function table(label, columns, rows) {
  const head = columns.map(([text, kind]) => h(kind ? `th.${kind}` : "th", { scope: "col" }, text));
  const body = rows.map((row) => h(row.kind ? `tr.${row.kind}` : "tr", {},
    row.cells.map((cell, i) => h(columns[i][1] ? `td.${columns[i][1]}` : "td", {}, cell))));
  return scrolling(label, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

function renderPlan(data, box) {
  const both = Boolean(data.rent);
  if (data.plan) put(box, [onePlan(data, data.plan, both ? "What ran here" : null)]);
  if (both) put(box, [onePlan(data, data.rent, "What to rent: the cheapest plan on the job’s cluster")]);
}

const GOALS = {
  min_throughput: (value) => `at least ${format.rate(value)}`,
  max_usd_per_hour: (value) => `at most ${format.usd(value)} an hour`,
  samples: (value) => `${format.count(value)} samples`,
  deadline_hours: (value) => `within ${format.digits(value)} h`,
  fastest: () => "as fast as can be",
  budget_usd: (value) => `for ${format.usd(value)} at most`,
};

function onePlan(data, plan, title) {
  const box = h("div.plan");
  const goal = Object.entries(plan.goal).map(([key, value]) => GOALS[key] ? GOALS[key](value) : `${key.replaceAll("_", " ")} ${value}`);
  put(box, [title && h("h3", {}, title),
    h("p.lead", {}, `${plan.model}: ${format.rate(plan.predicted.throughput)} for ${format.usd(plan.predicted.usd_per_hour)} an hour predicted, `,
      `${proofOf(plan)}${goal.length ? `; asked: ${goal.join(", ")}` : ""}.`)]);
  put(box, [h("div.strip", { role: "img", "aria-label": "the chain’s layers, coloured by type" }, plan.placement.map((type, i) =>
    h(i && plan.placement[i - 1] !== type ? "i.begins" : "i", { title: `${plan.layers[i]}: ${type}`, style: { background: typeColour(data, type) } })))]);
  put(box, [h("div.stages", {}, plan.stages.map((stage, i) => stageCard(data, plan, stage, i)),
    plan.server && serverCard(data, plan.server))]);
  put(box, [moneyTable(data, plan), plan.note && h("p.note", {}, plan.note)]);
  return box;
}

function proofOf(plan) {
  if (plan.search.optimal) return "proved optimal";
  return known(plan.gap) ? `at most ${format.share(plan.gap)} above the optimum (proved)` : "nothing proved";
}

function stageCard(data, plan, stage, number) {
  const names = plan.layers.slice(stage.first, stage.last + 1);
  const shown = names.length > 8 ? [...names.slice(0, 4), `… ${names.length - 6} more …`, ...names.slice(-2)] : names;
  const facts = [["an hour", format.usd(stage.usd_per_hour)]];
  if (known(stage.seconds)) {
    facts.push(["a sample", format.seconds(stage.seconds)], ["limited by", stage.binds], ["idle", format.share(stage.idle)]);
  }
  const card = h(plan.slowest === number ? "div.stage.slowest" : "div.stage", { style: { flexGrow: String(Math.min(3, 1 + names.length / 6)) } },
    h("header", { style: { background: typeColour(data, stage.type) } }, h("span", {}, `${stage.units} × ${stage.type}`), h("span", {}, `stage ${number}`)),
    h("div.body", {}, h("div.layers", {}, shown.map((name) => h("span", {}, name))), factList(facts)));
  if (plan.slowest === number) card.title = "This stage sets the pace.";
  return card;
}

function serverCard(data, server) {
  const facts = [["an hour", format.usd(server.usd_per_hour)]];
  if (known(server.seconds)) facts.push(["a sample", format.seconds(server.seconds)], ["idle", format.share(server.idle)]);
  return h("div.stage.server", {},
    h("header", { style: { background: typeColour(data, server.type) } }, h("span", {}, `${server.units} × ${server.type}`), h("span", {}, "server")),
    h("div.body", {}, h("div.layers", {}, h("span", {}, "parameter server")), factList(facts)));
}

const factList = (facts) => h("dl", {}, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

function moneyTable(data, plan) {
  const total = plan.predicted.usd_per_hour;
  const parts = [...plan.stages.map((stage, i) => [`stage ${i}`, stage]), ...(plan.server ? [["parameter server", plan.server]] : [])];
  const rows = parts.map(([name, part]) => ({ cells: [
    name, typeLabel(data, part.type), format.count(part.units), known(priceOf(data, part.type)) ? format.usd(priceOf(data, part.type)) : "–",
    format.usd(part.usd_per_hour),
    h("span.meter", { title: `${format.share(part.usd_per_hour / total)} of the money` },
      h("i", { style: { width: `${100 * part.usd_per_hour / total}%`, background: typeColour(data, part.type) } })),
    format.usd(part.usd_per_hour / total * plan.predicted.usd_per_million_samples),
  ] }));
  rows.push({ kind: "total", cells: ["together", "", format.count(parts.reduce((sum, [, part]) => sum + part.units, 0)), "", format.usd(total), "",
    format.usd(plan.predicted.usd_per_million_samples)] });
  return table("units and money", [["part", "word"], ["type", "word"], ["units", "n"], ["a unit-hour", "n"], ["an hour", "n"], ["share", "wide"],
    ["a million samples", "n"]], rows);
}

function renderChain(data, box) {
  const { chain } = data, plan = data.rent || data.plan;
  const used = data.types.map((type) => type.name).filter((name) => chain.layers.some((layer) => layer.costs[name]));
  const priced = used.every((name) => known(priceOf(data, name)));
  const money = (seconds, name) => priced ? seconds / chain.batch_size * priceOf(data, name) / 3600 * 1e6 : seconds;
  const most = Math.max(...chain.layers.flatMap((layer) => used.map((name) =>
    layer.costs[name] ? money(Math.max(layer.costs[name].compute_s, layer.costs[name].sync_s), name) : 0)));
  const grid = h("div.chain", { style: { gridTemplateColumns: `minmax(110px, 1.1fr) repeat(${used.length}, minmax(0, 2fr))` } },
    h("div.head", {}, "layer"), used.map((name) => h("div.head", {}, typeLabel(data, name))));
  chain.layers.forEach((layer, i) => {
    const about = [layer.kind === layer.name ? null : layer.kind, layer.state_bytes ? format.bytes(layer.state_bytes) + (layer.sharded ? " shared" : "") : null];
    put(grid, [h("div.layer", { title: `${format.bytes(layer.output_bytes)} a batch go on to the next layer` },
      layer.name, h("span", {}, " ", about.filter(Boolean).join(", ")))]);
    for (const name of used) put(grid, [costCell(data, layer, name, { placed: plan && plan.placement[i] === name, money, most, priced })]);
  });
  const long = chain.layers.length > 40;
  put(box, [long ? h("div.tall", { tabindex: "0", role: "region", "aria-label": "layers" }, grid) : grid, h("p.note", {}, `One batch of ${format.count(chain.batch_size)} samples on one unit: computing (thick), exchanging parameters (thin). `,
    priced ? "Bars are as long as the money a million samples would cost there; " : "Bars are as long as the time; ",
    "full colour is where the plan puts the layer.", chain.derived ? " Costs are derived by a roofline, not measured." : "")]);
}

function costCell(data, layer, name, { placed, money, most, priced }) {
  const cost = layer.costs[name], which = h("span.which", {}, name);
  if (!cost) return h("div.cost", {}, which, h("div.figures", {}, "cannot run here"));
  const bar = (seconds, kind) => h(`i.${kind}`, { style: { width: `${100 * money(seconds, name) / most}%`, background: typeColour(data, name) } });
  const told = `${layer.name} on ${name}: computing ${format.seconds(cost.compute_s)}, exchange ${format.seconds(cost.sync_s)}` +
    (cost.ps_s ? `, server ${format.seconds(cost.ps_s)}` : "") + (cost.source ? ` (${cost.source})` : "");
  return h(placed ? "div.cost.placed" : "div.cost", { title: told }, which,
    h("div.bars", {}, bar(cost.compute_s, "compute"), cost.sync_s > 0 && bar(cost.sync_s, "sync")),
    h("div.figures", {}, h("span", {}, format.seconds(Math.max(cost.compute_s, cost.sync_s))),
      priced && h("span", {}, format.usd(money(Math.max(cost.compute_s, cost.sync_s), name), 3))));
}

function renderFrontier(data, box) {
  const { frontier } = data, chosen = frontier.chosen, points = frontier.points;
  const place = h("div"), marks = [], lines = [];
  put(box, [place]);
  if (chosen) {
    marks.push({ x: chosen.throughput, y: chosen.usd_per_million_samples, kind: "chosen", label: "the plan", below: true,
      title: `the plan: ${format.rate(chosen.throughput)}, ${format.usd(chosen.usd_per_million_samples)} a million samples` });
    if (chosen.min_throughput > 0.4 * Math.min(...points.map((point) => point.throughput))) lines.push({ x: chosen.min_throughput, label: `asked: ${format.short(chosen.min_throughput)}/s` });
  }
  const real = data.measured;
  if (frontier.of === "run" && known(real.throughput) && known(real.usd_per_million_samples)) {
    marks.push({ x: real.throughput, y: real.usd_per_million_samples, kind: "real", label: "measured",
      title: `measured: ${format.rate(real.throughput)}, ${format.usd(real.usd_per_million_samples)} a million samples` });
  }
  const tell = (point) => points.find((each) => each.throughput === point[0])?.units;
  put(place, [lineChart(place, { label: "cost over throughput", height: 300, marks, lines,
    series: [{ name: "least cost", colour: "var(--curve-0)", dots: true, steps: true, tell,
      points: points.map((point) => [point.throughput, point.usd_per_million_samples]) }],
    x: { label: "samples a second", format: format.short, exact: format.count, log: true },
    y: { label: "dollars a million samples", format: format.usd, zero: true } })]);
}

function renderMethods(data, box) {
  const { comparison } = data, found = comparison.methods;
  const bound = comparison.lower_bound_usd_per_million_samples, fastest = !known(bound);
  const valueOf = (row) => fastest ? row.throughput : row.usd_per_million_samples;
  const values = found.map(valueOf).filter(known);
  const most = Math.min(Math.max(...values), 3 * (fastest ? Math.max(...values) : Math.max(bound, Math.min(...values))));
  const rows = found.map((row) => {
    if (!known(valueOf(row))) return { cells: [row.method, h("span.soft", {}, row.reason || "no plan"), "–", "–", "–", "–"] };
    const placed = h("div.strip", { title: row.placement.join(" "), style: { height: "7px", margin: "4px 0 0" } },
      row.placement.map((type) => h("i", { style: { background: typeColour(data, type) } })));
    const bar = h("div.rule", { title: `${row.method}: ${format.usd(row.usd_per_million_samples)}, ${format.rate(row.throughput)}` },
      h("i", { style: { width: `${100 * Math.min(1, valueOf(row) / most)}%`, background: row.gap <= 1e-6 ? "var(--good)" : "var(--soft)" } }),
      !fastest && h("b", { title: "no plan costs less (proved)", style: { left: `${100 * bound / most}%` } }));
    return { kind: row.gap <= 1e-6 ? "best" : "", cells: [row.method, [bar, placed],
      fastest ? format.rate(row.throughput) : format.usd(row.usd_per_million_samples),
      row.gap <= 1e-6 ? "optimal" : "+" + format.share(row.gap), format.seconds(row.seconds), format.count(row.evaluations)] };
  });
  put(box, [table("methods", [["method", "word"], ["", "wide"], [fastest ? "samples/s" : "a million samples", "n"], ["above the bound", "n"],
    ["search", "n"], ["scored", "n"]], rows)]);
}
