// The page: receives the events of the stream, remembers them, and passes them to the drawings.

import { Chart } from "./chart.js";
import { fillSelect, find, say } from "./dom.js";
import { Events } from "./events.js";
import { showFigures } from "./figures.js";
import { UNKNOWN, counted, digits, duration, percent } from "./format.js";
import { Stream } from "./stream.js";
import { colour, startTheme, workerColour } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Workers } from "./workers.js";

const KEPT_ROWS = 60;
const SILENT = 20; // seconds without an iteration after which the page says so

const state = { jobs: null, job: null, now: null, course: null, rows: [], worker: null, heard: Date.now(), gone: false };

const charts = {
  times: new Chart(find("times"), find("times-legend"), { format: duration, nothing: "no iteration has a known time yet" }),
  sizes: new Chart(find("sizes"), find("sizes-legend"), { format: digits, nothing: "no iteration yet" }),
  speeds: new Chart(find("speeds"), find("speeds-legend"), {
    format: (value) => (value === null ? UNKNOWN : `${digits(value)}/s`), nothing: "no speed is known" }),
  usage: new Chart(find("usage"), find("usage-legend"), {
    format: (value) => percent(value, 0), most: 1, nothing: "CPU and memory are not known" }),
};
const timeline = new Timeline(find("timeline"), find("timeline-readout"), chooseWorker);
const workers = new Workers(find("table"), chooseWorker);
const events = new Events(find("events"), find("plans"));
const stream = new Stream({ event: take, state: connected, refused });

const HANDLERS = { jobs: takeJobs, job: takeJob, now: takeNow, course: takeCourse };

function take(name, data) {
  HANDLERS[name]?.(data);
  document.documentElement.dataset.ready = String(state.now !== null && state.course !== null);
}

function takeJobs(data) {
  state.jobs = data;
  const options = data.jobs.map(({ key, job, place, state: how }) => ({ value: key, text: `${job} (${place}): ${how}` }));
  fillSelect(find("jobs"), options, data.chosen ?? "");
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
  state.rows = [...state.rows, ...now.rows.filter(({ number }) => number > known)].slice(-KEPT_ROWS);
  const unseen = now.num_events - (state.numEvents ?? 0);
  events.add(unseen > 0 ? now.events.slice(-unseen) : []);
  state.numEvents = now.num_events;
  state.now = now;
  showFigures(now);
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

function forget() {
  Object.assign(state, { now: null, course: null, rows: [], numEvents: 0, heard: Date.now() });
  events.clear();
  workers.by = null;
}

function showWorkers() {
  const { job, now, rows, worker } = state;
  if (job === null || now === null) return;
  fillSelect(find("workers"), job.workers.map((name, i) => ({ value: String(i), text: name })), String(worker ?? ""));
  timeline.set(rows, now.present, job.workers, worker);
  workers.set(job.workers, now, worker);
}

function showCourse() {
  const { course, job } = state;
  if (course === null || job === null) return;
  const { iterations: x, worker } = course;
  const marks = events.marks;
  const band = (span) => ({ low: span.least, high: span.most, colour: colour("band") });
  charts.times.set({ x, marks,
    bands: course.every > 1 ? [{ ...band(course.iteration_times), label: "smallest to largest" }] : [],
    lines: [
      { label: "plain BSP (estimate)", values: course.plain, colour: colour("plain"), dash: [6, 4] },
      { label: "optimum (estimate)", values: course.optimum, colour: colour("best"), dash: [2, 3] },
      { label: "this run", values: course.iteration_times.mean, colour: colour("accent"), width: 1.8 },
    ] });
  charts.sizes.set({ x, marks, ...sizeLines(course, job) });
  charts.speeds.set({ x, marks, bands: worker.speeds && course.every > 1 ? [band(worker.speeds)] : [],
    lines: known([["actual", worker.speeds?.mean, "accent"], ["predicted", worker.predicted_speeds, "late", [5, 3]]]) });
  charts.usage.set({ x, marks, bands: [],
    lines: known([["CPU", worker.cpu, "accent"], ["memory", worker.memory, "late"], ["device memory", worker.device_memory, "best"]]) });
}

function known(lines) {
  return lines.filter(([, values]) => values).map(([label, values, name, dash]) => ({ label, values, colour: colour(name), dash }));
}

function sizeLines({ batch_sizes: { lines, bands } }, job) {
  const drawn = Object.entries(lines).map(([worker, values]) => ({ label: job.workers[worker], values,
    colour: bands.length ? colour("late") : workerColour(Number(worker)) }));
  if (bands.length === 0) return { lines: drawn, bands: [] };
  const [lowest, low, middle, high, highest] = bands;
  return {
    lines: [{ label: "median worker", values: middle, colour: colour("accent") }, ...drawn],
    bands: [{ low: lowest, high: highest, colour: colour("band"), label: "90% of the workers" },
      { low, high, colour: colour("band"), label: "half of them" }],
  };
}

function showState() {
  const { kind, words, banner } = condition(state);
  say(find("state"), words);
  find("state").dataset.kind = kind;
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
  if (now.problem !== null) return { kind: "gone", words: "damaged", banner: `Stopped reading the log: ${now.problem}` };
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
  history.replaceState(null, "", `#${parts}`);
  stream.open(parts);
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
find("workers").addEventListener("change", (event) => chooseWorker(Number(event.target.value)));
find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.useToken(find("token").value.trim());
});
setInterval(showState, 1000);

startTheme(redrawAll);
const wanted = new URLSearchParams(location.hash.slice(1));
const query = new URLSearchParams();
if (/^[0-9a-f]{12}$/.test(wanted.get("job") ?? "")) query.set("job", wanted.get("job"));
if (/^\d{1,8}$/.test(wanted.get("worker") ?? "")) query.set("worker", wanted.get("worker"));
stream.open(query);
