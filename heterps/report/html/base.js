// Numbers for people, elements, and scales. Text only ever enters the page as text, never as markup.

const format = {
  digits(value, most = 3) {
    return Number(value.toPrecision(most)).toLocaleString("en-US", { maximumSignificantDigits: most });
  },
  rate(value) {
    return (value >= 100 ? Math.round(value).toLocaleString("en-US") : format.digits(value, 4)) + "/s";
  },
  usd(value, most = 4) {
    if (value === 0) return "$0";
    if (value < 1e-6) return "<$0.000001";
    if (value >= 1) return "$" + value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
    return "$" + format.digits(value, most);
  },
  seconds(value) {
    if (value === 0) return "0 s";
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
      if (value >= size) return format.digits(value / size) + " " + unit;
    }
    return format.digits(value / 1e-9) + " ns";
  },
  duration(value) {
    if (value < 120) return format.seconds(value);
    const minutes = Math.round(value / 60);
    if (minutes < 120) return minutes + " min";
    return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
  },
  bytes(value) {
    for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (value >= size) return format.digits(value / size) + " " + unit;
    }
    return Math.round(value) + " B";
  },
  share(value) {
    if (value > 0 && value < 1e-4) return "<0.01%";
    return (100 * value).toFixed(value < 0.1 ? 2 : 1) + "%";
  },
  signed(value) {
    if (value > 1) return "× " + format.digits(1 + value);
    return (value < 0 ? "−" : "+") + format.share(Math.abs(value));
  },
  count(value) {
    return Math.round(value).toLocaleString("en-US");
  },
  short(value) {
    const size = Math.abs(value);
    for (const [unit, scale] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (size >= scale) return format.digits(value / scale) + unit;
    }
    return format.digits(value, 4);
  },
  time(unix) {
    return new Date(unix * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
  },
};

function put(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
  return parent;
}

// h("p.soft", {title: "…"}, "text"): an HTML element; `style` is an object, as a page without inline styles needs it.
function h(name, options = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(options)) {
    if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value);
  }
  return put(made, children);
}

// s("rect.span", {x: 1}, …): an SVG element.
function s(name, options = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(options)) {
    if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, typeof value === "number" ? Math.round(value * 100) / 100 : value);
  }
  return put(made, children);
}

const tip = (text) => s("title", {}, text);
const known = (value) => value !== null && value !== undefined;
const scrolling = (label, ...children) => h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, ...children);

// Round numbers between two values, some `wanted` of them.
function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const off = rough / power, step = power * (off >= 7.1 ? 10 : off >= 3.2 ? 5 : off >= 1.5 ? 2 : 1);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

// 1, 2 and 5 of each power of ten; more where that is too few, and where it is too many, powers or every so many.
function logTicks(low, high, wanted) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  let found = [];
  for (const factors of [[1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) {
    if (found.length >= Math.min(4, wanted)) break;
    found = [];
    for (let power = first; power <= last; power++) for (const factor of factors) found.push(factor * 10 ** power);
    found = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  }
  if (found.length > wanted) {
    const powers = found.filter((value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6);
    if (powers.length >= 2) found = powers;
  }
  const every = Math.ceil(found.length / wanted);
  return found.filter((_, i) => i % every === 0);
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log : (value) => value;
  const a = f(low), b = f(high);
  return (value) => from + (b > a ? (f(value) - a) / (b - a) : 0.5) * (to - from);
}
