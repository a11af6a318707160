// The views: pure functions from the server's JSON to elements.

import { bytes, count, h, lasting, link, noun, plural, short, when } from "./dom.js";
import { bar, legend, throughput, timeline } from "./draw.js";

const tags = (modes) => modes.map((mode) => h("span", { class: `tag ${mode}` }, mode));

function tile(text, found, kind = "") {
  return h("div", { class: `tile ${kind}` }, h("b", null, found), h("span", null, text));
}

// A column head: its text, whether the column has numbers, whether narrow windows hide it.
function table(caption, heads, rows, kind = "", label = null) {
  return h("div", { class: "scroll" }, h("table", { class: kind, "aria-label": label },
    caption ? h("caption", null, caption) : null,
    h("thead", null, h("tr", null, heads.map(([text, number, wide]) => h("th", { scope: "col", class: `${number ? "n" : ""} ${wide ? "wide" : ""}` }, text)))),
    h("tbody", null, rows)));
}

const row = (key, ...cells) => h("tr", { "data-key": key }, cells);
const name = (...children) => h("td", { class: "name" }, children);
const number = (text, kind = "") => h("td", { class: `n ${kind}` }, text);

// --- cluster -------------------------------------------------------------------------------------

export function overview(state, page) {
  const { cluster } = state;
  const alive = cluster.brokers.filter((broker) => broker.alive).length;
  const dead = cluster.brokers.length - alive;
  const under = state.sums.short;
  const last = state.rates[state.rates.length - 1] || [0, null, null];
  return [
    h("h1", null, "Cluster"),
    h("div", { class: "tiles" },
      tile(`${noun(alive, "broker")}, ${dead ? `${dead} dead` : alive === 1 ? "alive" : "all alive"}`, count(alive), dead ? "bad" : "good"),
      tile(noun(cluster.topics, "topic"), count(cluster.topics)),
      tile(noun(cluster.partitions, "partition"), count(cluster.partitions)),
      tile("under-replicated", count(under), under ? "warn" : "good"),
      tile(`${noun(cluster.under_replicated_blocks, "block")} with too few copies${cluster.moving_blocks ? `, ${count(cluster.moving_blocks)} being copied` : ""}`,
        count(cluster.under_replicated_blocks), cluster.under_replicated_blocks ? "warn" : "good"),
      tile("without a leader", count(cluster.leaderless.length), cluster.leaderless.length ? "bad" : "good"),
      tile("records/s", short(last[1])),
      tile("in /s", last[2] === null ? "–" : bytes(last[2])),
      tile(state.lag.groups < state.lag.of ? `lag of ${count(state.lag.groups)} of ${plural(state.lag.of, "group")}` : "lag of all groups", short(state.lag.records))),
    state.more_topics.length ? coverage(state.sums) : null,
    state.notes.map((note) => h("p", { class: "quiet" }, note)),
    cluster.leaderless.length ? h("p", { class: "problem" }, "Nobody leads ",
      cluster.leaderless.slice(0, 10).map((where, i) => [i ? ", " : "", h("a", { href: link("topic", where.split("/")[0]) }, where)])) : null,
    h("section", { class: "card", "aria-labelledby": "t-throughput" },
      h("h2", { id: "t-throughput" }, "Throughput"), throughput(state.rates, page.width - 34)),
    h("section", { class: "card" }, brokers(cluster)),
    h("section", { class: "card" }, topicTable(state, page)),
    h("section", { class: "card" }, groupTable(state)),
  ];
}

// Of very many topics only some are described in each snapshot, so the sums grow at first.
function coverage({ topics, of, rated }) {
  const sums = topics < of ? `Sums of ${count(topics)} of ${plural(of, "topic")}` : `Sums of all ${plural(of, "topic")}`;
  return rated < of ? h("p", { class: "quiet" }, `${sums}, records/s of ${count(rated)} of them.`) : null;
}

function brokers(cluster) {
  const most = Math.max(1, ...cluster.brokers.map((broker) => broker.bytes));
  return [
    h("div", { class: "cardhead" }, h("h2", null, "Brokers"),
      h("div", { class: "facts" },
        h("span", null, "decided by ", h("b", null, cluster.controller)),
        h("span", null, "controller epoch ", h("b", null, count(cluster.epoch))))),
    table("", [["Name"], ["State"], ["Rack", 0, 1], ["Leads", 1], ["Copies", 1], ["Size", 1], ["", 0, 1]],
      cluster.brokers.map((broker) => row(broker.name,
        name(broker.name, broker.endpoint ? h("span", { class: "header" }, broker.endpoint) : null),
        h("td", { class: broker.alive ? "good" : "bad" }, broker.alive ? (broker.is_draining ? "draining" : "alive") : "dead"),
        h("td", { class: "quiet wide" }, broker.rack || "–"),
        number(count(broker.leads)), number(count(broker.blocks)), number(bytes(broker.bytes)),
        h("td", { class: "wide" }, bar(broker.bytes, most)))), "", "Brokers"),
  ];
}

function topicTable(state, page) {
  const wanted = (page.filter || "").toLowerCase();
  const topics = state.topics.filter((topic) => topic.name.toLowerCase().includes(wanted));
  const more = state.more_topics.filter((topic) => topic.toLowerCase().includes(wanted));
  return [
    h("div", { class: "cardhead" }, h("h2", null, "Topics"),
      h("form", { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
        h("label", null, "Find", h("input", { type: "search", autocomplete: "off", oninput: (event) => page.find(event.target.value) })))),
    table("", [["Name"], ["State"], ["Acks"], ["Partitions", 1, 1], ["Replicas", 1, 1], ["Records", 1], ["Size", 1, 1], ["Records/s", 1], ["In /s", 1, 1]],
      topics.map((topic) => row(topic.name,
        name(h("a", { href: link("topic", topic.name) }, topic.name),
          page.writable && topic.name.endsWith(LETTERS) ? h("a", { class: "header", href: link("letters", topic.name) }, "dead letters") : null), health(topic),
        h("td", null, tags(topic.acks)),
        number(count(topic.partitions), "wide"), number(count(topic.replicas), "wide"), number(count(topic.records)),
        number(bytes(topic.bytes), "wide"), number(short(topic.records_s)), number(bytes(topic.bytes_s), "wide"))), "", "Topics"),
    topics.length || more.length ? null : h("p", { class: "quiet" }, wanted ? "No topic is called so." : "There are no topics yet."),
    more.length ? h("details", null, h("summary", null, `${plural(more.length, "more topic")}, by name`),
      more.map((topic) => [h("a", { href: link("topic", topic) }, topic), " "])) : null,
    page.writable ? createForm(page) : null,
  ];
}

function health(topic) {
  if (topic.problems) return h("td", { class: "bad" }, `${topic.problems} without a leader`);
  if (topic.unreadable) return h("td", { class: "bad" }, `${topic.unreadable} partly unreadable`);
  if (topic.short) return h("td", { class: "warn" }, `${topic.short} under-replicated`);
  return h("td", { class: "good" }, "fine");
}

export function groupTable({ groups, more_groups: more }) {
  const most = Math.max(1, ...groups.map((group) => group.lag || 0));
  if (!groups.length) return [h("h2", null, "Groups"), h("p", { class: "quiet" }, "Nobody consumes in a group yet.")];
  return [table("Groups", [["Name"], ["Topics"], ["Members", 1], ["In flight", 1], ["To redeliver", 1, 1], ["Lag", 1], ["", 0, 1]],
    groups.map((group) => row(group.name,
      name(h("a", { href: link("group", group.name) }, group.name)),
      group.problem
        ? h("td", { class: "bad", colspan: 6 }, group.problem)
        : [h("td", null, group.topics.map((topic, i) => [i ? ", " : "", h("a", { href: link("topic", topic) }, topic)])),
          number(count(group.members), group.members ? "" : "quiet"), number(count(group.in_flight)),
          number(count(group.waiting), "wide"), number(count(group.lag), group.lag ? "warn" : ""),
          h("td", { class: "wide" }, bar(group.lag, most, "late"))]))),
  more.length ? h("details", null, h("summary", null, `${plural(more.length, "more group")}, by name`),
    more.map((group) => [h("a", { href: link("group", group) }, group), " "])) : null];
}

// --- topic ---------------------------------------------------------------------------------------

export function topic(found, page) {
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Cluster"), " / Topic"),
    h("h1", null, found.name, " ", h("small", null, plural(found.partitions.length + found.more_partitions, "partition"))),
    lettersLink(found.name, page),
    legend(),
    found.partitions.map((partition, i) => partitionCard(found, partition, page, i === 0)),
    found.more_partitions ? h("p", { class: "quiet" }, `${plural(found.more_partitions, "more partition")} not shown`) : null,
    h("details", { class: "card" }, h("summary", null, "Options"),
      h("table", null, h("tbody", null, Object.entries(found.config).map(([option, value]) =>
        row(option, h("th", { scope: "row" }, option), h("td", null, setting(option, value))))))),
  ];
}

function partitionCard(found, partition, page, isFirst) {
  const key = `${found.name}/${partition.name}`;
  const behind = partition.replicas.filter((broker) => !partition.in_sync.includes(broker));
  return h("section", { class: "card", "data-key": key, "aria-label": `Partition ${partition.name}` },
    h("h2", null, "Partition ", partition.name, " ", tags([partition.acks])),
    partition.problem ? h("p", { class: "problem" }, partition.problem) : null,
    partition.offline.length ? h("p", { class: "problem" },
      `Offline on ${partition.offline.join(", ")}: dead, or the disk fails`) : null,
    partition.unreadable.blocks ? h("p", { class: "problem" }, unreadable(partition.unreadable)) : null,
    partition.losses.map((loss) => h("p", { class: "problem" },
      `Records from offset ${count(loss.offset)} on may have been lost at ${when(loss.at_ms).slice(0, 19)} UTC`)),
    h("div", { class: "facts" },
      fact("led by", partition.leader || "nobody"), fact("epoch", count(partition.epoch)),
      fact("offsets", `${count(partition.start)} – ${count(partition.high)}`),
      partition.end > partition.high ? fact("not committed yet", count(partition.end - partition.high)) : null,
      fact("blocks", count(partition.blocks.length + partition.older)),
      behind.length ? h("span", { class: "warn" }, `behind: ${behind.join(", ")}`) : null,
      h("a", { href: link("records", found.name, partition.name) }, "Records")),
    h("div", { class: "frame" }, timeline(partition, page.width - 34, (text) => page.say(key, text), page.dead)),
    h("p", { class: "said", id: `said ${key}` }, page.said(key) || (isFirst ? "Point at a block, or go through them with the arrow keys." : "")),
    blockDetails(partition),
    page.writable ? acksForm(found, partition, page) : null);
}

function setting(option, value) {
  if (value === null) return "–";
  if (typeof value !== "number") return String(value);
  const said = option.endsWith("_bytes") ? bytes(value) : option.endsWith("_ms") ? lasting(value) : null;
  return [count(value), said ? h("span", { class: "quiet" }, ` (${said})`) : null];
}

const unreadable = ({ blocks, records, from }) =>
  `${plural(records, "record")} in ${plural(blocks, "block")} from offset ${count(from)} on cannot be read: no living broker holds ${records === 1 ? "it" : "them"}`;

const fact = (text, found) => h("span", null, text, " ", h("b", null, found));

function blockDetails(partition) {
  const blocks = [...partition.blocks].reverse();
  return h("details", null, h("summary", null, "Blocks as a table"),
    table(`Blocks of partition ${partition.name}`, [["Block"], ["From", 1], ["To", 1], ["Acks"], ["Epoch", 1], ["Leader"], ["Copies"], ["Size", 1], ["Opened (UTC)"]],
      blocks.map((block) => row(`${block.start} ${block.name}`,
        h("td", null, block.open ? "open" : block.name), number(count(block.start)), number(count(block.end)),
        h("td", null, tags([block.acks])), number(count(block.epoch)), h("td", null, block.leader || "–"),
        h("td", null, block.replicas.map((broker, i) => [i ? ", " : "", block.in_sync.includes(broker) ? broker : h("span", { class: "warn" }, `${broker} (behind)`)])),
        number(bytes(block.bytes)), h("td", { class: "quiet" }, when(block.opened_ms).slice(0, 19))))));
}

// --- records -------------------------------------------------------------------------------------

export function records(found, page) {
  const partitions = page.partitions.includes(found.partition) ? page.partitions : [found.partition, ...page.partitions];
  const go = (offset) => page.go(found.partition, offset);
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Cluster"), " / ", h("a", { href: link("topic", found.topic) }, found.topic), " / Records"),
    h("h1", null, found.topic, " ", h("small", null, `offsets ${count(found.start)} – ${count(found.end)}`)),
    h("div", { class: "card" },
      h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); page.jump(new FormData(event.target)); } },
        h("label", null, "Partition", h("select", { name: "partition", onchange: (event) => page.go(event.target.value, "end") },
          partitions.map((name) => h("option", { value: name, selected: name === found.partition }, name)))),
        h("label", null, "Offset", h("input", { name: "offset", inputmode: "numeric", pattern: "[0-9]*", size: 12, value: found.from })),
        h("label", null, "or time (UTC)", h("input", { name: "time", type: "datetime-local", step: 1 })),
        h("button", { class: "main" }, "Go"),
        h("button", { type: "button", disabled: found.from <= found.start, onclick: () => go("begin") }, "⇤ First"),
        h("button", { type: "button", disabled: found.from <= found.start, onclick: () => go(Math.max(found.start, found.from - 50)) }, "← Older"),
        h("button", { type: "button", disabled: found.to >= found.end, onclick: () => go(found.to) }, "Newer →"),
        h("button", { type: "button", disabled: found.to >= found.end, onclick: () => go("end") }, "Last ⇥")),
      found.records.length
        ? table(`Records ${count(found.from)} to ${count(found.to - 1)}`, [["Offset", 1], ["Time (UTC)"], ["Key"], ["Value and headers"]],
          found.records.map((record) => row(record.offset,
            number(count(record.offset)), h("td", { class: "quiet" }, when(record.timestamp_ms)),
            h("td", { class: "key" }, payload(record.key)),
            h("td", { class: "value" }, payload(record.value, true),
              record.headers.map(([header, value]) => h("span", { class: "header" }, `${header}: `, value.text ?? value.hex))))), "records")
        : h("p", { class: "quiet" }, "There is no record here.")),
    page.writable ? sendForm(found, page) : null,
  ];
}

function payload(found, isValue = false) {
  if (found === null) return h("span", { class: "quiet" }, "–");
  if (!found.size) return h("span", { class: "quiet" }, "empty");
  const text = found.text;
  if (text === undefined) {
    return [h("pre", null, found.hex), h("span", { class: "header" }, `${plural(found.size, "byte")}, not text${found.cut ? ", cut" : ""}`)];
  }
  const cut = found.cut ? h("span", { class: "header" }, `${plural(found.size, "byte")}, cut`) : null;
  if (isValue && !found.cut && /^\s*[[{]/.test(text)) {
    try {
      const whole = JSON.stringify(JSON.parse(text), null, 2);
      return h("details", null, h("summary", null, h("pre", null, text)), h("pre", null, whole));
    } catch { /* It only looks like JSON. */ }
  }
  return [h("pre", null, text), cut];
}

// --- dead letters --------------------------------------------------------------------------------

const LETTERS = ".dlq"; // the end of a dead-letter topic's name, unless a consumer names another

function lettersLink(topic, page) {
  const place = topic.endsWith(LETTERS) ? topic : topic + LETTERS;
  return page.writable && page.topics.has(place) ? h("p", null, h("a", { href: link("letters", place) }, `Dead letters in ${place}`)) : null;
}

export function letters(found, page) {
  const more = found.is_cut ? " or more" : "";
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Cluster"), " / ", h("a", { href: link("topic", found.topic) }, found.topic), " / Dead letters"),
    h("h1", null, found.topic, " ", h("small", null, `${plural(found.letters, "letter")}${more}, not sent back`)),
    redriveCard(found, page),
    found.errors.length ? h("section", { class: "card" },
      table("Errors", [["Error"], ["Letters", 1]],
        found.errors.map(([error, letters]) => row(error, name(h("a", { href: link("letters", found.topic, error) }, error)), number(count(letters))))),
      found.more_errors ? h("p", { class: "quiet" }, `${plural(found.more_errors, "more error")} not shown`) : null) : null,
    h("section", { class: "card" }, found.shown.length ? letterTable(found, more) : h("p", { class: "quiet" }, found.error ? "There is no such letter." : "There is no letter that was not sent back.")),
  ];
}

function redriveCard(found, page) {
  const { topic, error } = found;
  const plan = page.plan && page.plan.topic === topic && page.plan.error === error ? page.plan : {};
  return h("section", { class: "card", "aria-label": "Send back" },
    h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); location.hash = link("letters", topic, new FormData(event.target).get("error")); } },
      h("label", null, "Only letters whose error contains", h("input", { name: "error", size: 36, value: error })),
      h("label", null, "Letters a second, at most", h("input", { name: "rate", type: "number", min: 0.1, max: 1000000, step: "any", placeholder: "all at once", value: plan.rate || "" })),
      h("button", null, "Show"),
      h("button", { type: "button", disabled: plan.isBusy, onclick: () => page.countLetters(topic, error) }, "Dry run"),
      plan.would && plan.would.count
        ? h("button", { type: "button", class: "main", onclick: (event) => page.sendLetters(topic, error, Number(new FormData(event.target.form).get("rate"))) }, `Send ${plan.would.more ? "all letters" : plural(plan.would.count, "letter")} back`) : null),
    h("p", { class: "quiet", role: "status" }, planned(plan)));
}

function planned({ would, sent, stay, isBusy }) {
  if (would) return `${plural(would.count, "letter")}${would.more ? " or more" : ""} would be sent back${would.stay ? `, ${plural(would.stay, "letter")} would stay` : ""}.`;
  if (sent === undefined) return "Each letter goes to the topic and partition that it came from, once. A dry run counts them first.";
  if (isBusy) return `${plural(sent, "letter")} sent back so far …`;
  return `${plural(sent, "letter")} sent back${stay ? `, ${plural(stay, "letter")} stayed` : ""}.`;
}

function letterTable(found, more) {
  const chosen = `${plural(found.chosen, "letter")}${more}`;
  const caption = found.chosen > found.shown.length ? `The first ${count(found.shown.length)} of ${chosen}` : chosen;
  return table(caption, [["Letter"], ["Given up (UTC)"], ["From"], ["By"], ["Error"], ["Key"], ["Value"]],
    found.shown.map((letter) => row(`${letter.partition}/${letter.offset}`,
      h("td", null, h("a", { href: link("records", found.topic, letter.partition, letter.offset) }, `${letter.partition}/${count(letter.offset)}`)),
      h("td", { class: "quiet" }, when(letter.at_ms)),
      h("td", null, origin(letter.from)),
      h("td", null, letter.group || "–", letter.deliveries ? h("span", { class: "header" }, letter.deliveries === "1" ? "delivered once" : `delivered ${letter.deliveries} times`) : null),
      h("td", { class: "value" }, letter.error),
      h("td", { class: "key" }, payload(letter.key)), h("td", { class: "value" }, payload(letter.value, true)))), "records letters");
}

function origin([topic, partition, offset]) {
  if (!topic) return "unknown";
  return h("a", { href: partition && offset ? link("records", topic, partition, offset) : link("topic", topic) }, [topic, partition, offset].filter(Boolean).join("/"));
}

// --- groups --------------------------------------------------------------------------------------

export function groups(state) {
  return [h("h1", null, "Groups"), h("section", { class: "card" }, groupTable(state))];
}

export function group(found) {
  const most = Math.max(1, ...found.offsets.map((offset) => offset.lag));
  const isBegun = (offset) => offset.committed !== null;
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/groups" }, "Groups"), " / Group"),
    h("h1", null, found.name, " ", h("small", null, `generation ${count(found.generation)}`)),
    h("section", { class: "card" },
      table("Offsets", [["Topic"], ["Partition"], ["Lag", 1], ["", 0, 1], ["In flight", 1], ["To redeliver", 1, 1], ["Committed", 1], ["End", 1]],
        found.offsets.map((offset) => row(`${offset.topic}/${offset.partition}`,
          name(h("a", { href: link("topic", offset.topic) }, offset.topic)),
          h("td", null, h("a", { href: link("records", offset.topic, offset.partition, isBegun(offset) ? offset.committed : "begin") }, offset.partition)),
          number(count(offset.lag), offset.lag ? "warn" : ""), h("td", { class: "wide" }, isBegun(offset) ? bar(offset.lag, most, "late") : null),
          number(count(offset.in_flight)), number(count(offset.waiting), "wide"),
          number(count(offset.committed)), number(count(offset.end))))),
      found.offsets.every(isBegun) ? null : h("p", { class: "quiet" }, "–: nothing was consumed of it yet")),
    h("section", { class: "card" },
      found.members.length
        ? table("Members", [["Consumer"], ["Client"], ["Topic"], ["Partitions"], ["Silent for", 1], ["State"]],
          found.members.map((member) => row(member.name,
            name(member.name), name(member.client), h("td", null, member.topic),
            h("td", null, member.partitions.join(", ") || "–"), number(`${member.silent_s} s`),
            h("td", { class: member.waits ? "good" : "quiet" }, member.waits ? "waits for records" : "is at work"))))
        : [h("h2", null, "Members"), h("p", { class: "quiet" }, "It has none now; its offsets are kept.")],
      found.more_members ? h("p", { class: "quiet" }, `${plural(found.more_members, "more member")} not shown`) : null),
  ];
}

// --- changes, if allowed --------------------------------------------------------------------------

function changeForm(summary, what, page, fields, given) {
  return h("details", null, h("summary", null, summary),
    h("form", { class: "tools", onsubmit: (event) => {
      event.preventDefault();
      page.change(what, given(new FormData(event.target)));
    } }, fields, h("button", { class: "main" }, "Do it")));
}

const modes = (chosen) => h("select", { name: "acks" }, ["leader", "raft", "none"].map((mode) => h("option", { value: mode, selected: mode === chosen }, mode)));

function createForm(page) {
  return changeForm("Create a topic", "create", page, [
    h("label", null, "Name", h("input", { name: "topic", required: true, maxlength: 249, pattern: "[A-Za-z0-9._\\-]+" })),
    h("label", null, "Partitions", h("input", { name: "partitions", type: "number", min: 1, value: 1 })),
    h("label", null, "Replicas", h("input", { name: "replicas", type: "number", min: 1, value: 1 })),
    h("label", null, "Acks", modes("leader")),
  ], (data) => ({ topic: data.get("topic"), partitions: Number(data.get("partitions")), replicas: Number(data.get("replicas")), acks: data.get("acks") }));
}

function acksForm(found, partition, page) {
  return changeForm("Change the ack mode", "acks", page, h("label", null, "Acks", modes(partition.acks)),
    (data) => ({ topic: found.name, partition: partition.name, acks: data.get("acks") }));
}

function sendForm(found, page) {
  return h("div", { class: "card" }, changeForm("Send a record", "send", page, [
    h("label", null, "Key", h("input", { name: "key" })),
    h("label", null, "Value", h("textarea", { name: "value", rows: 2, cols: 40 })),
  ], (data) => ({ topic: found.topic, key: data.get("key"), value: data.get("value") })));
}

// --- sign-in -------------------------------------------------------------------------------------

export function signIn(page) {
  return h("form", { class: "card signin", onsubmit: (event) => { event.preventDefault(); page.signIn(new FormData(event.target).get("token")); } },
    h("h1", null, "This page takes a token"),
    h("p", { class: "quiet" }, "pymq ui prints one; where there are keys, it is in the file NAME.token beside them."),
    h("label", null, "Token", h("input", { name: "token", type: "password", autocomplete: "current-password", required: true })),
    h("p", null, h("button", { class: "main" }, "Come in")));
}
