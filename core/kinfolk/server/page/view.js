// The status as elements. Texts are set as texts, so a name is never read as HTML.

import { NONE, bytes, count, duration, line, percent, short, speed } from "./numbers.js";

const SVG = "http://www.w3.org/2000/svg";
const shown = new Map();

/** Draw every part of the page whose numbers have changed. */
export function draw(status) {
  document.title = `${status.model.name} – kinfolk`;
  part("model", status.model.name, (name) => [name]);
  part("about", about(status), (text) => [text]);
  part("now", now(status), figures);
  part("slots", [status.running, status.slots], ([running, slots]) => slotTable(running, slots));
  part("waiting", [status.waiting, status.waiting_requests], waitingTable);
  part("speeds", status.speeds, charts);
  part("cache-figures", cacheFigures(status.cache), figures);
  part("cache", status.cache.places, cacheTable);
  optional("kvflash", status.kvflash && kvflash(status.kvflash));
  optional("speculation", status.speculation && speculation(status.speculation));
  optional("compression", status.compression && compression(status.compression));
  part("recent", [status.recent, status.recent.map((each) => ago(status, each))], recentTable);
}

function part(id, value, make) {
  const text = JSON.stringify(value);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  document.getElementById(id).replaceChildren(...make(value));
}

function optional(id, value) {
  document.getElementById(id).closest("section").hidden = !value;
  if (value) part(id, value, figures);
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function figures(pairs) {
  return pairs.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value)),
  );
}

/** Columns are [title, of(row), is it a number]; `of` gives a text or an element. */
function table(columns, rows, nothing) {
  if (!rows.length) return [element("p", { className: "none" }, nothing)];
  const align = (column) => (column[2] ? "number" : "");
  const head = columns.map((column) =>
    element("th", { scope: "col", className: align(column) }, column[0]),
  );
  const body = rows.map((row) =>
    element(
      "tr",
      {},
      ...columns.map((column) => element("td", { className: align(column) }, column[1](row))),
    ),
  );
  return [
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...body),
    ),
  ];
}

function about(status) {
  const { family, architecture, device, context } = status.model;
  const kind = family === architecture ? family : `${family} (${architecture})`;
  return `${kind} on ${device}, context ${count(context)} tokens, kinfolk ${status.version}`;
}

function now({ time, server, engine, running, slots, waiting_requests: waiting }) {
  const decoding = running.filter((each) => each.generated > 0);
  const total = decoding.reduce((sum, each) => sum + (each.tokens_per_second ?? 0), 0);
  const answers = Object.entries(server.answers).map(([reason, n]) => `${count(n)} ${reason}`);
  return [
    ["running", `${running.length} of ${slots} slots`],
    ["waiting", count(waiting)],
    ["in flight", `${count(server.in_flight)} of at most ${count(server.capacity)}`],
    ["generating", decoding.length ? speed(total) : NONE],
    ["generated", `${count(server.generated_tokens)} tokens`],
    ["prompts computed", `${count(engine.prefill_rows)} tokens`],
    ["steps", `${count(engine.steps)} (${count(engine.replays)} captured)`],
    ["preemptions", count(engine.preemptions)],
    ["answers", answers.join(", ") || "none yet"],
    ["up", time - server.started < 60 ? "less than a minute" : minutes(time - server.started)],
    ["state", server.draining ? "shutting down" : engine.parked ? "parked" : "serving"],
  ];
}

function minutes(seconds) {
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : duration(seconds);
}

/** How far a request is: through its prompt, then through its answer. */
function progress({ prompt, position, generated, left }) {
  const [done, all] = generated ? [generated, generated + left] : [position, prompt];
  const label = generated ? "of the longest answer" : "of the prompt";
  const bar = element("progress", { max: Math.max(1, all), value: Math.min(done, all) });
  bar.setAttribute("aria-label", `${percent(done, all)} ${label}`);
  return bar;
}

const REQUEST = [
  ["state", (each) => each.state],
  ["position", (each) => count(each.position), true],
  ["prompt", (each) => count(each.prompt), true],
  ["reused", (each) => count(each.reused), true],
  ["answer", (each) => count(each.generated), true],
  ["at most", (each) => count(each.generated + each.left), true],
  ["priority", (each) => count(each.priority), true],
];

function slotTable(running, slots) {
  const columns = [
    ["slot", (each) => count(each.slot), true],
    ...REQUEST,
    ["tokens/s", (each) => short(each.tokens_per_second), true],
    ["accept length", (each) => short(each.accept_length), true],
    ["progress", progress],
  ];
  return table(columns, running, slots === 1 ? "The slot is free." : `All ${slots} slots are free.`);
}

function waitingTable([waiting, requests]) {
  const made = table(REQUEST, waiting, "No request waits.");
  if (requests > waiting.length) {
    const rest = count(requests - waiting.length);
    made.push(element("p", { className: "none" }, `and ${rest} more`));
  }
  return made;
}

function charts({ bin_seconds: seconds, generated, prompt }) {
  return [
    chart("generated", generated, seconds),
    chart("prompts computed", prompt, seconds),
  ];
}

function chart(name, values, seconds) {
  const seen = values.filter((value) => value !== null);
  const most = seen.length ? Math.max(...seen) : 0;
  const last = seen.length ? seen[seen.length - 1] : null;
  const text = seen.length
    ? `${name}: ${speed(last)} now, at most ${speed(most)}; a point is ${seconds} s`
    : `${name}: nothing seen yet`;
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", "0 0 100 100");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", text);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", line(values));
  picture.append(path);
  return element("figure", {}, picture, element("figcaption", {}, text));
}

function reasons(drops) {
  const named = Object.entries(drops).filter(([, n]) => n);
  return named.map(([reason, n]) => `${count(n)} ${reason.replaceAll("_", " ")}`).join(", ");
}

function cacheFigures(cache) {
  return [
    ["requests looked up", count(cache.lookups)],
    ["found", `${count(cache.hits)} (${percent(cache.hits, cache.lookups)})`],
    ["reused", `${count(cache.tokens)} tokens`],
    ["left the device", count(cache.demotions)],
    ["dropped", reasons(cache.drops) || "none"],
    ...(Object.keys(cache.disk_drops).length
      ? [["not on the disk", reasons(cache.disk_drops) || "none"]]
      : []),
  ];
}

function ofMost(value, most, format) {
  return most ? `${format(value)} of ${format(most)}` : format(value);
}

function copies(moved) {
  if (!moved) return NONE;
  return moved.bytes === null ? count(moved.count) : `${count(moved.count)} (${bytes(moved.bytes)})`;
}

function cacheTable(places) {
  const columns = [
    ["place", (each) => each.place],
    ["prefixes", (each) => ofMost(each.entries, each.most_entries, count), true],
    ["bytes", (each) => ofMost(each.bytes, each.most_bytes, bytes), true],
    ["hits", (each) => count(each.hits), true],
    ["tokens reused", (each) => count(each.tokens), true],
    ["written", (each) => copies(each.written), true],
    ["read", (each) => copies(each.read), true],
  ];
  return table(columns, places, "Nothing is kept.");
}

function kvflash(paged) {
  const there = paged.resident_chunks;
  const all = there + paged.away_chunks;
  return [
    ["budget", `${count(paged.budget_tokens)} tokens a request`],
    ["paged now", `${count(paged.sequences)} of the running`],
    ["on the device", `${count(there * paged.chunk_tokens)} tokens (${percent(there, all)})`],
    ["away", `${count(paged.away_chunks * paged.chunk_tokens)} tokens`],
    ["evicted", `${count(paged.evictions)} chunks`],
    ["recalled", `${count(paged.recalls)} chunks`],
    ["chosen anew", paged.scorers ? `${count(paged.selections)} times` : "never: by recency"],
    ...(paged.scorer_failures ? [["scorers failed", count(paged.scorer_failures)]] : []),
  ];
}

function speculation(drafts) {
  return [
    ["drafts by", drafts.drafters.join(", ")],
    ["accept length", drafts.accept_length === null ? NONE : `${short(drafts.accept_length)} tokens a step`],
    ["accepted", drafts.accept_rate === null ? NONE : `${short(100 * drafts.accept_rate)} % of what could be`],
    ["drafting steps", count(drafts.steps)],
    ["drafted", `${count(drafts.drafted)} tokens`],
    ["failed", count(drafts.failures)],
  ];
}

function compression(counts) {
  const skipped = Object.fromEntries(
    Object.entries(counts)
      .filter(([name]) => name.startsWith("skipped_"))
      .map(([name, n]) => [name.slice("skipped_".length), n]),
  );
  return [
    ["compressed", `${count(counts.prompts ?? 0)} prompts`],
    ["before", `${count(counts.original_tokens ?? 0)} tokens`],
    ["after", `${count(counts.compressed_tokens ?? 0)} tokens`],
    ["read in full", reasons(skipped) || "none"],
  ];
}

function ago(status, each) {
  const seconds = status.time - each.ended;
  return seconds < 60 ? "just now" : `${minutes(seconds)} ago`;
}

function recentTable([recent, times]) {
  const columns = [
    ["ended", (each) => times[recent.indexOf(each)]],
    ["reason", (each) => each.reason],
    ["prompt", (each) => count(each.prompt), true],
    ["reused", (each) => (each.reused ? `${count(each.reused)} (${each.reused_from})` : "0"), true],
    ["first token", (each) => `${short(each.first_token_seconds)} s`, true],
    ["answer", (each) => count(each.generated), true],
    ["tokens/s", (each) => short(each.tokens_per_second), true],
    ["accept length", (each) => short(each.accept_length), true],
    ["exact", (each) => (each.exact ? "yes" : "no")],
  ];
  return table(columns, recent, "None yet.");
}
