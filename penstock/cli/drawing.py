"""Draws an app's graph for people: as a tree in the terminal, or as Mermaid for a document."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.tree import Tree

_STYLES = {"source": "magenta", "stream": "cyan", "flow": "yellow", "view": "green", "channel": "blue"}
_SHAPES = {
    "source": ("[/", "/]"),
    "stream": ("([", "])"),
    "flow": ("{{", "}}"),
    "view": ("[(", ")]"),
    "channel": (">", "]"),
}


def tree(graph: dict[str, Any]) -> Tree:
    """What flows into what, from the sources down. A node with several inputs is drawn out under the
    first one."""
    root = Tree(f"[bold]{escape(graph['app'])}[/]", guide_style="dim")
    nodes = {node["name"]: node for node in graph["nodes"]}
    fed = {edge["to"] for edge in graph["edges"]}
    drawn: set[str] = set()
    for name in nodes:
        if name not in fed:
            _branch(root, name, nodes, graph["edges"], drawn)
    return root


def _branch(above: Tree, name: str, nodes: dict[str, Any], edges: list[dict[str, str]], drawn: set[str]) -> None:
    again = name in drawn
    drawn.add(name)
    branch = above.add(_label(nodes[name], again))
    for edge in () if again else edges:
        if edge["from"] == name:
            _branch(branch, edge["to"], nodes, edges, drawn)


def _label(node: dict[str, Any], again: bool) -> str:
    style = _STYLES[node["kind"]]
    first = (node["doc"] or "").strip().splitlines()
    doc = "(above)" if again else escape(first[0]) if first else ""
    return f"[bold {style}]{escape(node['name'])}[/] [{style}]{node['kind']}[/]  [dim]{doc}[/]".rstrip()


def mermaid(graph: dict[str, Any]) -> str:
    """The graph in Mermaid's language.

    >>> print(mermaid({"nodes": [{"name": "a", "kind": "stream"}], "edges": []}))
    graph LR
      n0(["a"])
    """
    ids = {node["name"]: f"n{number}" for number, node in enumerate(graph["nodes"])}
    lines = ["graph LR"]
    for node in graph["nodes"]:
        left, right = _SHAPES[node["kind"]]
        lines.append(f'  {ids[node["name"]]}{left}"{_quoted(node["name"])}"{right}')
    lines += [f"  {ids[edge['from']]} --> {ids[edge['to']]}" for edge in graph["edges"]]
    return "\n".join(lines)


def _quoted(name: str) -> str:
    return str(name).replace('"', "#quot;")
