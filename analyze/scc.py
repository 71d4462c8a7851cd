"""Strongly connected components of a graph given as neighbour lists."""

from __future__ import annotations

from collections.abc import Sequence


def components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Tarjan's algorithm without recursion, in time linear in the graph.

    Args:
        edges: The neighbours of each node 0..n-1.

    Returns:
        The components, each after every component it points to.
    """
    index = [-1] * len(edges)
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    found: list[list[int]] = []
    count = 0
    for start in range(len(edges)):
        if index[start] >= 0:
            continue
        path = [(start, 0)]
        while path:
            node, position = path.pop()
            if position == 0:
                index[node] = low[node] = count
                count += 1
                stack.append(node)
                on_stack[node] = True
            else:
                low[node] = min(low[node], low[edges[node][position - 1]])
            descended = False
            for at in range(position, len(edges[node])):
                neighbour = edges[node][at]
                if index[neighbour] < 0:
                    path.append((node, at + 1))
                    path.append((neighbour, 0))
                    descended = True
                    break
                if on_stack[neighbour]:
                    low[node] = min(low[node], index[neighbour])
            if not descended and low[node] == index[node]:
                found.append(_pop_until(node, stack, on_stack))
    return found


def _pop_until(node: int, stack: list[int], on_stack: list[bool]) -> list[int]:
    component: list[int] = []
    while True:
        top = stack.pop()
        on_stack[top] = False
        component.append(top)
        if top == node:
            return component
