"use strict";
// All text is set with textContent, so that no reply of the server is interpreted as HTML.
const at = (id) => document.getElementById(id);
const clear = (...ids) => ids.forEach((id) => at(id).replaceChildren());
const SVG = "http://www.w3.org/2000/svg";
const MOST_DRAWN = 40, MOST_HISTORY = 50;
let datasets = [], answered = null, questions = new Map(), asker = "";

function fillIn(element, text, attributes) {
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
const make = (tag, text, attributes = {}) => fillIn(document.createElement(tag), text, attributes);
const draw = (tag, attributes, text) => fillIn(document.createElementNS(SVG, tag), text, attributes);

// --- Calls, messages and progress ---

async function call(method, path, body) {
  const response = await fetch(path, {
    method,
    headers: { authorization: "Bearer " + at("token").value.trim(), "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch(() => { throw new Error("the service cannot be reached; is it running?"); });
  const data = await response.json().catch(() => { throw new Error("the service sent a reply that is not JSON; status " + response.status); });
  if (!response.ok) throw new Error(data.error.message);
  return data;
}

function say(id, text, look = "") {
  at(id).textContent = text;
  at(id).className = look;
}

function showProgress(text) {
  const began = Date.now();
  const show = () => say("message", text + " " + Math.floor((Date.now() - began) / 1000) + " s", "busy");
  show();
  return setInterval(show, 250);
}

function allow(asking) { ["quote", "answer"].forEach((id) => { at(id).disabled = !asking; }); }

function attempt(work, id, progress) {
  return async (event) => {
    event.preventDefault();
    say("problem", ""); say("message", "");
    showNothing();
    const clock = progress ? showProgress(progress) : 0;
    if (progress) allow(false);
    let text = "", look = "";
    try { text = await work() || ""; } catch (problem) { text = problem.message; look = "bad"; }
    clearInterval(clock);
    say("message", "");
    say(id, text, look);
    allow(datasets.length > 0);
  };
}

function showNothing() {
  answered = null;
  clear("result", "cost", "notes", "charts");
  at("outcome").hidden = at("csv").hidden = true;
}

// --- The account: datasets, budget and history ---

async function connect() {
  if (at("token").value !== asker) questions = new Map();
  asker = at("token").value;
  datasets = [];
  clear("dataset", "tables", "budget", "history");
  allow(false);
  at("dataset").disabled = true;
  datasets = (await call("GET", "v1/datasets")).datasets;
  at("dataset").replaceChildren(...datasets.map((each) => make("option", each.name)));
  at("dataset").disabled = datasets.length === 0;
  await choose();
  return datasets.length ? "" : "This account may query no dataset.";
}

async function choose() {
  const chosen = datasets.find((each) => each.name === at("dataset").value);
  const tables = Object.entries(chosen ? chosen.tables : {});
  at("tables").replaceChildren(...tables.flatMap(([name, table]) => {
    const columns = make("dl");
    for (const [column, domain] of Object.entries(table.columns)) columns.append(make("dt", column), make("dd", domain));
    return [make("h3", name + (table.private ? "" : " (public)")), columns];
  }));
  const first = tables.find(([, table]) => table.private);
  at("query").placeholder = first ? "SELECT COUNT(*) AS n FROM " + first[0] : "";
  if (chosen) await refresh();
}

const refresh = () => Promise.all([showBudget(), showHistory()]);
const path = (name, more = "") => "v1/" + name + "?dataset=" + encodeURIComponent(at("dataset").value) + more;

async function showBudget() {
  const balances = (await call("GET", path("budget"))).items;
  at("budget").replaceChildren(...balances.flatMap((each) => Object.keys(each.limit).filter((part) => Number(each.limit[part])).map((part) => {
    const name = [each.level, each.name, each.unit, each.window, part].filter(Boolean).join(" ");
    const label = make("label", name + ": " + amount(each.spent[part]) + " of " + amount(each.limit[part]) + " spent");
    label.append(make("meter", undefined, { min: 0, max: Number(each.limit[part]), value: Number(each.spent[part]) }));
    return label;
  })));
}

// The service has the cost of a question and its digest; this tab has the texts by digest, and forgets them for another token.
const remember = (result, question) => result.releases.forEach((release) => questions.set(release.digest, question));

async function showHistory() {
  const entries = (await call("GET", path("history", "&limit=" + MOST_HISTORY))).items.reverse();
  fillTable("history", [["time"], ["question"], ["cost"], [""]], entries.map((entry) => {
    const question = questions.get(entry.digest), text = make("td"), again = make("td");
    if (question) {
      text.append(make("code", question.query));
      const button = make("button", "Ask again", { type: "button", class: "quiet" });
      button.addEventListener("click", () => fillQuestion(question));
      again.append(button);
    } else text.textContent = entry.account === "kernel" ? "opening the dataset, once" : "asked by " + entry.account + ", not in this tab";
    if (!entry.answered) text.append(" (charged, and not answered)");
    return [make("td", entry.time.replace("T", " ").replace("Z", "")), text, make("td", cost([entry.losses])), again];
  }));
}

function fillQuestion(question) {
  at("query").value = question.query;
  at("kind").value = question.kind;
  at("epsilon").value = question.amount;
  at("query").focus();
}

// --- Quotes and answers ---

const readQuestion = () => ({ query: at("query").value, kind: at("kind").value, amount: at("epsilon").value.trim() });
const body = (question) => ({ dataset: at("dataset").value, query: question.query, [question.kind]: question.amount });

async function quote() {
  const quoted = await call("POST", "v1/quote", body(readQuestion()));
  fillTable("result", [["column"], ["expected error"]], quoted.expected.map((each) => [make("td", each.column), make("td", each.known ? "± " + each.text : each.text.replace("(", "(± "))]));
  const state = quoted.free ? "free: answered before" : quoted.affordable ? "affordable" : "exceeds the budget";
  show("Quote", "cost " + cost([quoted.losses]) + "; " + state + "; answer after " + quoted.milliseconds / 1000 + " s", quoted.notes);
  return "Nothing was charged.";
}

async function answer() {
  const question = readQuestion();
  const result = await call("POST", "v1/answer", body(question));
  remember(result, question);
  answered = result;
  fillTable("result", result.columns.map((column) => [column.title, !column.key]), result.rows.map((row) =>
    result.columns.map((column) => column.key ? make("td", keyText(row[column.name])) : cell(row, column.name, result.rows))));
  const left = showCharts(result);
  show("Answer", (result.free ? "free: answered before" : "cost " + cost(result.losses)) + "; " + Math.round(result.confidence * 1000) / 10 + "% intervals", left);
  at("csv").hidden = false;
  await refresh();
}

function show(heading, costs, lines) {
  at("heading").textContent = heading;
  at("cost").textContent = costs;
  at("notes").replaceChildren(...lines.map((line) => make("li", line)));
  at("outcome").hidden = false;
}

function fillTable(id, heads, rows) {
  const head = make("tr");
  head.append(...heads.map(([name, number]) => make("th", name, { scope: "col", class: number ? "number" : "text" })));
  at(id).replaceChildren(head, ...rows.map((cells) => { const row = make("tr"); row.append(...cells); return row; }));
}

function cell(row, name, rows) {
  const value = row[name], low = row[name + "_low"], high = row[name + "_high"], data = make("td", undefined, { class: "number" });
  const write = formatter(rows, name, row);
  data.append(write(value));
  if (row[name + "_std_error"] !== 0 || low !== high) data.append(make("br"), make("small", "[" + write(low, "−∞") + ", " + write(high, "∞") + "]"));
  return data;
}

// --- Numbers as text ---

// A cost is a rational such as "1/2", shown as a decimal.
const rational = (text) => { const [over, under = 1] = String(text).split("/"); return over / under; };
const grouped = (value, options) => value.toLocaleString("en", options).replace("-", "−");
const amount = (text) => { const value = rational(text); return value && value < 1e-4 ? String(Number(value.toPrecision(6))) : grouped(value, { maximumSignificantDigits: 6 }); };
const cost = (losses) => losses.flatMap(Object.entries).map(([unit, loss]) => unit.replace(/ \(\w+\)$/, "") + ": " +
  Object.entries(loss).filter(([name]) => name !== "kind").map(([name, value]) => name + " " + (Array.isArray(value) ? "of " + value.length + " orders" : amount(value))).join(", ")).join("; ");
const keyText = (value) => value === null || value === undefined ? "NULL" : String(value);

// The digits that the error leaves meaningful, as in Python: none for columns of whole numbers.
function formatter(rows, name, row) {
  const parts = ["", "_low", "_high"], whole = rows.every((each) => parts.every((part) => Number.isInteger(each[name + part])));
  const half = (row[name + "_high"] - row[name + "_low"]) / 2;
  const digits = whole ? 0 : Number.isFinite(half) && half > 0 ? Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(half)))) : null;
  const options = digits === null ? { maximumSignificantDigits: 6 } : { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (value, missing = "NULL") => value === null || value === undefined ? missing : typeof value === "number" ? grouped(value, options) : String(value);
}

// --- Charts: bars from 0 for counts and sums, dots for others, and whiskers for the intervals ---

function showCharts(result) {
  const left = new Set(result.notes);
  at("charts").replaceChildren(...result.columns.filter((column) => !column.key).flatMap((column) => {
    const mine = result.notes.filter((line) => line.startsWith(column.name + ": "));
    mine.forEach((line) => left.delete(line));
    const why = make("ul", undefined, { class: "why" });
    why.append(...mine.map((line) => make("li", line)));
    const picture = chart(result, column);
    return picture ? [make("h3", column.title), picture, why] : [why];
  }));
  return [...left];
}

// A number, or the milliseconds of a date; null for anything else.
function toNumber(value) {
  if (typeof value === "number") return value;
  const time = typeof value === "string" && /^\d{4}-\d\d-\d\d/.test(value) ? Date.parse(value) : NaN;
  return Number.isNaN(time) ? null : time;
}

function chart(result, column) {
  const keys = result.columns.filter((each) => each.key).map((each) => each.name);
  const points = result.rows.slice(0, MOST_DRAWN).map((row) => ({
    label: keys.map((key) => keyText(row[key])).join(", ") || column.name,
    value: toNumber(row[column.name]), low: toNumber(row[column.name + "_low"]), high: toNumber(row[column.name + "_high"]),
  })).filter((point) => point.value !== null);
  if (!points.length) return null;
  const dates = typeof result.rows[0][column.name] === "string", scale = axis(points, column.additive, dates);
  const figure = make("figure", undefined, { class: "chart" });
  figure.append(picture(points, scale, column.additive));
  if (result.rows.length > MOST_DRAWN) figure.append(make("figcaption", "the first " + MOST_DRAWN + " of " + result.rows.length + " rows", { class: "faint" }));
  return figure;
}

// Bars start at 0. The axis of dots covers their intervals, and 0 only if that is near.
function axis(points, additive, dates) {
  const ends = points.flatMap((point) => [point.value, point.low, point.high]).filter((end) => end !== null);
  let low = Math.min(...ends), high = Math.max(...ends);
  const near = !dates && (low > 0 ? low < high / 3 : high < 0 && high > low / 3);
  if (additive || near) { low = Math.min(low, 0); high = Math.max(high, 0); }
  if (low === high) { low -= Math.abs(low) / 10 || 1; high += Math.abs(high) / 10 || 1; }
  const step = dates ? Math.ceil((high - low) / 4 / 864e5) * 864e5 : niceStep((high - low) / 4);
  if (!additive) { const margin = (high - low) / 50; if (low !== 0) low -= margin; if (high !== 0) high += margin; }
  const first = Math.ceil(low / step), last = Math.floor(high / step);
  const ticks = Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
  const write = (tick) => dates ? new Date(tick).toISOString().slice(0, 10) : grouped(Number(tick.toPrecision(12)), { notation: Math.max(Math.abs(low), Math.abs(high)) >= 1e6 ? "compact" : "standard", maximumSignificantDigits: 6 });
  return { low, high, step, ticks, write };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function picture(points, scale, bars) {
  const width = Math.max(240, at("ask").clientWidth - 32), row = 26, height = points.length * row + 24;
  const letters = Math.floor(width / 24), longest = Math.max(...points.map((point) => Math.min(letters, point.label.length)));
  const start = longest * 7.5 + 10, end = width - 26;
  const place = (value) => start + (end - start) * (value - scale.low) / (scale.high - scale.low);
  const svg = draw("svg", { viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": "the table above as a chart" });
  const every = Math.ceil(scale.ticks.length * 66 / (end - start));
  scale.ticks.forEach((tick) => {
    svg.append(draw("line", { class: "grid", x1: place(tick), x2: place(tick), y1: 0, y2: height - 20 }));
    if (Math.round(tick / scale.step) % every === 0) svg.append(draw("text", { class: "tick", x: place(tick), y: height - 5, "text-anchor": "middle" }, scale.write(tick)));
  });
  points.forEach((point, number) => svg.append(...mark(point, number * row + row / 2, place, scale, bars, letters)));
  return svg;
}

function mark(point, y, place, scale, bars, letters) {
  const low = place(point.low ?? scale.low), high = place(point.high ?? scale.high), open = point.low === null || point.high === null;
  const label = draw("text", { x: 0, y: y + 4 }, point.label.length > letters ? point.label.slice(0, letters - 1) + "…" : point.label);
  label.append(draw("title", {}, point.label));
  const line = (x1, x2, y1, y2) => draw("line", { class: open ? "whisker open" : "whisker", x1, x2, y1, y2 });
  const from = Math.min(place(0), place(point.value)), to = Math.max(place(0), place(point.value));
  return [label,
    bars ? draw("rect", { class: "bar", x: from, width: to - from, y: y - 8, height: 16 }) : draw("circle", { class: "dot", cx: place(point.value), cy: y, r: 5 }),
    line(low, high, y, y), ...(open ? [] : [line(low, low, y - 5, y + 5), line(high, high, y - 5, y + 5)])];
}

// --- CSV ---

// Texts are quoted; one that a spreadsheet would read as a formula gets an apostrophe before it.
function csvText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return '"' + text.replaceAll('"', '""') + '"';
}

function toCsv(result) {
  const names = result.columns.flatMap(({ name, key }) => key ? [name] : ["", "_std_error", "_low", "_high"].map((part) => name + part));
  return [names, ...result.rows.map((row) => names.map((name) => row[name]))].map((line) => line.map(csvText).join(",") + "\r\n").join("");
}

function download() {
  const link = make("a", undefined, { href: URL.createObjectURL(new Blob([toCsv(answered)], { type: "text/csv" })), download: "answer.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// --- Events ---

const run = attempt(answer, "message", "Running…");
at("who").addEventListener("submit", attempt(connect, "problem", "Connecting…"));
at("dataset").addEventListener("change", attempt(choose, "problem"));
at("quote").addEventListener("click", attempt(quote, "message", "Computing the cost…"));
at("ask").addEventListener("submit", run);
at("csv").addEventListener("click", download);
at("query").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); at("ask").requestSubmit(at("answer")); }
});
window.addEventListener("resize", () => { if (answered) showCharts(answered); });
