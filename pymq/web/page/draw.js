// Drawings: a partition's blocks as a timeline, throughput as a line, lag as a bar.

import { age, bytes, count, h, noun, short, when } from "./dom.js";

const LANE = 24;
const GAP = 4;
const LEAST = 9; // pixels of the smallest block
const AXIS = 22;

// The blocks of a partition with their ack modes: a lane for each broker, a box for each replica.
// A width is the square root of a block's size, so that small blocks stay visible beside large ones.
// Replicas on *dead* brokers are drawn as unreadable.
export function timeline(partition, width, tell, dead = new Set()) {
  const names = new Set();
  for (const block of partition.blocks) for (const name of block.replicas) names.add(name);
  const lanes = [...names].sort();
  if (!lanes.length) return h("p", { class: "quiet" }, "No broker holds anything of it yet.");
  const label = Math.min(130, Math.max(...lanes.map((name) => name.length)) * 7.4 + 14);
  const room = Math.max(60, width - label - 16);
  const most = Math.max(1, Math.floor(room / (LEAST + 1)));
  const blocks = partition.blocks.slice(-most);
  const older = partition.older + partition.blocks.length - blocks.length;
  const weights = blocks.map((block) => Math.sqrt(block.end - block.start) + 0.001);
  const total = weights.reduce((a, b) => a + b, 0);
  const spare = Math.max(0, room - LEAST * blocks.length);
  let x = label;
  const spans = blocks.map((block, i) => {
    const span = { block, x, width: LEAST + (spare * weights[i]) / total };
    x += span.width;
    return span;
  });
  const height = lanes.length * (LANE + GAP) + AXIS;
  return h("svg", {
    class: "timeline", width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
    "aria-label": `Blocks of partition ${partition.name}; arrow keys go from one to the next`,
    onkeydown: walk, onpointerover: (event) => point(event, tell),
  },
  lanes.map((name, lane) => h("g", { "data-key": `lane ${name}` },
    h("line", { class: "lane", x1: label, x2: width - 16, y1: middle(lane), y2: middle(lane) }),
    h("text", { class: dead.has(name) ? "who away" : "who", x: 0, y: middle(lane) + 4 }, clipped(name, label)))),
  spans.map((span, i) => column(span, lanes, partition, i === spans.length - 1, tell, dead)),
  axis(spans, older, label, height, width));
}

const middle = (lane) => lane * (LANE + GAP) + LANE / 2 + 1;

function clipped(name, width) {
  const most = Math.floor((width - 12) / 7.2);
  return name.length > most ? name.slice(0, most - 1) + "…" : name;
}

function column({ block, x, width }, lanes, partition, isLast, tell, dead) {
  const said = blockText(block, dead);
  return h("g", {
    "data-key": `block ${block.start} ${block.name}`, "data-said": said, tabindex: isLast ? 0 : -1,
    role: "img", "aria-label": said, class: "column", onfocus: () => tell(said),
  },
  h("title", null, said),
  h("rect", { class: "hit", x, y: 0, width, height: lanes.length * (LANE + GAP) }),
  lanes.map((name, lane) => (block.replicas.includes(name)
    ? copy(block, name, x, width, lane, partition, dead) : null)));
}

function copy(block, name, x, width, lane, partition, dead) {
  const leader = block.open ? partition.leader : block.leader;
  const kind = ["copy", block.acks, block.in_sync.includes(name) ? "whole" : "behind"];
  if (block.open) kind.push("open");
  if (dead.has(name)) kind.push("away");
  const y = lane * (LANE + GAP) + 1;
  const right = x + width - 1.5;
  const box = block.open
    ? h("path", { class: "box", d: `M${x} ${y}H${right}l7 ${LANE / 2}l-7 ${LANE / 2}H${x}z` })
    : h("rect", { class: "box", x, y, width: width - 1.5, height: LANE, rx: 2 });
  const wide = width > 58;
  return h("g", { class: kind.join(" ") }, box,
    name === leader
      ? h("circle", { class: "leads", cx: x + Math.min(11, width / 2), cy: y + LANE / 2, r: Math.min(4, width / 3) })
      : null,
    wide ? h("text", { class: "mode", x: x + (name === leader ? 20 : 8), y: y + LANE / 2 + 4 }, block.acks) : null);
}

function axis(spans, older, label, height, width) {
  const marks = [];
  let free = 0;
  const last = spans[spans.length - 1];
  const end = { x: last.x + last.width, text: count(last.block.end) };
  const limit = end.x - end.text.length * 7 - 10;
  for (const { block, x } of spans) {
    const text = count(block.start);
    if (x >= free && x + text.length * 7 < limit) {
      marks.push(h("text", { class: "offset", x, y: height - 6 }, text));
      free = x + text.length * 7 + 12;
    }
  }
  marks.push(h("text", { class: "offset", x: Math.min(end.x, width), y: height - 6, "text-anchor": "end" }, end.text));
  if (older) marks.push(h("text", { class: "offset", x: 0, y: height - 6 }, `${short(older)} older`));
  return h("g", { "aria-hidden": "true" }, marks);
}

export function blockText(block, dead) {
  const state = (name) => [block.in_sync.includes(name) ? "" : " (behind)", dead.has(name) ? " (dead)" : ""].join("");
  const holders = block.replicas.map((name) => name + state(name)).join(", ");
  const parts = [
    `${block.open ? "Open block" : block.name}: offsets ${count(block.start)} to ${count(block.end)}`,
    `acks ${block.acks}`, `epoch ${block.epoch}`, `led by ${block.leader || "nobody"}`,
    `on ${holders || "nobody"}`, bytes(block.bytes),
  ];
  if (block.opened_ms) parts.push(`opened ${when(block.opened_ms).slice(0, 19)} UTC`);
  if (block.unclean) parts.push("ended without any copy that was known to be whole");
  return parts.join(" · ");
}

function point(event, tell) {
  const column = event.target.closest && event.target.closest(".column");
  if (column) tell(column.dataset.said);
}

function walk(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const here = event.target.closest(".column");
  if (!step || !here) return;
  const all = [...event.currentTarget.querySelectorAll(".column")];
  const next = all[all.indexOf(here) + step];
  if (!next) return;
  event.preventDefault();
  here.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

export function legend() {
  const box = (kind, text) => h("li", null,
    h("svg", { width: 26, height: 16, "aria-hidden": "true" },
      h("g", { class: `copy ${kind}` }, h("rect", { class: "box", x: 1, y: 1, width: 24, height: 14, rx: 2 }))), text);
  return h("ul", { class: "legend", "aria-label": "Legend" },
    box("raft whole", "raft"), box("leader whole", "leader"), box("none whole", "none"),
    box("raft behind", "not in sync"), box("raft whole away", "on a dead broker"),
    h("li", null, h("svg", { width: 26, height: 16, "aria-hidden": "true" },
      h("g", { class: "copy raft whole" }, h("rect", { class: "box", x: 1, y: 1, width: 24, height: 14, rx: 2 }),
        h("circle", { class: "leads", cx: 13, cy: 8, r: 4 }))), "leads"),
    h("li", null, h("svg", { width: 26, height: 16, "aria-hidden": "true" },
      h("g", { class: "copy raft whole open" }, h("path", { class: "box", d: "M1 1H18l6 7l-6 7H1z" }))), "open"));
}

// Records a second over the last minutes.
export function throughput(rates, width) {
  const height = 84;
  const top = Math.max(1, ...rates.map(([, records]) => records));
  const span = 180;
  const x = (i) => width - (rates.length - 1 - i) * (width / (span - 1));
  const y = (found) => height - 4 - (found / top) * (height - 22);
  const points = rates.map(([, records], i) => `${x(i).toFixed(1)},${y(records).toFixed(1)}`);
  const now = rates.length ? rates[rates.length - 1] : [0, 0, 0];
  const area = points.length > 1
    ? `M${x(0).toFixed(1)},${height - 4}L${points.join("L")}L${x(rates.length - 1).toFixed(1)},${height - 4}Z` : "M0 0";
  return h("svg", {
    class: "throughput", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Throughput: ${short(now[1])} records and ${bytes(now[2])} a second; at most ${short(top)} records a second lately`,
  },
  h("line", { class: "grid", x1: 0, x2: width, y1: y(top), y2: y(top) }),
  h("line", { class: "grid", x1: 0, x2: width, y1: height - 4, y2: height - 4 }),
  h("path", { class: "area", d: area }),
  h("polyline", { class: "line", points: points.join(" ") }),
  h("text", { class: "offset", x: 0, y: 11 }, `${short(top)} ${noun(top, "record")}/s`),
  rates.length > 1
    ? h("text", { class: "offset", x: width, y: 11, "text-anchor": "end" }, `the last ${age((now[0] - rates[0][0]) / 1000)}`)
    : null);
}

// A bar: the value's share of the maximum.
export function bar(found, most, kind = "") {
  const share = most ? Math.max(found ? 2 : 0, (100 * found) / most) : 0;
  return h("svg", { class: `bar ${kind}`, width: 100, height: 8, "aria-hidden": "true" },
    h("rect", { class: "back", x: 0, y: 0, width: 100, height: 8, rx: 2 }),
    h("rect", { class: "front", x: 0, y: 0, width: share.toFixed(1), height: 8, rx: 2 }));
}
