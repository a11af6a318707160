// Creates and updates elements. Text is inserted as text, never as markup, so that names of topics,
// keys and values cannot inject HTML.

const SVG = new Set(["svg", "g", "rect", "path", "line", "circle", "text", "title", "defs",
  "pattern", "polyline", "polygon", "clipPath"]);
const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onkeydown", "onfocus",
  "onpointerover"];

export function h(tag, attributes, ...children) {
  const node = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, found] of Object.entries(attributes || {})) {
    if (HANDLERS.includes(name)) node[name] = found;
    else if (found === true) node.setAttribute(name, "");
    else if (found !== false && found !== null && found !== undefined) {
      node.setAttribute(name, String(found));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// Update the shown elements in place, so that focus, selection and unfolded parts stay.
export function show(place, ...children) {
  const fresh = children.flat(Infinity).filter((child) => child instanceof Node);
  morphChildren(place, fresh);
}

function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) {
      old.removeAttribute(name);
    }
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) old[name] = fresh[name];
  if (old.nodeName === "OPTION") old.selected = fresh.selected;
  morphChildren(old, [...fresh.childNodes]);
}

function morphChildren(place, fresh) {
  const keyed = new Map();
  for (const child of place.childNodes) {
    if (child.dataset && child.dataset.key) keyed.set(child.dataset.key, child);
  }
  let at = place.firstChild;
  for (const child of fresh) {
    const key = child.dataset && child.dataset.key;
    const known = key ? keyed.get(key) : null;
    if (known) {
      keyed.delete(key);
      if (known === at) at = at.nextSibling;
      else place.insertBefore(known, at);
      morph(known, child);
    } else if (!key && at && !(at.dataset && at.dataset.key)) {
      const old = at;
      at = at.nextSibling;
      morph(old, child);
    } else {
      place.insertBefore(child, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  for (const left of keyed.values()) if (left.parentNode === place) left.remove();
}

const NUMBER = new Intl.NumberFormat("en");

export function count(number) {
  return number === null || number === undefined ? "–" : NUMBER.format(number);
}

export const noun = (number, text) => (number === 1 ? text : `${text}s`);
export const plural = (number, text) => `${count(number)} ${noun(number, text)}`;

export function short(number) {
  if (number === null || number === undefined) return "–";
  const units = ["", "k", "M", "G", "T"];
  let at = 0;
  while (Math.abs(number) >= 1000 && at < units.length - 1) { number /= 1000; at += 1; }
  return (number >= 100 || at === 0 ? Math.round(number) : number.toFixed(1)) + units[at];
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) { number /= 1024; at += 1; }
  return `${number >= 100 || at === 0 ? Math.round(number) : number.toFixed(1)} ${units[at]}`;
}

export function lasting(ms) {
  const units = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000], ["ms", 1]];
  const [unit, size] = units.find(([, size]) => ms >= size && ms % size === 0) || units[4];
  return `${count(ms / size)} ${unit}`;
}

export const age = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

export function when(ms) {
  if (!ms || ms < 0) return "–";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return `${ms} ms`;
  return date.toISOString().replace("T", " ").replace("Z", "");
}

export const link = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");
