// The panel: all read-outs of the token that is shown, and the density of the gates.

const readOuts = (names) => names.flatMap((name) => {
  const dd = make("dd");
  dd.dataset.field = name;
  return make("div", {}, make("dt", { innerHTML: FIELDS[name].symbol }), dd);
});
const updateHead = (k, title) => make("thead", {}, make("tr", {}, ...[
  [k, title], [`‖Δ<sub>${k}</sub>‖ / ‖h‖`, "Size of the update, relative to the state before"],
  ["cos", "Cosine of the update and the one before it"],
].map(([innerHTML, title]) => make("th", { scope: "col", innerHTML, title }))));
// The weights and updates of a loop: of the steps of a deep path, or of the core's repetitions.
function loopCharts(count, k, name, title) {
  const steps = Array.from({ length: count }, (_, n) => {
    const li = make("li");
    li.style.setProperty("--k", (n + 1) / count);
    return li;
  });
  const weights = steps.map(() => make("span"));
  const updates = steps.map((_, n) => make("tr", {}, make("th", { scope: "row" }, `${n + 1}`),
    make("td", {}, make("i"), make("span")), make("td")));
  const list = make("ol", { className: "steps", ariaHidden: true }, ...steps);
  const ofWeights = make("figure", { className: "chart" },
    make("figcaption", {}, `Weight of each ${name}`), list,
    make("div", { className: "weights" }, ...weights));
  const ofUpdates = make("figure", { className: "chart updates" },
    make("figcaption", {}, `Update of each ${name}`),
    make("table", {}, updateHead(k, title), make("tbody", {}, ...updates)));
  return { steps, weights, updates, ofWeights, ofUpdates };
}
function drawLoop({ steps, weights, updates }, weightOf, sizeOf, cosineOf) {
  const sizes = updates.map((_, k) => sizeOf(k));
  const most = Math.max(...sizes.filter(Number.isFinite), 0);
  updates.forEach((line, k) => {
    const [, size, cosine] = line.children, v = sizes[k] / most;
    size.firstChild.style.setProperty("--v", Number.isFinite(v) ? v : 0);
    size.lastChild.textContent = three(sizes[k]);
    cosine.textContent = fixed(cosineOf(k));
  });
  steps.forEach((li, k) => {
    const w = weightOf(k);
    li.style.flexGrow = w || 0;
    weights[k].textContent = `${k + 1}: ${fixed(w)}`;
  });
}
const charts = (() => {
  const loop = loopCharts(loops, "k", "step", "Step of the deep path");
  const bars = layers.map((_, i) => make("span", { onclick: () => setRow(i + 1) }, make("i")));
  const ends = [...new Set([layers[0], layers.at(-1)])].map((n) => make("span", {}, `layer ${n}`));
  const chart = make("div", { className: "bars", ariaHidden: true }, ...bars);
  const caption = make("figcaption", { innerHTML: "ρ<sub>d</sub> by layer",
    title: "The line is at ½; a dot where the likeliest token changes" });
  const ofShares = make("figure", { className: "chart" }, caption, chart,
    make("div", { className: "ends" }, ...ends));
  $("charts").append(loop.ofWeights, ofShares, loop.ofUpdates);
  const loads = Array.from({ length: Math.max(0, ...model.experts) }, () =>
    make("span", {}, make("i")));
  const ofLoads = make("figure", { className: "chart wider" },
    make("figcaption", {}, "Load of each expert in the sequence"),
    make("div", { className: "loads", ariaHidden: true }, ...loads));
  $("charts").append(ofLoads);
  return { loop, bars, loads, ofLoads };
})();
const core = loopCharts(model.repetitions, "r", "repetition", "Repetition of the core");
core.ofWeights.classList.add("wider");
$("core-charts").append(core.ofWeights, core.ofUpdates);
$("core").hidden = $("of-core").hidden = !model.repetitions;
function drawCharts(e, i) {
  const { loop, bars, loads, ofLoads } = charts, { row } = state;
  const choices = row ? loadsOf(e, row) : [], n = model.experts[row - 1];
  const even = choices.reduce((sum, count) => sum + count, 0) / n;
  const own = expertsOf(e, i, row).map(([number]) => number);
  ofLoads.hidden = !n;
  loads.forEach((bar, number) => {
    const load = choices[number] / even;  // 1 is an even load; the highest bar shows 3
    bar.style.setProperty("--v", load > 0 ? Math.min(load / 3, 1) : 0);
    bar.classList.toggle("now", own.includes(number));
    bar.hidden = number >= n;
    bar.title = `expert ${number}: ${three(load)} of an even load`;
  });
  const ofToken = (read) => (k) => read(e, i, row, k);
  drawLoop(loop, ...[weight, stepSize, stepCosine].map(ofToken));
  drawLoop(core, ...["coreWeights", "coreSizes", "coreCosines"].map(ofCore).map(ofToken));
  bars.forEach((bar, l) => {
    const v = FIELDS.share.value(e, i, l + 1), flips = flipsIn(e, i, l);
    bar.title = `layer ${layers[l]}: ${fixed(v)}${flips ? ", the likeliest token changes" : ""}`;
    bar.style.setProperty("--v", Number.isNaN(v) ? 0.5 : v);
    bar.className = [v < 0.5 && "wide", l + 1 === row && "now", flips && "flips"]
      .filter(Boolean).join(" ");
  });
}
function draw() {
  const { row, shown, pinned } = state;
  $("panel").classList.toggle("pinned", pinned);
  $("panel").classList.toggle("empty", !shown);
  $("where").textContent = where(row)[0].toUpperCase() + where(row).slice(1);
  drawShown();
  if (!shown) {
    $("place").textContent = state.note || "Point at a token, or press j.";
    return;
  }
  const { c, i } = shown, e = c.examples[c.at], made = c.spans[i], text = visible(e.tokens[i]);
  for (const dd of $("panel").querySelectorAll("[data-field]")) {
    dd.textContent = read(dd.dataset.field, e, i, row);
  }
  if (tags.length) $("tag").textContent = tags[data.upos[e.first + i] - 1] || "–";
  drawCharts(e, i);
  drawEarly(e, i);
  drawCosts(e, i);
  made.classList.add("shown");
  made.classList.toggle("pinned", pinned);
  made.ariaPressed = pinned;
  $("word").textContent = text;
  $("place").textContent = `${e.source} · sequence ${e.number} · position ${i}`;
  $("spoken").textContent = `${text}, ${where(row)}: deep share ${read("share", e, i, row)}`;
}
const ofTokens = ["nats", "repetitions"];  // not of a layer
$("of-token").append(...readOuts(ofTokens.filter((name) => FIELDS[name])));
if (tags.length) {
  $("of-token").append(make("div", {}, make("dt", {}, "UPOS"), make("dd", { id: "tag" })));
}
$("of-layer").append(...readOuts(Object.keys(FIELDS).filter((name) => !ofTokens.includes(name))));

// The model's prediction from each state of a layer, and the cost of forcing.

// States of a layer are its input, its loops, the wide path, its output; the answer is the place of
// the likeliest next token. A loop is compared with the state before it, other states with the
// input.
const stateOf = (l, s) => states * l + s;
const answerOf = (e, i, l, s) => saidBy(e, i, stateOf(l, s))[0][0];
const flipsIn = (e, i, l) =>
  model.said && answerOf(e, i, l, 0) !== answerOf(e, i, l, states - 1);
function statesShown(row) {
  const last = states - 1;
  if (!row) {
    const outputs = layers.map((n, l) => [`layer ${n}`, stateOf(l, last), stateOf(l, 0)]);
    return [["input", stateOf(0, 0)], ...outputs];
  }
  const l = row - 1, state = (s) => stateOf(l, s);
  const ofLoops = Array.from({ length: model.steps[l] }, (_, k) =>
    [`loop ${k + 1}`, state(k + 1), state(k)]);
  return [["input", state(0)], ...ofLoops, ["wide", state(loops + 1), state(0)],
    ["output", state(last), state(0)]];
}
const cell = ([place, percent], next, flips) => {
  const text = visible(words[place]), word = make("span", { className: "said" }, text);
  const td = make("td", { title: text, className: place === next ? "came" : "" });
  if (flips) td.append(make("b", { className: "flip", ariaLabel: "flips to", role: "img" }, "⇄"));
  td.append(word, make("small", {}, percent ? `${percent} %` : "<1 %"));
  return td;
};
const next = make("p", { className: "note" }), body = make("tbody");
$("early").append(next, make("table", { ariaLabel: "States’ three likeliest tokens" }, body));
function drawEarly(e, i) {
  if (!model.said) return;
  const came = nextOf(e, i), nats = three(number("nextNats", e.first + i));
  next.textContent = came < 0 ? "The sequence ends here."
    : `Actual next token: ${visible(words[came])} (loss ${nats} nats)`;
  body.replaceChildren(...statesShown(state.row).map(([name, at, before]) => {
    const said = saidBy(e, i, at);
    const flips = before !== undefined && said[0][0] !== saidBy(e, i, before)[0][0];
    return make("tr", { className: flips ? "flips" : "" },
      make("th", { scope: "row" }, name), ...said.map((one, rank) =>
        cell(one, came, flips && rank === 0)));
  }));
}

const lines = model.forced.map((name) =>
  make("tr", {}, make("th", { scope: "row" }, name), make("td"), make("td")));
const costs = make("table", {}, make("thead", {}, make("tr", {},
  ...["forced", "this layer", "all layers"].map((name) => make("th", { scope: "col" }, name)))),
make("tbody", {}, ...lines));
$("costs").append(costs);
function drawCosts(e, i) {
  costs.classList.toggle("no-layer", !state.row);
  lines.forEach((line, what) => {
    const value = (row) => signed(costOf(e, i, row, what));
    line.children[1].textContent = state.row ? value(state.row) : "–";
    line.children[2].textContent = value(0);
  });
}
$("early").hidden = !model.said;
$("costs").hidden = !model.forced.length;

// The density of the gates: g_d against g_w of the tokens of all columns.
// A rectangle, drawn by pointer or given in numbers, marks its tokens in the texts.

const BINS = 40;
const svg = (tag, set) => {
  const made = document.createElementNS($("plot").namespaceURI, tag);
  for (const [name, value] of Object.entries(set)) made.setAttribute(name, value);
  return made;
};
const AXES = ["deep", "wide"], inputs = {};
let picked = null;  // by axis, from and to
let spread = { deep: [0, 1], wide: [0, 1] };  // the range of the plot

for (const axis of AXES) {
  inputs[axis] = ["from", "to"].map((end) => make("input", { type: "number", min: 0, max: 1,
    step: 0.01, ariaLabel: `${FIELDS[axis].label} ${end}`, oninput: typed }));
  $("range").append(make("label", {}, make("span", { innerHTML: FIELDS[axis].symbol }),
    inputs[axis][0], "–", inputs[axis][1]));
}
function typed() {
  const some = AXES.some((axis) => inputs[axis].some((input) => input.value !== ""));
  picked = some ? Object.fromEntries(AXES.map((axis) => [axis, inputs[axis].map((input, end) =>
    input.value === "" ? end : Number(input.value))])) : null;
  pickTokens();
}
function pick(box) {
  picked = box;
  for (const axis of AXES) {
    inputs[axis].forEach((input, end) => { input.value = box ? box[axis][end].toFixed(2) : ""; });
  }
  pickTokens();
}
const gatesOf = (c, i) => AXES.map((axis) => FIELDS[axis].value(c.examples[c.at], i, state.row));
const plotted = () => columns.filter((c) => !c.section.hidden);
const scaled = (axis, v) => {
  const [low, high] = spread[axis], part = 100 * (v - low) / (high - low);
  return axis === "deep" ? part : 100 - part;
};
function drawDensity() {
  if (!state.active?.spans) return;
  const gates = plotted().flatMap((c) => c.spans.map((_, i) => gatesOf(c, i)))
    .filter((pair) => !pair.some(Number.isNaN));
  AXES.forEach((axis, n) => {
    const all = gates.map((pair) => pair[n]);
    const low = Math.floor(all.reduce((a, b) => Math.min(a, b), 1) * 20) / 20;
    const high = Math.ceil(all.reduce((a, b) => Math.max(a, b), 0) * 20) / 20;
    spread[axis] = low < high ? [low, high] : [Math.max(0, low - 0.05), low + 0.05];
  });
  const counts = new Map();
  for (const pair of gates) {
    const [x, y] = AXES.map((axis, n) =>
      Math.min(Math.floor(scaled(axis, pair[n]) / 100 * BINS), BINS - 1));
    counts.set(x + BINS * y, 1 + (counts.get(x + BINS * y) ?? 0));
  }
  const most = Math.log1p(Math.max(1, ...counts.values())), size = 100 / BINS;
  $("bins").replaceChildren(...[...counts].map(([bin, n]) => svg("rect", {
    x: size * (bin % BINS), y: size * Math.floor(bin / BINS), width: size, height: size,
    opacity: 0.15 + 0.85 * Math.log1p(n) / most })));
  const [[left, right], [bottom, top]] = AXES.map((axis) => spread[axis]);
  const ends = { left, right, bottom, top };
  for (const [id, v] of Object.entries(ends)) $(id).textContent = +v.toFixed(2);
  pickTokens();
  drawShown();
}
function drawShown() {
  const { shown } = state, pair = shown ? gatesOf(shown.c, shown.i) : [NaN, NaN];
  const known = !pair.some(Number.isNaN), [x, y] = AXES.map((axis, n) => scaled(axis, pair[n]));
  $("dot").setAttribute("d", known ? `M ${x} ${y} h 0` : "");  // a round cap alone
}
function pickTokens() {
  const inside = (pair) => AXES.every((axis, n) =>
    picked[axis][0] <= pair[n] && pair[n] <= picked[axis][1]);
  let marked = 0, all = 0;
  for (const c of columns) {
    const counts = plotted().includes(c);
    c.spans?.forEach((made, i) => {
      const is = picked !== null && inside(gatesOf(c, i));
      made.classList.toggle("picked", is);
      all += counts, marked += counts && is;
    });
  }
  const count = `${marked.toLocaleString("en")} of ${all.toLocaleString("en")} tokens`;
  $("picked").textContent = picked ? `${count} selected` : `${all.toLocaleString("en")} tokens`;
  $("clear").disabled = !picked;
  const box = $("box");
  box.style.display = picked ? "" : "none";
  if (picked) {
    const [x1, x2] = picked.deep.map((v) => scaled("deep", v));
    const [y2, y1] = picked.wide.map((v) => scaled("wide", v));
    const sides = { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1) };
    for (const [name, v] of Object.entries(sides)) box.setAttribute(name, v);
  }
  keepLink();
}

let corner = null;
const gatesAt = (event) => {
  const { left, top, width, height } = $("plot").getBoundingClientRect();
  const part = (v) => Math.min(Math.max(v, 0), 1);
  const value = (axis, v) => spread[axis][0] + part(v) * (spread[axis][1] - spread[axis][0]);
  return { deep: value("deep", (event.clientX - left) / width),
    wide: value("wide", 1 - (event.clientY - top) / height) };
};
$("plot").onpointerdown = (event) => {
  corner = gatesAt(event);
  $("plot").setPointerCapture(event.pointerId);
  event.preventDefault();
};
$("plot").onpointermove = (event) => {
  if (!corner) return;
  const other = gatesAt(event), ends = (axis) => [corner[axis], other[axis]].sort((a, b) => a - b);
  // Hundredths, outwards, as the numbers below show them.
  const outward = ([low, high]) => [Math.floor(low * 100) / 100, Math.ceil(high * 100) / 100];
  pick(Object.fromEntries(AXES.map((axis) => [axis, outward(ends(axis))])));
};
$("plot").onpointerup = $("plot").onpointercancel = () => { corner = null; };
$("clear").onclick = () => pick(null);
