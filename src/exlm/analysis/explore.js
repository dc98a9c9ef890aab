"use strict";
// Draws the case of `exlm explore`. Texts and words reach the page as text nodes and attributes only, never as markup.

const data = JSON.parse(document.getElementById("case").textContent);
const { states, edges, fillings } = data;
const N = states.length;
const byId = id => document.getElementById(id);
const matrix = new Map(edges.map(([u, v, p]) => [u * N + v, p]));
const dense = Math.max(...countBy(states, s => s.mask).values()) > 4;
const NODE = { width: 104, height: dense ? 30 : 40, pitch: data.masks > 3 ? 158 : 184, row: dense ? 40 : 58 };
const LABELS = 8; // values on the edges of one state; more would cover each other
const SVG = "http://www.w3.org/2000/svg";

function countBy(items, key) {
  const counts = new Map();
  for (const item of items) counts.set(key(item), (counts.get(key(item)) || 0) + 1);
  return counts;
}

function make(tag, attributes = {}, parent = null, text = null) {
  const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const isWord = s => s.words.length > 0;
const colour = s => s.mask < 0 || s.mask >= data.masks ? "end" : s.mask % 2 ? "odd" : "even";
const end = s => s.mask < 0 ? "[BOS]" : "[EOS]";
const cut = (word, most) => [...word].length > most ? [...word].slice(0, most - 1).join("") + "…" : word;
const label = (s, count = 1) => isWord(s) ? s.words.slice(0, count).map(w => cut(w[0], 11)).join(", ") : end(s);
const number = p => p >= 0.0995 ? p.toFixed(3) : p === 0 ? "0" : p >= 1e-4 ? p.toPrecision(2) : p.toExponential(1);

function name(u) {
  const s = states[u], first = states.findIndex(other => other.mask === s.mask);
  const place = states.filter(other => other.mask === s.mask).length > 1 ? `, state ${u - first + 1}` : "";
  return (colour(s) === "end" ? end(s) : `mask ${s.mask + 1}`) + place;
}

// ---- texts

function chip(mask, text, parent) {
  const element = make("span", { class: `mask ${mask % 2 ? "odd" : "even"}` }, parent);
  make("sup", {}, element, mask + 1);
  element.append(text);
}

function showText(pieces, place, asMask) {
  place.replaceChildren();
  for (const [text, mask] of pieces) {
    if (mask === null) place.append(text);
    else {
      if (/^\s/.test(text)) place.append(" ");
      chip(mask, asMask ? "[MASK]" : text.trim() || "∅", place);
    }
  }
}

// ---- the DAG

const columns = countBy(states, s => s.mask);
const rows = Math.max(...columns.values());
const seen = new Map();
const places = states.map(s => {
  const row = seen.get(s.mask) || 0, count = columns.get(s.mask);
  seen.set(s.mask, row + 1);
  return { x: 66 + NODE.pitch * (s.mask + 1), y: 44 + NODE.row * (row + (rows - count) / 2) + NODE.row / 2 };
});
const size = { width: 132 + NODE.pitch * (data.masks + 1), height: 88 + NODE.row * rows };

function curve(u, v) {
  const a = places[u], b = places[v], half = NODE.width / 2;
  if (states[u].mask === states[v].mask) { // past the other states of its mask, on the right
    const bulge = 10 + 11 * (v - u);
    return [a.x + half, a.y, a.x + half + bulge, a.y, a.x + half + bulge, b.y, b.x + half, b.y];
  }
  const skipped = states[v].mask - states[u].mask - 1, middle = size.height / 2;
  const side = (a.y + b.y) / 2 <= middle ? -1 : 1; // around the masks left out
  const lift = skipped ? side * (NODE.row * 0.9 + 8 * Math.min(skipped, 4)) : 0, reach = (b.x - a.x - 2 * half) * 0.45;
  return [a.x + half, a.y, a.x + half + reach, a.y + lift, b.x - half - reach, b.y + lift, b.x - half, b.y];
}

const along = (c, t) => [0, 1].map(i =>
  (1 - t) ** 3 * c[i] + 3 * t * (1 - t) ** 2 * c[i + 2] + 3 * t * t * (1 - t) * c[i + 4] + t ** 3 * c[i + 6]);

const dag = make("svg:svg", { width: size.width, height: size.height, role: "group", "aria-label": "DAG of the states" });
const edgeLayer = make("svg:g", {}, dag), nodeLayer = make("svg:g", {}, dag), valueLayer = make("svg:g", {}, dag);
const drawn = new Map(); // edges are made when they are first shown

function edge(u, v) {
  const key = u * N + v, p = matrix.get(key);
  if (p === undefined) return null;
  if (!drawn.has(key)) {
    const c = curve(u, v);
    drawn.set(key, make("svg:path", {
      class: `edge ${colour(states[u])}`, "data-u": u, "data-v": v, "data-p": p,
      d: `M${c[0]},${c[1]}C${c.slice(2).join(",")}`, "stroke-width": 0.7 + 6 * p, "stroke-opacity": 0.18 + 0.75 * p,
    }, edgeLayer));
  }
  return drawn.get(key);
}

function node(u) {
  const s = states[u], { x, y } = places[u], { width, height } = NODE;
  const top = s.words.slice(0, 3).map(([w, p]) => `${w} ${number(p)}`).join(", ");
  const group = make("svg:g", {
    class: `state ${colour(s)}`, "data-state": u, tabindex: 0, role: "img",
    "aria-label": `${name(u)}: ${top || label(s)}; weight ${number(s.weight)}`,
  }, nodeLayer);
  make("svg:rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 8 }, group);
  make("svg:text", { x, y: y + (dense || !isWord(s) ? 3 : -1) }, group, label(s));
  if (!dense && isWord(s)) make("svg:text", { class: "small", x, y: y + 12 }, group, number(s.words[0][1]));
  const full = width - 16;
  make("svg:rect", { class: "weight", x: x - full / 2, y: y + height / 2 - 5, width: full * Math.min(1, s.weight), height: 3, rx: 1.5 }, group);
}

states.forEach((s, u) => node(u));
for (let m = 0; m < data.masks; m++) {
  const heading = make("svg:text", { class: `axis ${m % 2 ? "odd" : "even"}`, x: 66 + NODE.pitch * (m + 1), y: 22, "text-anchor": "middle" }, dag);
  heading.textContent = `mask ${m + 1}`;
}
byId("dag").append(dag);

// ---- the heat map: EOS has no row, BOS no column

const heat = { cell: Math.max(15, Math.min(44, Math.floor(560 / (N - 1)))) };
heat.words = heat.cell >= 26 ? 3 : 2;
heat.left = 30 + 6.1 * Math.max(...states.map(s => [...label(s, heat.words)].length));
heat.side = heat.cell * (N - 1);
heat.top = 20 + 0.82 * (heat.left - 10);
const map = make("svg:svg", { width: heat.left + heat.side + 0.6 * heat.top, height: heat.top + heat.side + 10, role: "img", "aria-label": "transition matrix" });
const cellLayer = make("svg:g", {}, map), crossLayer = make("svg:g", {}, map), pathLayer = make("svg:g", {}, map);
const cellAt = (u, v) => ({ x: heat.left + heat.cell * (v - 1), y: heat.top + heat.cell * u, width: heat.cell, height: heat.cell });

function cell(u, v, p) {
  if (p < 0.002) return; // invisible; its value is told under the mouse all the same
  const box = cellAt(u, v);
  make("svg:rect", { class: "cell", ...box, "fill-opacity": p ** 0.7 }, cellLayer);
  if (heat.cell < 30 || p < 0.005) return;
  const strong = p > 0.45 ? " strong" : "";
  make("svg:text", { class: `cell-text${strong}`, x: box.x + heat.cell / 2, y: box.y + heat.cell / 2 + 4 }, cellLayer, p.toFixed(2));
}

function axes() {
  for (let u = 0; u < N - 1; u++) {
    const y = heat.top + heat.cell * (u + 0.5) + 4;
    make("svg:text", { class: `axis ${colour(states[u])}`, x: heat.left - 8, y, "text-anchor": "end" }, map, label(states[u], heat.words));
  }
  for (let v = 1; v < N; v++) {
    const x = heat.left + heat.cell * (v - 0.5), y = heat.top - 8;
    make("svg:text", { class: `axis ${colour(states[v])}`, x, y, transform: `rotate(-52 ${x} ${y})` }, map, label(states[v], heat.words));
  }
  for (let u = 0; u < N - 1; u++) for (let v = u + 1; v < N; v++) if (N < 40) make("svg:rect", { class: "grid", ...cellAt(u, v) }, cellLayer);
  make("svg:rect", { class: "back", x: heat.left, y: heat.top, width: heat.side, height: heat.side }, map);
}

if (edges.length) {
  for (const [u, v, p] of edges) cell(u, v, p);
  axes();
  byId("heat").append(map);
} else {
  byId("matrix").hidden = byId("controls").hidden = true;
}

// ---- what is under the mouse or has the focus

const tip = byId("tip");

function showTip(x, y, fill) {
  tip.replaceChildren();
  fill(tip);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
}

function describeState(u, place) {
  const s = states[u];
  make("strong", {}, place, name(u));
  make("div", { class: "soft" }, place, `weight ${number(s.weight)}`);
  const table = make("table", { class: colour(s) }, place), most = s.words.length ? s.words[0][1] : 1;
  for (const [word, p] of s.words) {
    const row = make("tr", {}, table);
    make("td", {}, row, word);
    make("td", {}, row, number(p));
    make("i", {}, make("td", { class: "length" }, row)).style.width = `${(100 * p) / most}%`;
  }
}

function describeEdge(u, v, place) {
  make("strong", {}, place, `${label(states[u], 3)} → ${label(states[v], 3)}`);
  const p = matrix.get(u * N + v);
  make("div", {}, place, p === undefined ? "no edge" : `probability ${number(p)}`);
  make("div", { class: "soft" }, place, `${name(u)} → ${name(v)}`);
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
    const [x, y] = along(curve(+e.dataset.u, +e.dataset.v), ends.length === 1 && +e.dataset.v === ends[0] ? 0.3 : 0.7);
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

function onState(u, x, y) {
  near((a, b) => a === u || b === u, [u]);
  showTip(x, y, place => describeState(u, place));
}

function onDag(event) {
  leave();
  const state = event.target.closest(".state"), line = event.target.closest(".edge");
  if (state) onState(+state.dataset.state, event.clientX, event.clientY);
  else if (line) onEdge(+line.dataset.u, +line.dataset.v, event);
}

function onEdge(u, v, event) {
  near((a, b) => a === u && b === v, [u, v]);
  showTip(event.clientX, event.clientY, place => describeEdge(u, v, place));
}

function onMap(event) {
  leave();
  const box = map.getBoundingClientRect();
  const u = Math.floor((event.clientY - box.top - heat.top) / heat.cell);
  const v = Math.floor((event.clientX - box.left - heat.left) / heat.cell) + 1;
  if (u < 0 || v < 1 || u >= N - 1 || v >= N) return;
  make("svg:rect", { class: "cross", ...cellAt(u, 1), width: heat.side }, crossLayer);
  make("svg:rect", { class: "cross", ...cellAt(0, v), height: heat.side }, crossLayer);
  onEdge(u, v, event);
}

dag.addEventListener("pointermove", onDag);
map.addEventListener("pointermove", onMap);
for (const view of [dag, map]) view.addEventListener("pointerleave", leave);
dag.addEventListener("focusin", event => {
  const box = event.target.getBoundingClientRect();
  leave();
  onState(+event.target.dataset.state, box.right - 16, box.bottom - 18);
});
dag.addEventListener("focusout", leave);

// ---- the threshold; its scale is quadratic, most probabilities being small

let path = null; // of the chosen filling

function refresh() {
  const least = byId("threshold").valueAsNumber ** 2;
  const onPath = new Set(path ? path.slice(1).map((v, i) => path[i] * N + v) : []);
  let count = 0;
  for (const [u, v, p] of edges) {
    const shown = p >= least, chosen = onPath.has(u * N + v);
    count += shown;
    if (!shown && !chosen && !drawn.has(u * N + v)) continue;
    const line = edge(u, v);
    line.style.display = shown || chosen ? "" : "none";
    line.classList.toggle("on-path", chosen);
    if (chosen) edgeLayer.append(line); // above the others
  }
  byId("level").textContent = number(least);
  byId("threshold").setAttribute("aria-valuetext", number(least));
  byId("count").textContent = `${count} of ${edges.length} edges`;
}

byId("threshold").value = Math.round(100 * Math.sqrt(data.threshold)) / 100;
byId("threshold").addEventListener("input", refresh);

// ---- fillings

function picture(svg, text, parent) {
  make("img", { src: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg), alt: text }, parent);
}

function choose(index) {
  const entry = fillings[index];
  path = entry ? entry.path : null;
  [...byId("fillings").children].forEach((item, i) => item.firstChild.setAttribute("aria-pressed", i === index));
  [...nodeLayer.children].forEach((item, u) => item.classList.toggle("on-path", !!path && path.includes(u)));
  pathLayer.replaceChildren();
  if (path && edges.length) path.slice(1).forEach((v, i) => make("svg:rect", { class: "cell-path", ...cellAt(path[i], v) }, pathLayer));
  showText(entry ? entry.pieces : data.pieces, byId("filled"), !entry);
  byId("chance").textContent = entry ? `with probability ${number(entry.probability)}` : "";
  byId("molecule").replaceChildren();
  if (entry && entry.drawing) picture(entry.drawing, entry.text, byId("molecule"));
  else if (entry && data.molecules) byId("molecule").textContent = `No molecule: ${entry.problem || "it has no atoms"}`;
  refresh();
}

function listed(entry, index) {
  const button = make("button", { type: "button", "aria-pressed": "false" }, make("li", {}, byId("fillings")));
  make("span", { class: "rank" }, button, index + 1);
  const words = make("span", { class: "words" }, button);
  entry.words.forEach((part, mask) => chip(mask, part.join(" ") || "∅", words));
  make("span", { class: "chance" }, button, number(entry.probability));
  if (entry.drawing) picture(entry.drawing, entry.text, make("span", { class: "drawn" }, button));
  else if (data.molecules) make("span", { class: "invalid" }, button, "no molecule");
  button.addEventListener("click", () => choose(button.getAttribute("aria-pressed") === "true" ? -1 : index));
}

function facts() {
  const transitions = edges.length ? "" : ", no transitions: masks are independent";
  byId("facts").textContent = `${data.model || "model"} · ${data.objective}, k = ${data.k}${transitions} · ${N} states, ${edges.length} edges`;
  const paths = data.free ? "all paths of the DAG" : "paths with one state in each mask";
  byId("hint").textContent = `Summed over ${paths}. Click one to see its most probable path; again to clear.`
    + (data.exact === false ? " More probable ones may have been missed." : "");
}

document.body.classList.toggle("smiles", data.molecules);
byId("molecule").hidden = !data.molecules;
facts();
showText(data.pieces, byId("input"), true);
fillings.forEach(listed);
document.addEventListener("keydown", event => { if (event.key === "Escape") leave(); });
choose(0);
