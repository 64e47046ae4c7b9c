"use strict";
// All text is set with textContent, so that no reply of the server is interpreted as HTML.
const at = (id) => document.getElementById(id);
const say = (text) => { at("message").textContent = text; };

const clear = (...ids) => ids.forEach((id) => at(id).replaceChildren());

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

async function call(method, path, body) {
  const response = await fetch(path, {
    method,
    headers: { authorization: "Bearer " + at("token").value.trim(), "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const data = await response.json();
  if (!response.ok) throw new Error(data.error.message);
  return data;
}

function attempt(work) {
  return async (event) => {
    event.preventDefault();
    say("…");
    clear("result", "cost", "notes");
    try { await work(); } catch (problem) { say(problem.message); }
  };
}

const readQuery = () => ({ dataset: at("dataset").value, query: at("query").value, epsilon: at("epsilon").value.trim() });
let datasets = [];

async function connect() {
  clear("dataset", "tables", "budget");
  datasets = (await call("GET", "v1/datasets")).datasets;
  at("dataset").replaceChildren(...datasets.map((each) => make("option", each.name)));
  at("dataset").disabled = datasets.length === 0;
  say(datasets.length ? "" : "This account may query no dataset.");
  await choose();
}

async function choose() {
  const chosen = datasets.find((each) => each.name === at("dataset").value);
  const lines = [];
  for (const [name, table] of Object.entries(chosen ? chosen.tables : {})) {
    lines.push(make("dt", name + (table.private ? "" : " (public)")));
    for (const [column, domain] of Object.entries(table.columns)) lines.push(make("dd", column + ": " + domain));
  }
  at("tables").replaceChildren(...lines);
  if (chosen) await budget();
}

async function budget() {
  const balances = (await call("GET", "v1/budget?dataset=" + encodeURIComponent(at("dataset").value))).items;
  at("budget").replaceChildren(...balances.flatMap((each) => Object.keys(each.limit).map((part) => {
    const name = [each.level, each.name, each.unit, each.window, part].filter(Boolean).join(" ");
    const label = make("label", name + ": " + each.spent[part] + " of " + each.limit[part] + " spent");
    label.append(make("meter", undefined, { min: 0, max: Number(each.limit[part]) || 1, value: Number(each.spent[part]) }));
    return label;
  })));
}

async function quote() {
  const quoted = await call("POST", "v1/quote", readQuery());
  const rows = quoted.expected.map((each) => [each.column, each.needs_rows ? "depends on the size of the group" : "± " + format(each.half_width)]);
  table(["column", "expected error"], rows.map((row) => row.map((cell) => make("td", cell))));
  const state = quoted.free ? "free: answered before" : quoted.affordable ? "affordable" : "exceeds the budget";
  at("cost").textContent = cost([quoted.losses]) + "; " + state + "; answer after " + quoted.milliseconds + " ms";
  notes(quoted.notes);
  say("Nothing was charged.");
}

async function answer() {
  const result = await call("POST", "v1/answer", readQuery());
  const spread = result.columns.filter((column) => !column.key).map((column) => range(result.rows, column.name));
  table(result.columns.map((column) => column.name), result.rows.map((row) => {
    let place = 0;
    return result.columns.map((column) => column.key ? make("td", String(row[column.name])) : cell(row, column.name, spread[place++]));
  }));
  at("cost").textContent = (result.free ? "free: answered before" : cost(result.losses)) + "; " + result.confidence * 100 + "% intervals";
  notes(result.notes);
  say("");
  await budget();
}

// A cost is a rational such as "1/2", shown as a decimal.
const decimal = (text) => { const [over, under = 1] = text.split("/"); return format(over / under); };
const cost = (losses) => "cost " + losses.flatMap(Object.entries).map(([unit, loss]) => unit.replace(/ \(\w+\)$/, "") + ": " +
  Object.entries(loss).filter(([name]) => name !== "kind").map(([name, value]) => name + " " + (Array.isArray(value) ? "of " + value.length + " orders" : decimal(value))).join(", ")).join("; ");
const format = (value) => typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 5 }) : String(value);
const notes = (lines) => at("notes").replaceChildren(...lines.map((line) => make("li", line)));

function range(rows, name) {
  const ends = rows.flatMap((row) => [row[name + "_low"], row[name + "_high"], 0]).filter(Number.isFinite);
  return [Math.min(...ends), Math.max(...ends)];
}

function cell(row, name, [first, last]) {
  const low = row[name + "_low"], high = row[name + "_high"], data = make("td", format(row[name]) + " ", { class: "number" });
  if (Number.isFinite(low) && Number.isFinite(high) && last > first) {
    const place = (value) => 2 + 100 * (value - first) / (last - first);
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    picture.setAttribute("width", "104"); picture.setAttribute("height", "10");
    picture.setAttribute("role", "img"); picture.setAttribute("aria-label", format(low) + " to " + format(high));
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [key, value] of [["x1", place(low)], ["x2", place(high)], ["y1", 5], ["y2", 5], ["stroke", "currentColor"], ["stroke-width", 2]]) line.setAttribute(key, value);
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [key, value] of [["cx", place(row[name])], ["cy", 5], ["r", 3], ["fill", "currentColor"]]) dot.setAttribute(key, value);
    picture.append(line, dot);
    data.append(picture, make("br"), make("small", "[" + format(low) + ", " + format(high) + "]"));
  }
  return data;
}

function table(names, rows) {
  const head = make("tr");
  head.append(...names.map((name) => make("th", name, { scope: "col" })));
  at("result").replaceChildren(head, ...rows.map((cells) => { const row = make("tr"); row.append(...cells); return row; }));
}

at("who").addEventListener("submit", attempt(connect));
at("dataset").addEventListener("change", attempt(choose));
at("quote").addEventListener("click", attempt(quote));
at("ask").addEventListener("submit", attempt(answer));
