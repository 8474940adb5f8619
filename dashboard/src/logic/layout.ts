// Lays the graph out in layers, sources first, so that data is seen to flow one way with few crossings.
import type { Graph, GraphNode } from "../server/documents";

export interface Placed {
  node: GraphNode;
  layer: number;
  /** Place across the layer, in node units, centred on 0. */
  slot: number;
}

const SWEEPS = 4;

export function layout(graph: Graph): Placed[] {
  const layers = group(graph, depths(graph));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    const order = down ? layers.keys() : [...layers.keys()].reverse();
    for (const i of order) arrange(layers, i, graph, down);
  }
  return layers.flatMap((nodes, layer) => nodes.map((node, i) => ({ node, layer, slot: i - (nodes.length - 1) / 2 })));
}

/** The longest way from a source, so that every edge goes forward; an edge that closes a cycle is not followed. */
function depths(graph: Graph): Map<string, number> {
  const before = new Map<string, string[]>(graph.nodes.map((node) => [node.name, []]));
  for (const { from, to } of graph.edges) if (before.has(from)) before.get(to)?.push(from);
  const known = new Map<string, number>();
  const visit = (name: string, path: Set<string>): number => {
    const depth = known.get(name);
    if (depth !== undefined) return depth;
    const sources = (before.get(name) ?? []).filter((source) => !path.has(source));
    const result = Math.max(-1, ...sources.map((source) => visit(source, new Set(path).add(name)))) + 1;
    known.set(name, result);
    return result;
  };
  for (const node of graph.nodes) visit(node.name, new Set([node.name]));
  return known;
}

function group(graph: Graph, depth: Map<string, number>): GraphNode[][] {
  const layers: GraphNode[][] = [];
  for (const node of graph.nodes) (layers[depth.get(node.name) ?? 0] ??= []).push(node);
  return Array.from(layers, (nodes) => nodes ?? []);
}

/** Puts each node of a layer near the middle of its neighbours in the layers already arranged. */
function arrange(layers: GraphNode[][], index: number, graph: Graph, down: boolean): void {
  const place = new Map<string, number>();
  layers.forEach((nodes) => nodes.forEach((node, i) => place.set(node.name, i - (nodes.length - 1) / 2)));
  const middle = (name: string): number => {
    const near = graph.edges
      .filter((edge) => (down ? edge.to : edge.from) === name)
      .map((edge) => place.get(down ? edge.from : edge.to) ?? 0);
    return near.length > 0 ? near.reduce((sum, p) => sum + p, 0) / near.length : (place.get(name) ?? 0);
  };
  layers[index]?.sort((a, b) => middle(a.name) - middle(b.name));
}
