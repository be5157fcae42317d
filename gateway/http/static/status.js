"use strict";
// Figures come from two readings of /metrics: what happened between them. Before there are two, since the start.
const PERIOD_MS = 2000;
const ROUTE = { route: "/v1/embeddings" };
const show = (id, text) => { document.getElementById(id).textContent = text; };

function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((l) => [l[1], l[2]]));
    samples.push({ name: match[1], labels, value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

const select = (samples, name, labels = {}) =>
  samples.filter((s) => s.name === name && Object.entries(labels).every(([key, value]) => s.labels[key] === value));
const sum = (samples, name, labels) => select(samples, name, labels).reduce((total, s) => total + s.value, 0);

function quantile(samples, before, q) {
  const name = "gateway_request_duration_seconds_bucket";
  const buckets = select(samples, name, ROUTE).map(({ labels, value }) => ({
    le: Number(labels.le.replace("Inf", "Infinity")),
    count: value - (before ? sum(before, name, { ...ROUTE, le: labels.le }) : 0),
  })).sort((a, b) => a.le - b.le);
  const total = buckets.length ? buckets[buckets.length - 1].count : 0;
  if (!total) return null;
  const index = buckets.findIndex((bucket) => bucket.count >= q * total);
  const low = index ? buckets[index - 1] : { le: 0, count: 0 };
  const high = buckets[index];
  if (!Number.isFinite(high.le)) return low.le;
  return low.le + (high.le - low.le) * (q * total - low.count) / (high.count - low.count);
}

const seconds = (value) => value === null ? "–" : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
const ratio = (part, all, digits, unit = "", factor = 1) => all > 0 ? (factor * part / all).toFixed(digits) + unit : "–";

// Only where there are several; one that is gone is NaN.
function showEndpoints(samples) {
  const endpoints = select(samples, "gateway_triton_endpoint_up").filter((s) => !Number.isNaN(s.value));
  document.getElementById("endpoints").hidden = !endpoints.length;
  document.querySelector("#endpoints tbody").replaceChildren(...endpoints.map(({ labels, value }) => {
    const row = document.createElement("tr");
    row.className = value ? "ready" : "unready";
    row.insertCell().textContent = labels.endpoint;
    row.insertCell().className = "state";
    row.insertCell().textContent = labels.model;
    return row;
  }));
}

let earlier = null;
async function refresh() {
  let samples;
  try {
    const answer = await fetch("metrics", { cache: "no-store" });
    samples = parse(await answer.text());
  } catch {
    document.getElementById("offline").hidden = false;
    return;
  }
  document.getElementById("offline").hidden = true;
  const at = performance.now();
  const before = earlier && earlier.samples;
  const more = (name, labels) => sum(samples, name, labels) - (before ? sum(before, name, labels) : 0);
  if (before) show("rate", (1000 * more("gateway_requests_total", ROUTE) / (at - earlier.at)).toFixed(1));
  const busy = before && more("gateway_requests_total", ROUTE) > 0;
  if (busy || !before) {
    show("p50", seconds(quantile(samples, before, 0.5)));
    show("p99", seconds(quantile(samples, before, 0.99)));
    show("rows", ratio(more("gateway_batch_rows_sum"), more("gateway_batch_rows_count"), 1));
    show("padding", ratio(more("gateway_tokens_total", { kind: "padding" }), more("gateway_tokens_total"), 0, " %", 100));
  }
  show("waiting", sum(samples, "gateway_queued_inputs"));
  show("slots", `${sum(samples, "gateway_busy_slots")} of ${sum(samples, "gateway_slots")}`);
  for (const row of document.querySelectorAll("tr[data-model]")) {
    row.className = sum(samples, "gateway_model_ready", { model: row.dataset.model }) ? "ready" : "unready";
  }
  showEndpoints(samples);
  earlier = { samples, at };
}

async function compare(event) {
  event.preventDefault();
  const field = (id) => document.getElementById(id).value;
  const answer = document.getElementById("answer");
  answer.className = "";
  answer.textContent = "…";
  const headers = { "content-type": "application/json" };
  if (field("key")) headers.authorization = `Bearer ${field("key")}`;
  const body = JSON.stringify({ model: field("model"), input: [field("first"), field("second")] });
  const started = performance.now();
  try {
    const response = await fetch("v1/embeddings", { method: "POST", headers, body });
    const content = await response.json();
    if (!response.ok) throw new Error(content.error.message);
    const [a, b] = content.data.map((item) => item.embedding);
    const dot = (x, y) => x.reduce((total, value, index) => total + value * y[index], 0);
    const cosine = dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
    const took = Math.round(performance.now() - started);
    answer.textContent = `cosine ${cosine.toFixed(4)} (${content.usage.prompt_tokens} tokens, ${took} ms)`;
  } catch (error) {
    answer.className = "error";
    answer.textContent = error.message;
  }
}

document.getElementById("try").addEventListener("submit", compare);
refresh();
setInterval(refresh, PERIOD_MS);
