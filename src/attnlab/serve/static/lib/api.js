// Requests to the server, or to the answers that a static site holds. Errors have one line for the user.
import { IS_STATIC, ROOT } from "./address.js";

export class ApiError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const CUT = "The answer of the server ended too early: try again.";

/** @param {Response} response */
const refused = async (response) => {
  if (IS_STATIC) return new ApiError("This is not part of the site, which has no server: use `attnlab serve`.", response.status);
  const { error } = await response.json().catch(() => ({ error: "" }));
  return new ApiError(error || `The server answered ${response.status}.`, response.status);
};

/**
 * @param {string} path
 * @param {RequestInit} [options]
 */
const send = async (path, options = {}) => {
  let response;
  try {
    response = IS_STATIC
      ? await fetch(`${ROOT}api/${path.split("?")[0].replaceAll("%2F", "/")}.json`, { signal: options.signal })
      : await fetch(`${ROOT}api/${path}`, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error instanceof DOMException) throw error;
    throw new ApiError(IS_STATIC ? "The site does not answer: check the connection." : "The server does not answer: is `attnlab serve` still running?", 0);
  }
  if (!response.ok) throw await refused(response);
  return response;
};

/** @param {unknown} body @param {AbortSignal} [signal] @returns {RequestInit} */
const posted = (body, signal) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
  signal,
});

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export const get = async (path, signal) => (await send(path, { signal })).json();

/** @param {string} path @param {unknown} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export const post = async (path, body, signal) => (await send(path, posted(body, signal))).json();

/**
 * Posts, and calls `receive` with every line of the answer as it arrives. An error may be the answer, or its last line.
 * @param {string} path
 * @param {unknown} body
 * @param {(value: any) => void} receive
 * @param {AbortSignal} [signal]
 */
export const stream = async (path, body, receive, signal) => {
  const response = await send(path, posted(body, signal));
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error instanceof DOMException ? error : new ApiError(CUT, 0);
    });
    rest += decoder.decode(value, { stream: !done });
    const lines = rest.split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const item = JSON.parse(line);
      if (item && typeof item === "object" && "error" in item && "status" in item) throw new ApiError(item.error, item.status);
      receive(item);
    }
    if (done && rest.trim()) throw new ApiError(CUT, 0);
    if (done) return;
  }
};

/**
 * Calls `receive` with every server-sent event; returns what ends it. Browsers connect again by themselves, unless refused.
 * @param {string} path
 * @param {(value: any) => void} receive
 */
export const events = (path, receive) => {
  const source = new EventSource(`${ROOT}api/${path}`);
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) throw new ApiError("This page is no longer kept up to date: reload it.", 0);
  };
  return () => source.close();
};
