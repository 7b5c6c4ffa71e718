// The page: receives the events of the stream, remembers them, and passes them to the drawings.

import { Chart, Sight } from "./chart.js";
import { fillSelect, find, make, say } from "./dom.js";
import { Events } from "./events.js";
import { showFigures } from "./figures.js";
import { UNKNOWN, counted, digits, duration, percent } from "./format.js";
import { Stream } from "./stream.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Workers } from "./workers.js";

const KEPT_ROWS = 60;
const SILENT = 20; // seconds without an iteration after which the page says so

const wanted = readAddress(); // the job, the worker and the other job that the address names
const state = { jobs: null, job: null, now: null, course: null, other: null, rows: [], worker: null, heard: Date.now(), gone: false };

const plainAxis = (caption) => () => ({ caption, text: digits });
const timeAxis = (top) => (top < 1 ? { caption: "milliseconds", text: (value) => digits(1000 * value) } : { caption: "seconds", text: digits });
const share = (value) => percent(value, 0);

const sight = new Sight((range) => { find("whole").disabled = find("wider").disabled = range === null; });
const chart = (name, options) => new Chart(find(name), find(`${name}-legend`), sight, options);
const charts = {
  times: chart("times", { axis: timeAxis, format: duration, nothing: "no iteration has a known time yet" }),
  sizes: chart("sizes", { axis: plainAxis("samples"), format: digits, nothing: "no iteration yet" }),
  speeds: chart("speeds", { axis: plainAxis("samples per second"),
    format: (value) => (value === null ? UNKNOWN : `${digits(value)}/s`), nothing: "no speed is known" }),
  usage: chart("usage", { axis: () => ({ caption: "share", text: share }), format: share, most: 1, nothing: "CPU and memory are not known" }),
};
const timeline = new Timeline(find("timeline"), find("timeline-readout"), chooseWorker);
const workers = new Workers(find("table"), chooseWorker);
const events = new Events(find("events"), find("plans"));
const stream = new Stream({ event: take, state: connected, refused });

const HANDLERS = { jobs: takeJobs, job: takeJob, now: takeNow, course: takeCourse, other: takeOther };

function take(name, data) {
  HANDLERS[name]?.(data);
  document.documentElement.dataset.ready = String(state.now !== null && state.course !== null);
}

function takeJobs(data) {
  state.jobs = data;
  const options = data.jobs.map(({ key, job, place, state: how }) => ({ value: key, text: `${job} (${place}): ${how}` }));
  fillSelect(find("jobs"), options, data.chosen ?? "");
  const others = [{ value: "", text: "no other run" }, ...options.filter(({ value }) => value !== data.chosen)];
  fillSelect(find("others"), others, others.some(({ value }) => value === wanted.other) ? wanted.other : "");
  find("help").hidden = data.jobs.length > 0;
  find("remedies").replaceChildren(...data.remedies.flatMap(([words, line]) => [
    make("dt", { text: words }), make("dd", {}, make("code", { text: line }))]));
  showState();
}

function takeJob(job) {
  if (state.job?.run !== job.run || state.job?.key !== job.key) forget();
  state.job = job;
  find("content").hidden = false;
  document.title = `${job.job} - Evenstep`;
  say(find("job"), job.job);
  say(find("source"), job.source);
  find("source").dataset.source = job.source;
  say(find("means"), job.means);
  const began = job.created === null ? "" : `, begun ${job.created}`;
  say(find("details"), `${counted(job.total, "sample")} an iteration, scheme ${job.scheme}, policy ${job.policy}, predictor ${job.predictor}${began}`);
  showWorkers();
}

function takeNow(now) {
  if (state.now === null || now.num_iterations !== state.now.num_iterations) state.heard = Date.now();
  // Rows from before a reconnection are already known.
  const known = state.rows.length ? state.rows[state.rows.length - 1].number : -1;
  const rows = now.rows.filter(({ number }) => number > known);
  // The first rows of a log that was read up to its end since are none of the last iterations.
  const outdated = state.now?.progress < 1 && rows.length > 0 && rows[0].number > known + 1;
  state.rows = [...(outdated ? [] : state.rows), ...rows].slice(-KEPT_ROWS);
  const unseen = now.num_events - (state.numEvents ?? 0);
  events.add(unseen > 0 ? now.events.slice(-unseen) : []);
  state.numEvents = now.num_events;
  state.now = now;
  showFigures(now, state.job.workers, chooseWorker);
  showWorkers();
  showState();
}

function takeCourse(course) {
  state.course = course;
  if (state.worker !== course.worker.worker) {
    state.worker = course.worker.worker;
    showWorkers();
  }
  showCourse();
}

// The history of the second run, which is drawn over that of the first.
function takeOther(other) {
  state.other = other;
  showCourse();
}

function forget() {
  Object.assign(state, { now: null, course: null, other: null, rows: [], numEvents: 0, heard: Date.now() });
  events.clear();
  workers.reset();
  sight.reset();
}

function showWorkers() {
  const { job, now, rows, worker } = state;
  if (job === null || now === null) return;
  fillSelect(find("workers"), job.workers.map((name, i) => ({ value: String(i), text: name })), String(worker ?? ""));
  for (const name of document.querySelectorAll(".chosen-name")) say(name, job.workers[worker] ?? "");
  timeline.set(rows, now, job.workers, worker);
  workers.set(job.workers, now, worker);
}

function showCourse() {
  const { course, job, other } = state;
  if (course === null || job === null) return;
  const { iterations: x, worker, every } = course;
  const base = { x, every, marks: events.marks };
  const band = (span, label) => (every > 1 && span ? [{ low: span.least, high: span.most, colour: "run-band", label }] : []);
  const second = (values) => (other === null || !values ? []
    : [{ label: `${nameOf(other.key)} (${other.source})`, name: "other run", x: other.iterations, values, colour: "other", dash: [6, 3], width: 1.2 }]);
  charts.times.set({ ...base, bands: band(course.iteration_times, "smallest to largest"),
    lines: [
      { label: "plain BSP (estimate)", name: "plain BSP", values: course.plain, colour: "plain", dash: [6, 4] },
      { label: "optimum (estimate)", name: "optimum", values: course.optimum, colour: "optimum", dash: [2, 3] },
      ...second(other?.iteration_times),
      { label: "this run", values: course.iteration_times.mean, colour: "run", width: 1.8 },
    ],
    extra: [{ label: "waiting", values: course.waiting_shares, format: (value) => percent(value) }] });
  charts.sizes.set({ ...base, ...sizeLines(course, job, second(other?.batch_sizes)) });
  charts.speeds.set({ ...base, bands: band(worker.speeds),
    lines: known([["actual", worker.speeds?.mean, "run"], ["predicted", worker.predicted_speeds, "predicted", [5, 3]]]) });
  const usage = [worker.cpu, worker.memory, worker.device_memory].some((values) => values?.some((value) => value !== null));
  find("usage").closest("section").hidden = !usage;
  find("speeds").closest("section").classList.toggle("wide", !usage);
  charts.usage.set({ ...base, bands: [],
    lines: known([["CPU available", worker.cpu, "run"], ["memory free", worker.memory, "run", [6, 3]],
      ["device memory used", worker.device_memory, "run", [2, 3], "device used"]]) });
}

// The name that tells a job from the one that is shown: its file, or its job if both have one place.
function nameOf(key) {
  const [entry, shown] = [key, state.job.key].map((one) => state.jobs.jobs.find((job) => job.key === one));
  return entry === undefined || entry.place === shown?.place ? entry?.job ?? state.other.job : entry.place;
}

function known(lines) {
  return lines.filter(([, values]) => values).map(([label, values, colour, dash, name]) => ({ label, values, colour, dash, name }));
}

// The chosen worker is drawn in the colour of the run, the others in grey, or as bands if they are many.
function sizeLines({ batch_sizes: { lines, bands }, worker: { worker: chosen } }, job, second) {
  const line = (worker) => ({ label: job.workers[worker], values: lines[worker],
    ...(Number(worker) === chosen ? { colour: "run", width: 2.4 } : { colour: "workers" }) });
  const drawn = Object.keys(lines).sort((a, b) => (Number(a) === chosen) - (Number(b) === chosen)).map(line);
  if (bands.length === 0) return { lines: [...drawn.slice(0, -1), ...second, ...drawn.slice(-1)], bands: [] };
  const [lowest, low, middle, high, highest] = bands;
  return {
    lines: [{ label: "median worker", name: "median", values: middle, colour: "workers" }, ...second, ...drawn],
    bands: [{ low: lowest, high: highest, colour: "workers-band", label: "90% of the workers" },
      { low, high, colour: "workers-band", label: "half of them" }],
  };
}

function showState() {
  const { kind, words, banner } = condition(state);
  say(find("state"), words);
  find("state").dataset.kind = find("banner").dataset.kind = kind;
  find("banner").hidden = !banner;
  say(find("banner"), banner ?? "");
}

// The state of the run and the connection, the worst problem first: a few words, and a banner if needed.
function condition({ gone, jobs, now, heard }) {
  const silence = Math.round((Date.now() - heard) / 1000);
  const listed = jobs?.jobs.find(({ key }) => key === jobs.chosen);
  if (gone) {
    const banner = "The dashboard's server is gone. The page shows the last data, and tries to connect again.";
    return { kind: "gone", words: "no connection", banner };
  }
  if (jobs?.problem) return { kind: "gone", words: "a problem", banner: `${jobs.problem}.` };
  if (now === null) return { kind: "quiet", words: "reading" };
  if (now.problem !== null) return { kind: "gone", words: "damaged", banner: `Stopped reading the log: ${now.problem} The lines before it are shown; to see the rest, repair or remove that line.` };
  if (now.progress < 0.999) {
    return { kind: "quiet", words: `reading: ${Math.floor(100 * now.progress)}%`, banner: skimmed(now) };
  }
  if (now.ended !== null) {
    const reason = now.ended ? `: ${now.ended}` : "";
    return { kind: "ended", words: "run ended", banner: `The run has ended${reason}. ${skimmed(now) ?? ""}` };
  }
  if (silence >= SILENT || listed?.state === "silent") {
    const words = silence >= SILENT ? `nothing new for ${silence} s` : "silent";
    return { kind: "quiet", words, banner: "There is nothing new: the run is slow, it hangs, or it was killed." };
  }
  return { kind: "live", words: "live", banner: skimmed(now) };
}

function skimmed({ every }) {
  return every > 1 ? `This log is long: about one in ${every} iterations is shown, and the last ones all.` : null;
}

function connected(how) {
  state.gone = how !== "open";
  if (how === "open") find("login").hidden = true;
  showState();
}

function refused(wrong) {
  find("login").hidden = false;
  find("content").hidden = true;
  find("token").focus();
  say(find("state"), wrong ? "this token is wrong" : "a token is needed");
}

function chooseWorker(worker) {
  state.worker = worker;
  showWorkers();
  remember();
}

function remember() {
  const parts = new URLSearchParams({ job: find("jobs").value });
  if (state.worker !== null) parts.set("worker", state.worker);
  if (wanted.other) parts.set("other", wanted.other);
  history.replaceState(null, "", `#${parts}`);
  stream.open(parts);
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const rules = { job: /^[0-9a-f]{12}$/, worker: /^\d{1,8}$/, other: /^[0-9a-f]{12}$/ };
  return Object.fromEntries(Object.entries(rules).filter(([name, rule]) => rule.test(given.get(name) ?? ""))
    .map(([name]) => [name, given.get(name)]));
}

function redrawAll() {
  showCourse();
  timeline.redraw();
}

find("jobs").addEventListener("change", () => {
  forget();
  state.worker = null;
  remember();
});
find("others").addEventListener("change", (event) => {
  wanted.other = event.target.value;
  state.other = null;
  showCourse();
  remember();
});
find("whole").addEventListener("click", () => sight.reset());
find("closer").addEventListener("click", () => charts.times.zoom(1 / 1.5));
find("wider").addEventListener("click", () => charts.times.zoom(1.5));
find("workers").addEventListener("change", (event) => chooseWorker(Number(event.target.value)));
find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.useToken(find("token").value.trim());
});
setInterval(showState, 1000);

startTheme(redrawAll);
stream.open(new URLSearchParams(Object.entries(wanted)));
