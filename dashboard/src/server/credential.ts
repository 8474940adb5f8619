// Shows the server whose page this is: a key from the address' fragment, which never leaves the browser, kept for this tab.

const NAME = "penstock-key";

/** What of the browser is needed; tests bring their own. */
export interface Place {
  hash(): string;
  clear(): void; // take the fragment out of the address, so that it is not copied along with it
  store: Pick<Storage, "getItem" | "setItem">;
}

const here: Place = {
  hash: () => location.hash,
  clear: () => history.replaceState(null, "", location.pathname + location.search),
  get store() {
    return sessionStorage;
  },
};

/** The key of this tab, or null on a server that wants none. */
export function key(place: Place = here): string | null {
  const given = new URLSearchParams(place.hash().slice(1)).get("key");
  if (given) {
    place.store.setItem(NAME, given);
    place.clear();
  }
  return given ?? place.store.getItem(NAME);
}
