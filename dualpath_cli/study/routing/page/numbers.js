// The numbers that page.py wrote.

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

// The likeliest next tokens of a state: [text, whole percent] each.
const saidBy = (e, token, state) => [0, 1, 2].map((rank) => {
  const at = ((e.first + token) * layers.length * states + state) * 3 + rank;
  return [words[data.said[at]], data.percents[at]];
});
const nextOf = (e, token) => words[data.next[e.first + token]] ?? null;
const costOf = (e, token, row, what) =>
  number("costs", ((e.first + token) * rows + row) * model.forced.length + what);

const fixed = (v) => Number.isNaN(v) ? "–" : v.toFixed(3).replace("-", "−");
const three = (v) => Number.isNaN(v) ? "–" : v === Infinity ? "∞" : v === 0 ? "0"
  : v >= 1000 && v < 1e6 ? v.toLocaleString("en") : v.toPrecision(3);
const signed = (v) => Number.isNaN(v) ? "–" : v === 0 ? "0.00"
  : `${v < 0 ? "−" : "+"}${Math.abs(v).toFixed(2)}`;

// Each read-out: its symbol, how it is read and written, and for colours its name, place from 0
// to 1 (one half is neutral) and the labels of the legend.
const at = (name) => (e, token, row) => number(name, (e.first + token) * rows + row);
const ofStep = (name) => (e, token, row, k) =>
  number(name, ((e.first + token) * rows + row) * loops + k);
const weight = ofStep("steps"), stepSize = ofStep("stepSizes"), stepCosine = ofStep("stepCosines");
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
  share: ["ρ<sub>d</sub>", at("share"), fixed, "deep share",
    (v) => Math.min(Math.max(0.5 + (v - 0.5) / (2 * reach()), 0), 1), "", "½", ""],
  loops: ["loops", at("loops"), three, "expected loops",
    (v) => half(loops > 1 ? (v - 1) / (loops - 1) : 0), "1", "", String(loops)],
  deep: ["g<sub>d</sub>", at("deep"), fixed, "gate g_d", half, "0", "", "1"],
  wide: ["g<sub>w</sub>", at("wide"), fixed, "gate g_w", half, "0", "", "1"],
  sizeDeep: ["‖Δ<sub>d</sub>‖", at("sizeDeep"), three],
  sizeWide: ["‖Δ<sub>w</sub>‖", at("sizeWide"), three],
  cosine: ["cos", at("cosine"), fixed, "cosine",
    (v) => (v + 1) / 2, "−1", "0", "1"],
  ...model.chosen && { experts: ["experts", expertsOf,
    (list) => list.map(([n, w]) => `${n} (${fixed(w)})`).join(", ") || "–"] },
  nats: ["loss, nats", (e, token) => number("nats", e.first + token), three, "loss",
    (v) => half(v / 8), "0 nats", "", "8 or more"],
};
const read = (name, e, token, row) => FIELDS[name][2](FIELDS[name][1](e, token, row));
const where = (row) => row ? `layer ${layers[row - 1]}`
  : layers.length > 1 ? `mean of ${layers.length} layers` : "mean of all layers";
