"use strict";
// Draws the case of `exlm explore`. Texts and words reach the page as text nodes and attributes only, never as markup.

const data = JSON.parse(document.getElementById("case").textContent);
const { states, edges, fillings } = data;
const N = states.length;
const byId = id => document.getElementById(id);
const matrix = new Map(edges.map(([u, v, p]) => [u * N + v, p]));
const dense = Math.max(...countBy(states, s => s.mask).values()) > 4;
const NODE = { width: 100, end: 60, height: dense ? 30 : 40, pitch: 146, row: dense ? 40 : 58 };
const MARGIN = 34; // from the edge of the drawing to the middle of BOS
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
const widthOf = s => colour(s) === "end" ? NODE.end : NODE.width;
const end = s => s.mask < 0 ? "[BOS]" : "[EOS]";
const cut = (word, most) => [...word].length > most ? [...word].slice(0, most - 1).join("") + "…" : word;
const label = (s, count = 1) => isWord(s) ? s.words.slice(0, count).map(w => cut(w[0], 11)).join(", ") : end(s);
const number = p => p >= 0.0995 ? p.toFixed(3) : p === 0 ? "0" : p >= 1e-4 ? p.toPrecision(2) : p.toExponential(1);

function name(u) {
  const s = states[u], first = states.findIndex(other => other.mask === s.mask);
  const place = states.filter(other => other.mask === s.mask).length > 1 ? `, state ${u - first + 1}` : "";
  return (colour(s) === "end" ? end(s) : `mask ${s.mask + 1}`) + place;
}

// Texts

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
  const first = place.querySelector(".mask"); // of a long text, the part that matters
  if (first) place.scrollTop = first.offsetTop - place.offsetTop - 60;
}

// The DAG

const columns = countBy(states, s => s.mask);
const rows = Math.max(...columns.values());
const seen = new Map();
const places = states.map(s => {
  const row = seen.get(s.mask) || 0, count = columns.get(s.mask);
  seen.set(s.mask, row + 1);
  return { x: MARGIN + NODE.pitch * (s.mask + 1), y: 34 + NODE.row * (row + (rows - count) / 2) + NODE.row / 2 };
});
const size = { width: 2 * MARGIN + NODE.pitch * (data.masks + 1), height: 68 + NODE.row * rows };

function curve(u, v) {
  const a = places[u], b = places[v], start = a.x + widthOf(states[u]) / 2, side = widthOf(states[v]) / 2;
  if (states[u].mask === states[v].mask) { // past the other states of its mask, on the right
    const bulge = 10 + 9 * Math.min(v - u, 4);
    return [start, a.y, start + bulge, a.y, start + bulge, b.y, b.x + side, b.y];
  }
  const skipped = states[v].mask - states[u].mask - 1, away = (a.y + b.y) / 2 <= size.height / 2 ? -1 : 1;
  const lift = skipped ? away * (NODE.row * 0.9 + 8 * Math.min(skipped, 4)) : 0; // around the masks left out
  const stop = b.x - side, reach = (stop - start) * 0.45;
  return [start, a.y, start + reach, a.y + lift, stop - reach, b.y + lift, stop, b.y];
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
  const s = states[u], { x, y } = places[u], { height } = NODE, width = widthOf(s);
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
  const heading = make("svg:text", { class: `axis ${m % 2 ? "odd" : "even"}`, x: MARGIN + NODE.pitch * (m + 1), y: 16, "text-anchor": "middle" }, dag);
  heading.textContent = `mask ${m + 1}`;
}
byId("dag").append(dag);

// The heat map: EOS has no row, BOS no column

const heat = { cell: Math.max(15, Math.min(36, Math.floor(520 / (N - 1)))) };
heat.words = heat.cell >= 26 ? 3 : 2;
heat.left = 18 + 6.8 * Math.max(...states.map(s => [...label(s, heat.words)].length));
heat.side = heat.cell * (N - 1);
heat.top = 14 + 0.79 * (heat.left - 10);
const map = make("svg:svg", { width: heat.left + heat.side + 0.6 * heat.top, height: heat.top + heat.side + 10, role: "img", "aria-label": "transition matrix" });
const cellLayer = make("svg:g", {}, map), crossLayer = make("svg:g", {}, map), pathLayer = make("svg:g", {}, map);
const cellAt = (u, v) => ({ x: heat.left + heat.cell * (v - 1), y: heat.top + heat.cell * u, width: heat.cell, height: heat.cell });

function cell(u, v, p) {
  if (p < 0.002) return; // invisible; its value is told under the mouse all the same
  const box = cellAt(u, v);
  make("svg:rect", { class: "cell", ...box, "fill-opacity": p ** 0.7 }, cellLayer);
  if (heat.cell < 27 || p < 0.005) return;
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
