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

for (const [name, [, , , label]] of Object.entries(FIELDS)) {
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
