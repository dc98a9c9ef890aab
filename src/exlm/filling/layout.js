"use strict";
// Computes the places of all parts of a case, in pixels with y downwards: a column of states for each mask, the matrix.

const NODE = 100, END = 60; // widths of a state and of BOS or EOS
const PITCH = 160, SMALLEST_PITCH = 125, DAG = 860; // from one mask to the next: less if needed so that the DAG fits
const MARGIN = 34; // from the left border to the middle of BOS; also above and below the states
const LETTERS = 11, LETTER = 6.8; // a token shows at most so many; the mean width of one letter
const CELL = 36, SMALLEST_CELL = 15, MATRIX = 768; // if needed, cells shrink to the smallest so that the matrix fits

// Adds to every state its name, colour, label, tokens_label, middle (x, y) and width. Adds to every link a fourth entry:
// the x and y of the four points of a cubic Bezier curve. Adds to the case the sizes of `dag` and `matrix`.
function layOut(data) {
  const { states, edges: links, masks } = data, columns = new Map();
  for (const s of states) columns.set(s.mask, [...(columns.get(s.mask) ?? []), s]);
  const most = Math.max(...[...columns.values()].map(column => column.length)), dense = most > 4;
  const row = dense ? 40 : 58, height = 2 * MARGIN + row * most;
  const pitch = Math.max(SMALLEST_PITCH, Math.min(PITCH, (DAG - 2 * MARGIN) / (masks + 1)));
  data.dag = { width: 2 * MARGIN + pitch * (masks + 1), height, node: dense ? 30 : 40 };

  for (const s of states) {
    const column = columns.get(s.mask), place = column.indexOf(s), isEnd = s.mask < 0 || s.mask >= masks;
    const title = isEnd ? (s.mask < 0 ? "[BOS]" : "[EOS]") : `mask ${s.mask + 1}`;
    const tokens = s.words.length ? s.words.map(([token]) => shortened(token)) : [title];
    s.name = title + (column.length > 1 ? `, state ${place + 1}` : "");
    s.colour = isEnd ? "end" : s.mask % 2 ? "odd" : "even";
    s.label = tokens[0];
    s.tokens_label = tokens.slice(0, 3).join(", ");
    s.x = MARGIN + pitch * (s.mask + 1);
    s.y = MARGIN + row * (place + 0.5 + (most - column.length) / 2);
    s.width = isEnd ? END : NODE;
  }
  for (const link of links) link.push(curve(states[link[0]], states[link[1]], row, height / 2, link[1] - link[0]));

  const cells = states.length - 1, cell = Math.max(SMALLEST_CELL, Math.min(CELL, Math.floor(MATRIX / cells)));
  const left = 18 + LETTER * Math.max(...states.map(s => s.tokens_label.length)), top = 14 + 0.79 * (left - 10);
  const side = cell * cells;
  data.matrix = { cell, side, left, top, width: left + side + 0.6 * top, height: top + side + 10 };
  return data;
}

function shortened(token) {
  const letters = [...token];
  return letters.length <= LETTERS ? token : letters.slice(0, LETTERS - 1).join("") + "…";
}

// The curve of a link. Within a mask it bends to the right; to a later mask it bends around the masks that it skips
function curve(start, stop, row, middle, distance) {
  const x = start.x + start.width / 2, y = start.y;
  if (start.mask === stop.mask) {
    const bulge = x + 10 + 9 * Math.min(distance, 4);
    return [x, y, bulge, y, bulge, stop.y, x, stop.y];
  }
  const skipped = stop.mask - start.mask - 1, away = (y + stop.y) / 2 <= middle ? -1 : 1;
  const lift = skipped ? away * (0.9 * row + 8 * Math.min(skipped, 4)) : 0;
  const end = stop.x - stop.width / 2, reach = 0.45 * (end - x);
  return [x, y, x + reach, y + lift, end - reach, stop.y + lift, end, stop.y];
}
