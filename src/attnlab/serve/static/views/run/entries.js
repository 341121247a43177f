// Entries of the list of runs: which are shown, in which order, and as which words. No DOM.
import { here } from "../../lib/address.js";

/**
 * @typedef {object} Entry
 * @property {string} name  Its path below the folder of runs.
 * @property {string} kind
 * @property {string} what
 * @property {string} state
 * @property {string} when
 * @property {string | null} preset
 * @property {string | null} mechanism
 * @property {string | null} task
 * @property {number | null} seed
 * @property {number | null} progress
 * @property {number | null} tokens
 * @property {number | null} seconds
 * @property {number | null} loss
 * @property {number | null} accuracy
 * @property {string} note
 * @property {Entry[]} runs
 */

/** An entry as the server sends it, under its path below the folder of runs. @param {any} sent @returns {Entry} */
export const received = (sent) => ({ ...sent, name: sent.path, when: new Date(1000 * sent.when).toISOString(), runs: sent.runs.map(received) });

/** @typedef {{ search?: string, kind?: string, state?: string }} Wanted */

/** The address of a run. @param {string} name */
export const address = (name) => here(`/runs/${name.split("/").map(encodeURIComponent).join("/")}`);

/** A run in a path of the server's interface: its slashes too are encoded, so that ".." in a name is no step up. @param {string} name */
export const encoded = (name) => encodeURIComponent(name);

/** The last part of a name. @param {string} name */
export const last = (name) => name.slice(name.lastIndexOf("/") + 1);

/**
 * Conditions as the server takes them, from a text such as "mechanism=dot train.lr >= 0.001".
 * @param {string} text
 */
export const conditions = (text) => text.replace(/\s*(!=|<=|>=|=|<|>)\s*/g, "$1").split(/\s+/).filter(Boolean);

/** @param {Entry} entry @param {string[]} words */
const mentions = (entry, words) => {
  const text = [entry.name, entry.what, entry.kind, entry.state, entry.mechanism, entry.preset, entry.task, entry.note].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
};

/**
 * The entries that are wanted; a study also if one of its runs is.
 * @param {Entry[]} entries
 * @param {Wanted} wanted
 */
export const choose = (entries, { search = "", kind = "", state = "" }) => {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return entries.filter((entry) =>
    (!kind || entry.kind === kind)
    && (!state || entry.state === state)
    && (mentions(entry, words) || entry.runs.some((one) => mentions(one, words))));
};

/** @param {Entry} entry @param {string} column @returns {string | number | null} */
const value = (entry, column) => {
  if (column === "result") return entry.accuracy ?? (entry.loss === null ? null : -entry.loss);
  if (column === "when") return Date.parse(entry.when);
  const found = /** @type {Record<string, any>} */ (entry)[column];
  return found === "" || found === undefined ? null : found;
};

/**
 * The entries by a column; those without a value come last in either direction.
 * @param {Entry[]} entries
 * @param {string} column
 * @param {boolean} descending
 */
export const arrange = (entries, column, descending) => {
  const keyed = entries.map((entry) => /** @type {const} */ ([value(entry, column), entry]));
  const present = keyed.filter(([key]) => key !== null);
  present.sort(([one], [other]) => {
    const order = typeof one === "number" && typeof other === "number" ? one - other
      : String(one).localeCompare(String(other), "en", { numeric: true });
    return descending ? -order : order;
  });
  return [...present, ...keyed.filter(([key]) => key === null)].map(([, entry]) => entry);
};

/** The main figure. @param {Entry} entry */
export const figure = (entry) => {
  if (entry.accuracy !== null) return `${(100 * entry.accuracy).toFixed(1)} %`;
  return entry.loss !== null ? `loss ${entry.loss.toFixed(3)}` : "";
};

/**
 * The state in words, with the share that is done and the time left; of a study, those of the run that trains.
 * @param {{ kind?: string, state: string, progress: number | null, seconds?: number | null, what?: string, name?: string, runs?: Entry[] }} entry
 * @returns {string}
 */
export const stateWords = ({ kind = "run", state, progress, seconds = null, what = "", runs = [] }) => {
  const training = runs.find((run) => run.state === "active");
  if (state === "active" && training) return `${stateWords({ ...training, runs: [] })}, ${last(training.name)}`;
  const share = progress === null || state === "complete" ? "" : ` ${Math.floor(100 * progress)} %`;
  const left = progress && seconds !== null ? `, ${duration((seconds * (1 - progress)) / progress)} left` : "";
  if (state === "active") return `training${share}${left}`;
  if (state === "stopped") return `stopped${share && ` at${share}`}`;
  return state || (kind === "foreign" ? "not an attnlab folder" : what);
};

/** @param {number | null} seconds */
export const duration = (seconds) => {
  if (seconds === null) return "";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
};

/** @param {number | null} count */
export const amount = (count) => {
  if (count === null) return "";
  const [size, unit] = count >= 1e9 ? [1e9, " G"] : count >= 1e6 ? [1e6, " M"] : count >= 1e4 ? [1e3, " k"] : [1, ""];
  return size === 1 ? String(count) : `${Number((count / size).toPrecision(3))}${unit}`;
};

const EXPORTED = /** @type {const} */ (["name", "kind", "what", "state", "mechanism", "preset", "task", "seed", "accuracy", "loss", "tokens", "seconds", "progress", "when", "note"]);

/** Rows of a table to export, with exact numbers: a heading, then every entry with its runs. @param {Entry[]} entries @returns {string[][]} */
export const exported = (entries) => {
  /** @type {(entry: Entry) => string[][]} */
  const rows = (entry) => [EXPORTED.map((column) => String(entry[column] ?? "")), ...entry.runs.flatMap(rows)];
  return [[...EXPORTED], ...entries.flatMap(rows)];
};

/** A moment as local date and time. @param {string} when */
export const moment = (when) => {
  const date = new Date(when);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
};
