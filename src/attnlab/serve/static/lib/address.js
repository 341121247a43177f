// Where the page is, and the state of a view: it lives in the query of the address, so that a link shows what its sender saw.

const page = globalThis.document; // unit tests have none
/** The folder of the page: "/" on a server, any folder for a static site. */
export const ROOT = page ? new URL("../../", import.meta.url).pathname : "/";
/** Whether these are the files that `attnlab page` wrote, without a server that computes. */
export const IS_STATIC = page?.documentElement.hasAttribute("data-static") ?? false;

/** The address of a path of the page, such as /runs?q=1. @param {string} path @param {string} [root] @param {boolean} [folders] whether every page is a folder */
export const here = (path, root = ROOT, folders = IS_STATIC) => {
  const [, place, query = ""] = /** @type {RegExpExecArray} */ (/^\/([^?]*)(.*)$/.exec(path));
  return `${root}${place}${folders && place ? "/" : ""}${query}`;
};

/** The query of the address as plain values. */
export const readState = () => Object.fromEntries(new URLSearchParams(location.search));

/**
 * Replaces the query, unless the view that asks for it has been left; empty values are left out.
 * @param {Record<string, string | number | boolean | null | undefined>} state
 * @param {AbortSignal} signal  that of the view
 */
export const writeState = (state, signal) => {
  if (signal.aborted) return;
  const kept = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  const query = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  history.replaceState(null, "", location.pathname + (query ? `?${query}` : ""));
};

/** @param {Uint8Array} bytes @param {CompressionStream | DecompressionStream} through */
const piped = async (bytes, through) =>
  new Uint8Array(await new Response(new Blob([/** @type {BlobPart} */ (bytes)]).stream().pipeThrough(through)).arrayBuffer());

/** A text as compressed letters and digits for the address. @param {string} text */
export const pack = async (text) => {
  const bytes = await piped(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
};

/** The text that was packed; rejects what is damaged. @param {string} packed */
export const unpack = async (packed) => {
  const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  return new TextDecoder().decode(await piped(bytes, new DecompressionStream("deflate-raw")));
};
