// The address links to the view: #gsm8k:3/layer=2/token=17, then colour and selection if chosen.

let kept = 0;
// Browsers allow few changes of the address a second.
function keepLink() {
  clearTimeout(kept);
  kept = setTimeout(writeLink, 300);
}
// A layer, such as 5, or 5,r2 in a core.
const inLink = (layer) => `${layer}`.replaceAll(" ", "");
function writeLink() {
  clearTimeout(kept);
  const { row, shown, colour, active } = state;
  if (!active) return;
  const c = shown?.c ?? active, e = c.examples[c.at];
  const parts = [`${encodeURIComponent(c.name)}:${e.number}`,
    `layer=${row ? inLink(layers[row - 1]) : "mean"}`];
  if (shown) parts.push(`token=${shown.i}`);
  if (colour !== "share") parts.push(`colour=${colour}`);
  if (picked) parts.push(`gates=${AXES.flatMap((axis) => picked[axis]).join(",")}`);
  try { history.replaceState(null, "", `#${parts.join("/")}`); } catch { /* the link is a help */ }
}
// Opens the view that a link names, and nothing beside it; returns the part that the page does not
// have.
function follow(hash) {
  const [place, ...rest] = hash.replace(/^#/, "").split("/");
  const given = Object.fromEntries(rest.map((part) => part.split("=")));
  const colon = place.lastIndexOf(":"), number = place.slice(colon + 1);
  let name = place.slice(0, colon);
  try { name = decodeURIComponent(name); } catch { /* no such source, then */ }
  const c = columns.find((one) => one.name === name);
  const to = c?.examples.findIndex((e) => `${e.number}` === number);
  if (!c || to < 0) return "sequence";
  reveal(c, true);
  activate(c);
  if (to !== c.at) open(c, to);
  const row = layers.findIndex((layer) => inLink(layer) === given.layer) + 1;
  setRow(row);
  setColour(FIELDS[given.colour]?.label ? given.colour : "share");
  const ends = (given.gates ?? "").split(",").map(Number);
  const areGates = ends.length === 4 && ends.every((end) => end >= 0 && end <= 1);
  pick(areGates ? { deep: ends.slice(0, 2), wide: ends.slice(2) } : null);
  show(null);
  if (!row && given.layer && given.layer !== "mean") return "layer";
  if (given.token === undefined) return "";
  if (!/^\d+$/.test(given.token) || !c.spans[+given.token]) return "token";
  state.pinned = true;
  goTo(c, +given.token);
  return "";
}
function followAddress() {
  if (location.hash.length < 2) return;
  const missing = follow(location.hash);
  if (!missing) return;
  show(null);
  state.note = `The link names a ${missing} that this page does not have.`;
  draw();
}

// Keys, and the start.

const KEYS = {
  ArrowLeft: () => setRow(state.row - 1), ArrowRight: () => setRow(state.row + 1),
  m: () => setRow(0), "?": () => $("keys").showModal(),
  j: () => step(1), k: () => step(-1),
  n: () => open(state.active, state.active.at + 1),
  p: () => open(state.active, state.active.at - 1),
  Escape: () => { state.pinned = false; pick(null); draw(); },
};
document.addEventListener("keydown", (event) => {
  const { key, target } = event, number = "123456789".indexOf(key);
  if (event.ctrlKey || event.altKey || event.metaKey || $("keys").open) return;
  const own = target.closest("select, input[type=number]") && key !== "Escape";
  if (own || target.id === "layer" && key.startsWith("Arrow")) return;
  const token = target.closest(".token"), press = token && (key === "Enter" || key === " ");
  const act = press ? () => token.click()
    : number >= 0 ? () => activate(columns[number]) : KEYS[key];
  if (!act) return;
  event.preventDefault();
  act();
});

for (const [name, { label }] of Object.entries(FIELDS)) {
  if (label) $("colour").append(make("option", { value: name }, label));
}
$("layer").max = layers.length;
$("layer").oninput = () => setRow(+$("layer").value);
$("colour").onchange = () => setColour($("colour").value);
$("full").onchange = () => setColour(state.colour);
$("help").onclick = KEYS["?"];
new ResizeObserver(([bar]) => root.style.setProperty("--bar", `${bar.target.offsetHeight}px`))
  .observe(document.querySelector(".bar"));
for (const c of columns) open(c, 0);
activate(columns[0]), setColour("share"), setRow(0);
followAddress();
addEventListener("hashchange", followAddress);
