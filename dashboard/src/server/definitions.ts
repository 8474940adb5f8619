// What the app declares: read at each connection, because the server may be a new one, and kept so that a reopened page has its cards at once.
import type { Client } from "./client";
import type { Graph, View } from "./documents";

export interface Definitions {
  views: View[];
  graph: Graph;
}

/** What of the browser is needed; tests bring their own. */
export type Place = Pick<Storage, "getItem" | "setItem">;

const NAME = "penstock-definitions";

export async function readDefinitions(client: Client, place: Place | null): Promise<Definitions> {
  const [{ views }, graph] = await Promise.all([client.read<{ views: View[] }>("views"), client.read<Graph>("graph")]);
  const definitions = { views, graph };
  try {
    place?.setItem(NAME, JSON.stringify(definitions));
  } catch {
    // no room: the next page starts empty
  }
  return definitions;
}

/** What the last page knew; null when it knew nothing, or what is there is no such thing. */
export function rememberedDefinitions(place: Place | null): Definitions | null {
  try {
    const found = JSON.parse(place?.getItem(NAME) ?? "null") as Definitions | null;
    const fits = Array.isArray(found?.views) && found.views.every(isView) && Array.isArray(found.graph?.nodes) && Array.isArray(found.graph.edges);
    return fits ? found : null;
  } catch {
    return null;
  }
}

function isView(view: View | null): boolean {
  return typeof view?.view === "string" && Array.isArray(view.key) && Array.isArray(view.columns);
}
