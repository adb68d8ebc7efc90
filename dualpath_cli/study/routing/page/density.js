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
    step: 0.01, ariaLabel: `${FIELDS[axis][3]} ${end}`, oninput: typed }));
  $("range").append(make("label", {}, make("span", { innerHTML: FIELDS[axis][0] }),
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
const gatesOf = (c, i) => AXES.map((axis) => FIELDS[axis][1](c.examples[c.at], i, state.row));
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
