// The state of a view lives in the query of the address, so that a link shows what its sender saw.

/** The query of the address as plain values. */
export const readState = () => Object.fromEntries(new URLSearchParams(location.search));

/**
 * Replaces the query; empty values are left out.
 * @param {Record<string, string | number | boolean | null | undefined>} state
 */
export const writeState = (state) => {
  const kept = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  const query = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  history.replaceState(null, "", location.pathname + (query ? `?${query}` : ""));
};
