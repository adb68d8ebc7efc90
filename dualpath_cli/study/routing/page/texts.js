// The numbers of the page.

const $ = (id) => document.getElementById(id), root = document.documentElement;
const make = (tag, set = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), set);
  made.append(...inside);
  return made;
};
const letters = atob($("packed").textContent);
const stream = new Blob([Uint8Array.from(letters, (letter) => letter.charCodeAt(0))]).stream();
const data = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).json();
const { layers, reach: widest, tags, examples, model, words } = data;
const rows = layers.length + 1, loops = Math.max(...model.steps);
const states = loops + 3;  // of a layer: its input, each loop, the wide path, its output

const number = (name, at) => data[name][at] ?? NaN;

// `first` is the place of a sequence's first token among all.
let tokensSoFar = 0;
for (const e of examples) {
  e.first = tokensSoFar, tokensSoFar += e.tokens.length;
  e.means = e.means.map((mean) => mean ?? NaN);
}

// The likeliest next tokens of a state: [place in `words`, whole percent] each. A place is that of
// an id: several ids may read alike, as parts of characters do.
const saidBy = (e, token, state) => [0, 1, 2].map((rank) => {
  const at = ((e.first + token) * layers.length * states + state) * 3 + rank;
  return [data.said[at], data.percents[at]];
});
const nextOf = (e, token) => data.next[e.first + token];  // a place, too; -1 at the end
const costOf = (e, token, row, what) =>
  number("costs", ((e.first + token) * rows + row) * model.forced.length + what);

const fixed = (v) => Number.isNaN(v) ? "–" : v.toFixed(3).replace("-", "−");
const three = (v) => Number.isNaN(v) ? "–" : v === Infinity ? "∞" : v === 0 ? "0"
  : v >= 1000 && v < 1e6 ? v.toLocaleString("en") : v.toPrecision(3);
const signed = (v) => Number.isNaN(v) ? "–" : v === 0 ? "0.00"
  : `${v < 0 ? "−" : "+"}${Math.abs(v).toFixed(2)}`;

// Each read-out: its symbol, its value, and a value as text; for colours also its label, the place
// of a value from 0 to 1 (one half is neutral), and the legend's words at 0, one half and 1.
const at = (name) => (e, token, row) => number(name, (e.first + token) * rows + row);
const ofStep = (name) => (e, token, row, k) =>
  number(name, ((e.first + token) * rows + row) * loops + k);
const weight = ofStep("steps"), stepSize = ofStep("stepSizes"), stepCosine = ofStep("stepCosines");
// Of the core's repetitions.
const ofCore = (name) => (e, token, row, r) =>
  number(name, (e.first + token) * model.repetitions + r);
// The experts of a token in a layer, as [number, weight] each; none for the mean of all layers.
const expertsOf = (e, token, row) => {
  if (!row) return [];
  const first = ((e.first + token) * layers.length + row - 1) * model.chosen;
  return Array.from({ length: model.chosen }, (_, c) =>
    [data.experts[first + c], number("expertWeights", first + c)])
    .filter(([n]) => n >= 0).sort((a, b) => b[1] - a[1]);
};
const loadsOf = (e, row) => {  // how many tokens of the sequence took each expert of the layer
  const counts = Array(model.experts[row - 1]).fill(0);
  e.tokens.forEach((_, i) => { for (const [n] of expertsOf(e, i, row)) counts[n]++; });
  return counts;
};
const half = (v) => 0.5 + Math.min(v, 1) / 2;
const reach = () => $("full").checked ? 0.5 : widest;
const FIELDS = {
  share: { symbol: "ρ<sub>d</sub>", value: at("share"), text: fixed, label: "deep share",
    place: (v) => Math.min(Math.max(0.5 + (v - 0.5) / (2 * reach()), 0), 1),
    legend: ["", "½", ""] },
  loops: { symbol: "loops", value: at("loops"), text: three, label: "expected loops",
    place: (v) => half(loops > 1 ? (v - 1) / (loops - 1) : 0), legend: ["1", "", String(loops)] },
  deep: { symbol: "g<sub>d</sub>", value: at("deep"), text: fixed, label: "gate g_d",
    place: half, legend: ["0", "", "1"] },
  wide: { symbol: "g<sub>w</sub>", value: at("wide"), text: fixed, label: "gate g_w",
    place: half, legend: ["0", "", "1"] },
  sizeDeep: { symbol: "‖Δ<sub>d</sub>‖", value: at("sizeDeep"), text: three },
  sizeWide: { symbol: "‖Δ<sub>w</sub>‖", value: at("sizeWide"), text: three },
  cosine: { symbol: "cos", value: at("cosine"), text: fixed, label: "cosine",
    place: (v) => (v + 1) / 2, legend: ["−1", "0", "1"] },
  ...model.chosen && { experts: { symbol: "experts", value: expertsOf,
    text: (list) => list.map(([n, w]) => `${n} (${fixed(w)})`).join(", ") || "–" } },
  ...model.repetitions && { repetitions: { symbol: "repetitions",
    value: (e, token) => number("repetitions", e.first + token), text: three,
    label: "mean repetition", place: (v) => half((v - 1) / (model.repetitions - 1)),
    legend: ["1", "", String(model.repetitions)] } },
  nats: { symbol: "loss, nats", value: (e, token) => number("nats", e.first + token), text: three,
    label: "loss", place: (v) => half(v / 8), legend: ["0 nats", "", "8 or more"] },
};
const read = (name, e, token, row) => FIELDS[name].text(FIELDS[name].value(e, token, row));
const where = (row) => row ? `layer ${layers[row - 1]}`
  : layers.length > 1 ? `mean of ${layers.length} ${model.repetitions ? "places" : "layers"}`
    : "mean of all layers";

// The texts: a column for each source, with coloured tokens to point at.

const state = { row: 0, colour: "share", shown: null, pinned: false, active: null, note: "" };

// Characters without a shape get one; they stay in the text, for copying. A joiner beside a shape
// and a selector after one are left: they are of an emoji, or of a word as Persian has them.
const SHAPE = String.raw`[^\s\p{C}\p{VS}]`;
const JOINER = String.raw`(?<=${SHAPE}\p{VS}?)[\u200c\u200d]|[\u200c\u200d](?=${SHAPE})`;
const SELECTOR = String.raw`(?<=${SHAPE})\p{VS}`;
const LONE = String.raw`(?!${JOINER}|${SELECTOR})[\u200c\u200d\p{VS}]`;
const CONTROL = String.raw`\0-\x1f\x7f-\x9f`;
const FORMAT = String.raw`\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff`;
const HIDDEN = new RegExp(`([${CONTROL}${FORMAT}]|${LONE})`, "gu");
const mark = (c) => c === "\n" ? "↵" : c === "\t" ? "⇥"
  : c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "◌";
const visible = (text) => text.replace(HIDDEN, mark).replaceAll(" ", "␣") || "∅";
const span = (text, i) => {
  const made = make("span", { className: "token", tabIndex: i ? -1 : 0,
    role: "button", ariaPressed: false });
  made.append(...text.split(HIDDEN).map((part, at) => {
    if (text && at % 2 === 0) return part;
    const marked = make("span", { className: "mark" }, part);
    marked.dataset.mark = text ? mark(part) : "∅";
    return marked;
  }));
  made.dataset.i = i;
  return made;
};

const columns = [];
for (const name of new Set(examples.map((e) => e.source))) columns.push(column(name));
function column(name) {
  const all = examples.filter((e) => e.source === name);
  const c = { name, at: 0, place: -1, examples: all };
  c.box = make("input", { type: "checkbox", checked: true,
    onchange: () => reveal(c, c.box.checked) });
  $("names").append(make("label", {}, c.box, name));
  const turn = (by, sign, word) => make("button", { type: "button", textContent: sign,
    ariaLabel: `${word} sequence of ${name}`, onclick: () => open(c, c.at + by) });
  const start = (e) => e.tokens.slice(0, 16).join("").replace(HIDDEN, " ").trim().slice(0, 60);
  c.back = turn(-1, "‹", "previous"), c.on = turn(1, "›", "next");
  c.select = make("select", { ariaLabel: `sequence of ${name}`,
    onchange: () => open(c, c.select.selectedIndex),
  }, ...all.map((e) => make("option", {}, `${e.number}: ${start(e)}`)));
  c.note = make("p", { className: "note" });
  c.text = make("div", { className: "text", dir: "auto", translate: false });
  c.section = make("section", { className: "source", ariaLabel: name },
    make("h2", {}, make("kbd", {}, String(columns.length + 1)), ` ${name}`),
    make("div", { className: "turn" }, c.back, c.select, c.on), c.note, c.text);
  c.section.dataset.source = name;
  $("sources").append(c.section);
  const placeOf = (event) => event.target.closest(".token")?.dataset.i;
  const meet = (event) => { if (placeOf(event) && !state.pinned) show(c, +placeOf(event)); };
  c.section.addEventListener("focusin", () => activate(c));
  c.section.addEventListener("pointerdown", () => activate(c));
  c.text.addEventListener("focusin", meet);
  c.text.addEventListener("mouseover", (event) => { if (moved(event)) meet(event); });
  c.text.addEventListener("click", (event) => { if (placeOf(event)) pin(c, +placeOf(event)); });
  return c;
}
function reveal(c, visible) {
  c.box.checked = visible;
  c.section.hidden = !visible;
  if (state.active?.section.hidden) activate(columns.find((other) => !other.section.hidden));
  if (state.active) drawDensity();
}
// A token that scrolls under a resting pointer is not pointed at.
let pointer = "";
function moved(event) { return pointer !== (pointer = `${event.clientX} ${event.clientY}`); }
document.addEventListener("mousemove", moved);

function open(c, to) {
  if (!c.examples[to]) return;
  if (state.shown?.c === c) show(null);
  Object.assign(c, { at: to, place: -1 });
  c.select.selectedIndex = to, c.back.disabled = to === 0, c.on.disabled = !c.examples[to + 1];
  c.spans = c.examples[to].tokens.map(span);
  c.text.replaceChildren(...c.spans);
  paint(c);
  drawDensity();
  keepLink();
}
function paint(c) {
  const e = c.examples[c.at], { value, place } = FIELDS[state.colour];
  c.spans.forEach((made, i) => {
    const v = place(value(e, i, state.row));
    made.classList.toggle("none", Number.isNaN(v));
    made.style.setProperty("--v", Number.isNaN(v) ? 0.5 : v);
  });
  const count = e.tokens.length.toLocaleString("en"), all = e.length.toLocaleString("en");
  const length = e.tokens.length < e.length ? `first ${count} of ${all} tokens`
    : all === "1" ? "1 token" : `${all} tokens`;
  const mean = `mean deep share ${fixed(e.means[state.row])}`;
  c.note.replaceChildren(make("span", {}, mean), make("span", {}, length));
}
function show(c, i) {
  const before = state.shown;
  before?.c.spans[before.i].classList.remove("shown", "pinned");
  if (before) before.c.spans[before.i].ariaPressed = false;
  if (c) {
    c.spans[Math.max(c.place, 0)].tabIndex = -1, c.spans[i].tabIndex = 0;
    c.place = i;
  }
  state.shown = c && { c, i };
  state.pinned &&= Boolean(c);
  state.note = "";
  draw();
  keepLink();
}
function pin(c, i) {
  const again = state.pinned && state.shown.c === c && state.shown.i === i;
  state.pinned = !again;
  show(c, i);
  c.spans[i].scrollIntoView({ block: "nearest" });  // above the panel of a narrow window
}
function activate(c) {
  if (!c || c.section.hidden) return;
  state.active = c;
  for (const other of columns) other.section.classList.toggle("active", other === c);
  drawDensity();
  keepLink();
}
function step(by) {
  const c = state.active;
  if (c.section.hidden) return;
  goTo(c, Math.min(Math.max(c.place + by, 0), c.spans.length - 1));
}
function goTo(c, i) {
  show(c, i);
  c.spans[i].focus({ preventScroll: true });
  c.spans[i].scrollIntoView({ block: "nearest" });
}
function setRow(to) {
  state.row = Math.min(Math.max(to, 0), layers.length);
  $("layer").value = state.row, $("layer").ariaValueText = $("layer-name").value = where(state.row);
  columns.forEach(paint);
  draw();
  drawDensity();
  keepLink();
}
function setColour(name) {
  $("colour").value = root.dataset.colour = state.colour = name;
  const [low, ramp, high] = $("legend").children;
  [low.textContent, ramp.firstChild.textContent, high.textContent] = FIELDS[name].legend;
  $("full").parentElement.hidden = name !== "share";
  if (name === "share") {
    low.textContent = `wide ${+(0.5 - reach()).toFixed(2)}`;
    high.textContent = `${+(0.5 + reach()).toFixed(2)} deep`;
  }
  columns.forEach(paint);
  keepLink();
}
