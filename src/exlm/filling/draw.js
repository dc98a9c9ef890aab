"use strict";
// Draws the case of `exlm explore` (its texts and numbers) at the places that `layOut` chose. Texts and tokens become
// text nodes and attributes of the page, never markup.

const data = layOut(JSON.parse(document.getElementById("case").textContent));
const { states, edges: links, fillings } = data;
const N = states.length;
const byId = id => document.getElementById(id);
const linkAt = new Map(links.map(link => [link[0] * N + link[1], link])); // [u, v, probability, curve]
const dense = data.dag.node < 40; // no room for a second line in a state
const LABELS = 8; // at most so many links of a state show their probability; more numbers would cover each other
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, parent = null, text = null) {
  const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const number = p => p >= 0.0995 ? p.toFixed(3) : p === 0 ? "0" : p >= 1e-4 ? p.toPrecision(2) : p.toExponential(1);

// Texts

function chip(mask, text, parent) {
  const element = make("span", { class: `mask ${mask % 2 ? "odd" : "even"}` }, parent);
  make("sup", {}, element, mask + 1);
  element.append(text);
}

function showText(segments, target, asMask) {
  target.replaceChildren();
  for (const [text, mask] of segments) {
    if (mask === null) target.append(text);
    else {
      if (/^\s/.test(text)) target.append(" ");
      chip(mask, asMask ? "[MASK]" : text.trim() || "∅", target);
    }
  }
  const first = target.querySelector(".mask"); // scrolls a long text to its first mask
  if (first) target.scrollTop = first.offsetTop - target.offsetTop - 60;
}

// The DAG

const along = (curve, t) => [0, 1].map(i =>
  (1 - t) ** 3 * curve[i] + 3 * t * (1 - t) ** 2 * curve[i + 2] + 3 * t * t * (1 - t) * curve[i + 4] + t ** 3 * curve[i + 6]);

const dag = make("svg:svg", { width: data.dag.width, height: data.dag.height, role: "group", "aria-label": "DAG of the states" });
const linkLayer = make("svg:g", {}, dag), nodeLayer = make("svg:g", {}, dag), valueLayer = make("svg:g", {}, dag);
const drawn = new Map(); // links are made when they are first shown

function drawnLink(u, v) {
  const key = u * N + v;
  if (!linkAt.has(key)) return null;
  if (!drawn.has(key)) {
    const [, , p, curve] = linkAt.get(key);
    drawn.set(key, make("svg:path", {
      class: `link ${states[u].colour}`, "data-u": u, "data-v": v, "data-p": p,
      d: `M${curve.slice(0, 2)}C${curve.slice(2)}`, "stroke-width": 0.7 + 6 * p, "stroke-opacity": 0.18 + 0.75 * p,
    }, linkLayer));
  }
  return drawn.get(key);
}

function node(u) {
  const { x, y, width, name, colour, label, words: tokens, weight } = states[u], height = data.dag.node;
  const top = tokens.slice(0, 3).map(([token, p]) => `${token} ${number(p)}`).join(", ");
  const group = make("svg:g", {
    class: `state ${colour}`, "data-state": u, tabindex: 0, role: "img",
    "aria-label": `${name}: ${top || label}; weight ${number(weight)}`,
  }, nodeLayer);
  const second = !dense && tokens.length > 0, full = width - 16;
  make("svg:rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 8 }, group);
  make("svg:text", { x, y: y + (second ? -1 : 3) }, group, label);
  if (second) make("svg:text", { class: "small", x, y: y + 12 }, group, number(tokens[0][1]));
  make("svg:rect", { class: "weight", x: x - full / 2, y: y + height / 2 - 5, width: full * Math.min(1, weight), height: 3, rx: 1.5 }, group);
}

states.forEach((s, u) => node(u));
for (let m = 0; m < data.masks; m++) {
  const { x, colour } = states.find(s => s.mask === m);
  make("svg:text", { class: `axis ${colour}`, x, y: 16, "text-anchor": "middle" }, dag, `mask ${m + 1}`);
}
byId("dag").append(dag);

// The heat map. No link starts at EOS or ends at BOS, so EOS has no row and BOS no column

const heat = data.matrix;
const map = make("svg:svg", { width: heat.width, height: heat.height, role: "img", "aria-label": "transition matrix" });
const cellLayer = make("svg:g", {}, map), crossLayer = make("svg:g", {}, map), pathLayer = make("svg:g", {}, map);
const cellAt = (u, v) => ({ x: heat.left + heat.cell * (v - 1), y: heat.top + heat.cell * u, width: heat.cell, height: heat.cell });

function cell(u, v, p) {
  if (p < 0.002) return; // too pale to be seen; the mouse still shows its value
  const box = cellAt(u, v);
  make("svg:rect", { class: "cell", ...box, "fill-opacity": p ** 0.7 }, cellLayer);
  if (heat.cell < 27 || p < 0.005) return;
  const strong = p > 0.45 ? " strong" : "";
  make("svg:text", { class: `cell-text${strong}`, x: box.x + heat.cell / 2, y: box.y + heat.cell / 2 + 4 }, cellLayer, p.toFixed(2));
}

function axes() {
  states.forEach(({ colour, tokens_label }, i) => {
    const across = heat.top + heat.cell * (i + 0.5) + 4, x = heat.left + heat.cell * (i - 0.5), y = heat.top - 8;
    if (i < N - 1) make("svg:text", { class: `axis ${colour}`, x: heat.left - 8, y: across, "text-anchor": "end" }, map, tokens_label);
    if (i > 0) make("svg:text", { class: `axis ${colour}`, x, y, transform: `rotate(-52 ${x} ${y})` }, map, tokens_label);
  });
  for (let u = 0; u < N - 1; u++) for (let v = u + 1; v < N; v++) if (N < 40) make("svg:rect", { class: "grid", ...cellAt(u, v) }, cellLayer);
  make("svg:rect", { class: "back", x: heat.left, y: heat.top, width: heat.side, height: heat.side }, map);
}

if (links.length) {
  for (const [u, v, p] of links) cell(u, v, p);
  axes();
  byId("heat").append(map);
} else {
  byId("matrix").hidden = byId("controls").hidden = true;
}
