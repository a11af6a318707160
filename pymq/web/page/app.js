// The page: chooses the view, polls the server, and shows problems.

import { age, h, link, show } from "./dom.js";
import * as views from "./views.js";

const EVERY_MS = 2000;
const LATE_MS = 4000; // an answer that takes longer
const OLD_S = 10; // what was seen longer ago is not live
const content = document.getElementById("content");
const head = document.getElementById("head");
const status = document.getElementById("status");

const page = {
  width: 800,
  filter: "",
  writable: false,
  plan: null, // what a redrive would do, or has done
  topics: new Set(),
  partitions: [],
  dead: new Set(),
  told: new Map(),
  say(key, text) {
    page.told.set(key, text);
    const place = document.getElementById(`said ${key}`);
    if (place) place.textContent = text;
  },
  said: (key) => page.told.get(key),
  find(text) { page.filter = text; draw(); },
  go(partition, offset) { location.hash = link("records", place()[1], partition, offset); },
  jump(form) {
    const time = form.get("time") ? Date.parse(`${form.get("time")}Z`) : NaN;
    page.go(form.get("partition"), Number.isNaN(time) ? form.get("offset") || "end" : `@${time}`);
  },
  async signIn(token) {
    if (await post("/login", { token })) { isOut = false; update(); }
  },
  async change(what, given) {
    if (await post(`/api/${what}`, given)) update();
  },
  async countLetters(topic, error) {
    const found = await post("/api/redrive", { topic, error, dry_run: true });
    page.plan = found ? { topic, error, would: found } : null;
    draw();
  },
  // The server sends some letters back with each request, so that none takes long. With a rate these
  // are the letters of a second, or fewer, and the page waits before it asks for the next ones.
  async sendLetters(topic, error, rate) {
    const here = location.hash;
    const plan = { topic, error, rate, sent: 0, stay: 0, isBusy: true };
    const limit = rate ? { limit: Math.max(1, Math.floor(rate)) } : {};
    page.plan = plan;
    draw();
    while (plan.isBusy) {
      const found = await post("/api/redrive", { topic, error, ...limit });
      if (found) { plan.sent += found.count; plan.stay = found.stay; }
      plan.isBusy = Boolean(found && found.more && location.hash === here);
      draw();
      if (rate && plan.isBusy) await pause(1000 * found.count / rate);
      plan.isBusy = plan.isBusy && location.hash === here;
    }
    update(true);
  },
};

let state = null; // of the whole cluster, as told last
let part = null; // the view's own part
let partOf = null; // ... and what it was asked for
let isOut = false; // a token is needed
let turn = 0; // answers to what was asked for before are dropped
let failure = ""; // of the last change, shown until the next one or another view
let isLate = false; // what is shown is from before, and nobody has said how it is now

const pause = (ms) => new Promise((then) => setTimeout(then, ms));

// --- requests -------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

async function ask(path) {
  const response = await fetch(path, { credentials: "same-origin", cache: "no-store" });
  const found = await response.json();
  if (!response.ok) throw new Refused(response.status, found.error || response.statusText);
  return found;
}

// Return the answer; null after a failure, which is shown.
async function post(path, given) {
  try {
    const response = await fetch(path, {
      method: "POST", credentials: "same-origin",
      headers: { "Content-Type": "application/json" }, body: JSON.stringify(given),
    });
    const found = await response.json();
    if (!response.ok) throw new Error(found.error || response.statusText);
    failure = "";
    return found;
  } catch (error) {
    failure = error.message;
    return null;
  } finally {
    complain(failure);
  }
}

function complain(text) {
  if (status.textContent !== text) status.textContent = text;
}

// --- address --------------------------------------------------------------------------------------

function place() {
  return location.hash.replace(/^#\/?/, "").split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
}

function wanted([view, name, partition, offset]) {
  const query = (found) => new URLSearchParams(found).toString();
  if (view === "topic") return `/api/topic?${query({ name })}`;
  if (view === "letters") return `/api/letters?${query({ name, error: partition || "" })}`;
  if (view === "group") return `/api/group?${query({ name })}`;
  if (view === "records") {
    const at = offset || "end";
    const where = at.startsWith("@") ? { time_ms: at.slice(1) } : { offset: at };
    return `/api/records?${query({ topic: name, partition: partition || "0", ...where })}`;
  }
  return null;
}

// Refresh only the last page of records; earlier ones stay unchanged while the user reads.
// Letters are counted on demand alone, since that reads them.
const isLive = ([view, , , offset]) => view !== "letters" && (view !== "records" || !offset || offset === "end");

async function update(isNew = false) {
  clearTimeout(update.timer);
  const mine = ++turn;
  const here = place();
  clearTimeout(update.late);
  update.late = setTimeout(() => { isLate = true; draw(); }, LATE_MS);
  try {
    const path = wanted(here);
    // Draw the current view as soon as it arrives: the cluster view is slower while a node is down.
    const own = path && (isNew || part === null || isLive(here))
      ? ask(path).then((found) => { if (mine === turn) { part = found; partOf = path; if (state) draw(); } }) : null;
    const [whole] = await Promise.all([ask("/api/state"), own]);
    if (mine !== turn) return;
    state = whole;
    isOut = isLate = false;
    if (here[0] === "records" && isNew) {
      const about = await ask(`/api/topic?${new URLSearchParams({ name: here[1] })}`);
      if (mine !== turn) return;
      page.partitions = about.partitions.map((partition) => partition.name);
    }
    complain(whole.problem ? `${whole.problem}${whole.cluster ? ` Shown is what was so ${age(whole.age_s)} ago.` : ""}` : failure);
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Refused && error.code === 401) isOut = true;
    else if (error instanceof Refused) complain(error.message);
    else { complain("The server does not answer; trying again."); isLate = true; }
  }
  clearTimeout(update.late);
  draw();
  if (!document.hidden && !isOut) update.timer = setTimeout(update, EVERY_MS);
}

// --- drawing --------------------------------------------------------------------------------------

function draw() {
  const here = place();
  page.width = Math.max(280, content.clientWidth - 32);
  if (window.innerWidth <= 640) page.width = Math.max(260, content.clientWidth - 12);
  page.writable = Boolean(state && state.writable);
  const brokers = state && state.cluster ? state.cluster.brokers : [];
  page.dead = new Set(brokers.filter((broker) => !broker.alive).map((broker) => broker.name));
  page.topics = new Set(state && state.topics ? [...state.topics.map((topic) => topic.name), ...state.more_topics] : []);
  show(head, top(here));
  if (isOut) { show(content, views.signIn(page)); return; }
  if (!state || !state.cluster) { show(content, h("p", { class: "quiet" }, "Looking …")); return; }
  const view = { topic: views.topic, group: views.group, records: views.records, letters: views.letters }[here[0]];
  if (!view) show(content, here[0] === "groups" ? views.groups(state) : views.overview(state, page));
  // The address changes before the event arrives; drop answers to requests of the old address.
  else if (part && partOf !== wanted(here)) return;
  else if (part) show(content, view(part, page));
  else show(content, h("p", { class: "quiet" }, "Nothing to show. "), h("p", null, h("a", { href: "#/" }, "Back to the cluster")));
  document.title = here[1] ? `${here[1]} · pymq` : "pymq";
}

function top([view]) {
  const tab = (href, text, isHere) => h("a", { href, "aria-current": isHere ? "page" : null }, text);
  const isFine = state && !state.problem && !isLate && state.age_s < OLD_S;
  return h("div", { class: "bar-top" },
    h("a", { class: "name", href: "#/" }, h("img", { src: "icon.svg", width: 24, height: 24, alt: "" }), "pymq"),
    h("nav", { "aria-label": "Views" },
      tab("#/", "Cluster", ["", "topic", "records", "letters"].includes(view)), tab("#/groups", "Groups", ["groups", "group"].includes(view))),
    h("span", { class: "who" },
      h("span", null, h("span", { class: `dot ${isOut || !state ? "" : isFine ? "live" : "bad"}` }), isOut || !state ? "" : isFine ? " live" : " not up to date"),
      state && state.principal ? h("span", null, state.principal) : null,
      state && !state.writable ? h("span", null, "read-only") : null,
      state && state.can_sign_out && !isOut
        ? h("button", { type: "button", onclick: async () => { turn += 1; clearTimeout(update.timer); await post("/logout", {}); isOut = true; state = part = null; draw(); } }, "Leave") : null));
}

// --- start ----------------------------------------------------------------------------------------

async function begin() {
  // Exchange the token in the address for a cookie, and remove it from the address.
  const token = /^#token=(.+)$/.exec(location.hash);
  if (token) {
    history.replaceState(null, "", location.pathname + "#/");
    await post("/login", { token: token[1] });
  }
  window.addEventListener("hashchange", () => { part = null; failure = ""; content.focus({ preventScroll: true }); window.scrollTo(0, 0); update(true); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !isOut) update(); });
  new ResizeObserver(() => { if (state) draw(); }).observe(content);
  update(true);
}

begin();
