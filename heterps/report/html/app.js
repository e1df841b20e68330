// The page: the top line, the sections, and, while a run goes on, what is new.

const SECTIONS = [
  { id: "plan", title: "Placement, units and money", reads: ["plan", "rent", "types"], there: (data) => data.plan || data.rent, render: renderPlan,
    lead: "Which layers run on which type, on how many units, and what each of them costs. The stage with the frame sets the pace." },
  { id: "chain", title: "The chain, layer by layer", reads: ["chain", "plan", "rent", "types"], render: renderChain,
    lead: "What each layer costs on each type." },
  { id: "frontier", title: "Cost and throughput", reads: ["frontier", "measured"], render: renderFrontier,
    lead: "For every throughput the least cost a sample; below the line there is no plan." },
  { id: "comparison", title: "Methods compared", reads: ["comparison", "types"], render: renderMethods,
    lead: "What each method finds for the same goal. The black rule is the proved bound; the strip is where layers go." },
  { id: "stages", title: "Predicted against measured", reads: ["stages", "verdict", "types"], render: renderStages,
    lead: "How long each stage works for one step, and the share of the time it is busy." },
  { id: "timeline", title: "Timeline of the pipeline", reads: ["timeline", "stages", "types"], render: renderTimeline,
    lead: "Some typical steps: what each stage did when." },
  { id: "curves", title: "Loss, AUC and speed", reads: ["curves"], render: renderCurves },
  { id: "store", title: "Sparse tables", reads: ["store"], render: renderStore,
    lead: "What the tables of this process hold, and how often a row that was asked for was there." },
  { id: "environment", title: "Environment", reads: ["environment", "job"], there: (data) => data.environment || data.job, render: renderEnvironment },
];

const missing = (data, id) => h("p.missing", {}, data.missing[id] || "Nothing here yet.");

function stateOf(run) {
  if (run.state === "running") return ["running", "training"];
  if (run.state === "waiting") return ["", "waiting for the run"];
  if (run.state === "broken off") return ["bad", "run broke off"];
  const how = { interrupted: "run was interrupted", early: "run is over: no more gain" };
  return [run.stopped === "interrupted" ? "bad" : "", how[run.stopped] || "run is over"];
}

function renderTop(data, box) {
  const { run, verdict } = data, [kind, text] = stateOf(run);
  const model = data.plan?.model ?? data.job?.model?.name;
  const told = [model, run.step ? `step ${format.count(run.step)}${run.steps ? ` of ${format.count(run.steps)}` : ""}` : null,
    data.measured.samples ? `${format.count(data.measured.samples)} samples` : null, run.seconds ? format.duration(run.seconds) : null,
    run.started_unix_s ? `started ${format.time(run.started_unix_s)}` : null, run.sessions > 1 ? `resumed ${run.sessions - 1} ×` : null,
    run.caught_up ? null : "still reading telemetry"];
  put(box, [h("div.masthead", {}, h("h1", {}, run.name), h(kind ? `span.state.${kind}` : "span.state", { id: "state", role: "status" }, text),
    h("p.soft.small", {}, told.filter(Boolean).join(" · "))), h("p.verdict", {}, verdict.text), tiles(data)]);
}

function tile(title, value, more, kind) {
  return h("div.tile", {}, h("h3", {}, title), h(kind ? `p.value.num.${kind}` : "p.value.num", {}, value), h("p", {}, more));
}

function tiles(data) {
  const v = data.verdict, price = v.usd_per_million_samples ?? v.predicted_usd_per_million_samples;
  const off = v.throughput && v.predicted_throughput ? `predicted ${format.rate(v.predicted_throughput)} (${format.signed(v.throughput / v.predicted_throughput - 1)})` : null;
  const rent = known(v.rent_usd_per_million_samples), shown = rent ? v.rent_usd_per_million_samples : price;
  const also = rent ? (known(price) ? `to rent; here ${format.usd(price)}` : "to rent")
    : known(v.usd_per_million_samples) && known(v.predicted_usd_per_million_samples) ? `measured; predicted ${format.usd(v.predicted_usd_per_million_samples)}`
    : known(shown) ? "predicted" : "a plan brings prices";
  const proof = v.optimal ? "proved optimal" : known(v.gap) ? `≤ ${format.share(v.gap)} above the optimum` : known(v.optimal) ? "nothing proved" : "no plan";
  return h("div.tiles", {},
    tile("Throughput", known(v.throughput) ? [format.count(v.throughput), h("small", {}, " samples/s")] : "–", off || (known(v.throughput) ? "measured" : "nothing measured yet")),
    tile(v.auc_of === "held-out" ? "AUC, held-out" : "AUC, training", known(v.auc) ? v.auc.toFixed(4) : "–", known(v.loss) ? `loss ${v.loss.toFixed(4)}` : "no loss yet"),
    tile("Cost of a million samples", known(shown) ? format.usd(shown) : "–", also),
    tile("Plan", proof, v.method ? `found by ${v.method}` : "heterps run makes one", v.optimal ? "good" : known(v.gap) ? "warn" : ""));
}

// Draws what has changed since the last time, so that the page stays where the reader is.
class Page {
  constructor(root) {
    this.root = root;
    this.drawn = new Map();
    this.top = h("div");
    this.wrong = h("div");
    this.boxes = new Map(SECTIONS.map((section) => [section.id, h("section", { id: section.id, "aria-label": section.title })]));
    const contents = h("nav.contents", { "aria-label": "sections" }, SECTIONS.map((section) => h("a", { href: `#${section.id}` }, section.title)));
    put(root, [h("header", {}, this.top, this.wrong, contents), h("main", {}, [...this.boxes.values()]), h("footer", {}, "heterps report; times in seconds, money in US dollars, 1 GB = 1e9 bytes.")]);
  }

  show(data) {
    this.data = data;
    this.update("top", [data.run, data.verdict, data.measured.samples], this.top, (box) => renderTop(data, box));
    this.update("wrong", data.wrong, this.wrong, (box) => data.wrong.forEach((line) => put(box, [h("p.wrong", {}, line)])));
    for (const section of SECTIONS) {
      const inputs = [section.reads.map((key) => data[key]), data.missing[section.id]];
      this.update(section.id, inputs, this.boxes.get(section.id), (box) => this.section(section, data, box));
    }
    document.title = `${data.run.name}: ${stateOf(data.run)[1]} · heterps`;
  }

  section(section, data, box) {
    const there = Boolean((section.there || ((all) => all[section.id]))(data));
    box.classList.toggle("absent", !there);
    put(box, [h("h2", {}, section.title)]);
    if (!there) return put(box, [missing(data, section.id)]);
    if (section.lead) put(box, [h("p.lead", {}, section.lead)]);
    else put(box, [h("div", { style: { height: "10px" } })]);
    try {
      return section.render(data, box);
    } catch (error) {  // one that cannot be drawn must not take the others with it
      console.error(error);
      return put(box, [h("p.missing", {}, `This cannot be drawn: ${error.message}.`)]);
    }
  }

  update(key, inputs, box, render) {
    const text = JSON.stringify(inputs);
    if (this.drawn.get(key) === text) return;
    this.drawn.set(key, text);
    const scrolled = [...box.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    box.replaceChildren();
    render(box);
    [...box.querySelectorAll(".scroll")].forEach((each, i) => { each.scrollLeft = scrolled[i] || 0; });
  }

  redraw() {
    this.drawn.clear();
    this.show(this.data);
  }
}

function follow(page) {
  let tag = null;
  async function look() {
    let wait = 1500;
    try {
      const answer = await fetch("data.json", { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag");
        page.show(await answer.json());
      } else if (answer.status !== 304) throw new Error(String(answer.status));
      if (page.data.run.state !== "running" && page.data.run.state !== "waiting") wait = 4000;
    } catch {
      const state = document.getElementById("state");
      state.textContent = "heterps watch has ended";
      state.className = "state bad";
      page.drawn.delete("top");
      tag = null;
      wait = 4000;
    }
    setTimeout(look, wait);
  }
  look();
}

const page = new Page(document.getElementById("page"));
const given = JSON.parse(document.getElementById("data").textContent);
page.show(given.report);
let width = innerWidth, resizing;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(resizing);
  resizing = setTimeout(() => page.redraw(), 120);
});
if (given.live) follow(page);
