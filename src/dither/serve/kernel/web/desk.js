"use strict";
// The token lives in this tab's sessionStorage, which belongs to this port alone. All text is set with textContent.
const at = (id) => document.getElementById(id);

function make(tag, ...content) {
  const element = document.createElement(tag);
  element.append(...content);
  return element;
}

async function call(name, given = {}, secret = sessionStorage.getItem("token") || "") {
  const response = await fetch("/" + name, {
    method: "POST",
    headers: { authorization: "Bearer " + secret, "content-type": "application/json" },
    body: JSON.stringify(given),
  });
  const data = await response.json();
  if (!response.ok) throw new Error(data.error);
  return data;
}

const text = (value) => typeof value === "string" ? value : JSON.stringify(value);

function table(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return make("table", make("tr", ...names.map((name) => make("th", name))),
    ...rows.map((row) => make("tr", ...names.map((name) => make("td", name in row ? text(row[name]) : "")))));
}

function button(action, given = {}) {
  const element = make("button", [action, ...Object.values(given)].join(" "));
  element.addEventListener("click", () => attempt(async () => {
    const result = await call(action, given);
    at("result").replaceChildren(make("h2", action), table([result]));
    await show();
  }));
  return element;
}

async function show() {
  const status = await call("status"), accounts = await call("accounts");
  const parts = [make("p", "ledger head: " + status.head), make("h2", "Datasets")];
  for (const each of status.datasets) {
    parts.push(make("h3", each.name), table([each]), table(await call("budget", { dataset: each.name })));
    parts.push(...["unlock", "reset_latency", "corrections"].map((action) => button(action, { dataset: each.name })));
  }
  parts.push(make("h2", "Accounts"), table(accounts), ...accounts.map((each) => button("revoke", { name: each.name })));
  parts.push(make("h2", "Private log"), button("log"));
  at("desk").replaceChildren(...parts);
}

async function attempt(work) {
  at("message").textContent = "";
  at("result").replaceChildren();
  try { await work(); } catch (problem) { at("message").textContent = problem.message; }
}

async function open() {
  const code = location.hash.slice(1);
  history.replaceState(null, "", "/");
  if (code) sessionStorage.setItem("token", (await call("sign_in", {}, code)).token);
  await show();
}

attempt(open);
