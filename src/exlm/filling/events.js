"use strict";
// Shows what is under the mouse or has the focus

const tip = byId("tip");

function showTip(x, y, fill) { // beside the point, inside the window
  tip.replaceChildren();
  fill(tip);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
}

function describeState(u, target) {
  const s = states[u];
  make("strong", {}, target, s.name);
  make("div", { class: "soft" }, target, `weight ${number(s.weight)}`);
  const table = make("table", { class: s.colour }, target), most = s.words.length ? s.words[0][1] : 1;
  for (const [token, p] of s.words) {
    const row = make("tr", {}, table);
    make("td", {}, row, token);
    make("td", {}, row, number(p));
    make("i", {}, make("td", { class: "length" }, row)).style.width = `${(100 * p) / most}%`;
  }
}

function describeLink(u, v, target) {
  make("strong", {}, target, `${states[u].tokens_label} → ${states[v].tokens_label}`);
  const p = linkAt.get(u * N + v)?.[2];
  make("div", {}, target, p === undefined ? "no link" : `probability ${number(p)}`);
  make("div", { class: "soft" }, target, `${states[u].name} → ${states[v].name}`);
}

function near(chosen, ends) {
  dag.classList.add("hovering");
  const touched = new Set(ends);
  const shown = [...drawn.values()].filter(e => e.style.display !== "none" && chosen(+e.dataset.u, +e.dataset.v));
  for (const e of shown) {
    e.classList.add("near");
    touched.add(+e.dataset.u).add(+e.dataset.v);
  }
  for (const e of shown.sort((a, b) => b.dataset.p - a.dataset.p).slice(0, LABELS)) {
    const [x, y] = along(linkAt.get(e.dataset.u * N + +e.dataset.v)[3], ends.length === 1 && +e.dataset.v === ends[0] ? 0.3 : 0.7);
    make("svg:text", { class: "value", x, y: y + 4 }, valueLayer, (+e.dataset.p).toFixed(2));
  }
  for (const u of touched) nodeLayer.children[u].classList.add("near");
}

function leave() {
  tip.hidden = true;
  dag.classList.remove("hovering");
  for (const e of dag.querySelectorAll(".near")) e.classList.remove("near");
  valueLayer.replaceChildren();
  crossLayer.replaceChildren();
}

function onState(u) { // describes the state below the drawing, where the text hides no link
  near((a, b) => a === u || b === u, [u]);
  const x = nodeLayer.children[u].getBoundingClientRect().left, y = dag.getBoundingClientRect().bottom;
  showTip(x - 16, Math.min(y, innerHeight - 30) - 18, target => describeState(u, target));
}

function onDag(event) {
  leave();
  const state = event.target.closest(".state"), line = event.target.closest(".link");
  if (state) onState(+state.dataset.state);
  else if (line) onLink(+line.dataset.u, +line.dataset.v, event);
}

function onLink(u, v, event) {
  near((a, b) => a === u && b === v, [u, v]);
  showTip(event.clientX, event.clientY, target => describeLink(u, v, target));
}

function onMap(event) {
  leave();
  const box = map.getBoundingClientRect();
  const u = Math.floor((event.clientY - box.top - heat.top) / heat.cell);
  const v = Math.floor((event.clientX - box.left - heat.left) / heat.cell) + 1;
  if (u < 0 || v < 1 || u >= N - 1 || v >= N) return;
  make("svg:rect", { class: "cross", ...cellAt(u, 1), width: heat.side }, crossLayer);
  make("svg:rect", { class: "cross", ...cellAt(0, v), height: heat.side }, crossLayer);
  onLink(u, v, event);
}

dag.addEventListener("pointermove", onDag);
map.addEventListener("pointermove", onMap);
for (const view of [dag, map]) view.addEventListener("pointerleave", leave);
dag.addEventListener("focusin", event => {
  leave();
  onState(+event.target.dataset.state);
});
dag.addEventListener("focusout", leave);

// The threshold. The slider's scale is quadratic, because most probabilities are small

let path = null; // the path of the chosen filling
let least = data.threshold ?? 0.05;

function refresh() {
  const onPath = new Set(path ? path.slice(1).map((v, i) => path[i] * N + v) : []);
  let count = 0;
  for (const [u, v, p] of links) {
    const shown = p >= least, chosen = onPath.has(u * N + v);
    count += shown;
    if (!shown && !chosen && !drawn.has(u * N + v)) continue;
    const line = drawnLink(u, v);
    line.style.display = shown || chosen ? "" : "none";
    line.classList.toggle("on-path", chosen);
    line.style.strokeWidth = chosen ? Math.max(2.5, line.getAttribute("stroke-width")) : "";
    if (chosen) linkLayer.append(line); // above the others
  }
  byId("level").textContent = number(least);
  byId("threshold").setAttribute("aria-valuetext", number(least));
  byId("count").textContent = `${count} of ${links.length} links`;
}

byId("threshold").value = Math.sqrt(least);
byId("threshold").addEventListener("input", event => {
  least = event.target.valueAsNumber ** 2;
  refresh();
});

// Fillings

function picture(svg, text, parent) {
  make("img", { src: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg), alt: text }, parent);
}

function choose(index) {
  const entry = fillings[index];
  path = entry ? entry.path : null;
  [...byId("fillings").children].forEach((item, i) => item.firstChild.setAttribute("aria-pressed", i === index));
  [...nodeLayer.children].forEach((item, u) => item.classList.toggle("on-path", !!path && path.includes(u)));
  pathLayer.replaceChildren();
  if (path && links.length) path.slice(1).forEach((v, i) => make("svg:rect", { class: "cell-path", ...cellAt(path[i], v) }, pathLayer));
  showText(entry ? entry.segments : data.segments, byId("filled"), !entry);
  byId("chance").textContent = entry ? `with probability ${number(entry.probability)}` : "";
  byId("molecule").replaceChildren();
  if (entry && entry.drawing) picture(entry.drawing, entry.text, byId("molecule"));
  else if (entry && data.molecules) byId("molecule").textContent = `No molecule: ${entry.problem || "it has no atoms"}`;
  refresh();
}

function listed(entry, index) {
  const button = make("button", { type: "button", "aria-pressed": "false" }, make("li", {}, byId("fillings")));
  make("span", { class: "rank" }, button, index + 1);
  const inserted = make("span", { class: "inserted" }, button);
  for (const [text, mask] of entry.segments) if (mask !== null) chip(mask, text.trim() || "∅", inserted);
  make("span", { class: "chance" }, button, number(entry.probability));
  if (entry.drawing) picture(entry.drawing, entry.text, make("span", { class: "drawn" }, button));
  else if (data.molecules) make("span", { class: "invalid" }, button, "no molecule");
  button.addEventListener("click", () => choose(button.getAttribute("aria-pressed") === "true" ? -1 : index));
}

function about() {
  const noLinks = links.length ? "" : ", no links: masks are independent";
  byId("about").textContent = `${data.model || "model"} · ${data.objective}, k = ${data.k}${noLinks} · ${N} states, ${links.length} links`;
  const paths = data.free ? "all paths of the DAG" : "paths with one state in each mask";
  byId("hint").textContent = `Summed over ${paths}. Click one to see its most probable path; again to clear.`
    + (data.exact === false ? " More probable ones may have been missed." : "")
    + (data.warning ? ` Warning: ${data.warning}.` : "");
}

document.body.classList.toggle("smiles", data.molecules);
byId("molecule").hidden = !data.molecules;
about();
showText(data.segments, byId("input"), true);
fillings.forEach(listed);
document.addEventListener("keydown", event => { if (event.key === "Escape") leave(); });
choose(0);
