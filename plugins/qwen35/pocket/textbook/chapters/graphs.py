"""Graphs and trees."""

import heapq
from collections import deque


# == bfs, breadth_first
# graph: edges, neighbours
# start: source, root
# node: vertex, current
# - Visit a graph breadth first.
# - Return the nodes of {graph} in breadth-first order from {start}.
# - Breadth-first search: list nodes in the order in which they are reached.
# - List all nodes reachable from {start}, nearest first.
# ? Walk through {graph} from {start}, level by level, and list the nodes.
def bfs(graph: dict, start) -> list:
    visited = [start]
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for neighbor in graph.get(node, []):
            if neighbor not in visited:
                visited.append(neighbor)
                queue.append(neighbor)
    return visited


assert bfs({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, "a") == ["a", "b", "c", "d"]
assert bfs({}, 1) == [1]


# == dfs, depth_first
# graph: edges, neighbours
# start: source, root
# node: vertex, current
# - Visit a graph depth first.
# - Return the nodes of {graph} in depth-first order from {start}.
# - Depth-first search: list nodes in the order in which they are reached.
# ? Walk through {graph} from {start}, as deep as possible first, and list the nodes.
def dfs(graph: dict, start) -> list:
    visited = []

    def visit(node):
        if node in visited:
            return
        visited.append(node)
        for neighbor in graph.get(node, []):
            visit(neighbor)

    visit(start)
    return visited


def dfs(graph: dict, start) -> list:
    visited = []
    stack = [start]
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited.append(node)
        stack.extend(reversed(graph.get(node, [])))
    return visited


assert dfs({"a": ["b", "c"], "b": ["d"], "c": [], "d": []}, "a") == ["a", "b", "d", "c"]
assert dfs({}, 1) == [1]


# == shortest_path, find_shortest_path
# graph: edges, neighbours
# start: source, origin
# goal: target, finish
# path: route, way
# - Return the shortest path between two nodes as a list, or None.
# - Find a path with the fewest edges from {start} to {goal}; None if there is none.
# - Shortest path in an unweighted graph, as a list of nodes, or None.
# ? Give the nodes on a shortest way from {start} to {goal}, or None.
def shortest_path(graph: dict, start, goal):
    queue = deque([[start]])
    seen = {start}
    while queue:
        path = queue.popleft()
        if path[-1] == goal:
            return path
        for neighbor in graph.get(path[-1], []):
            if neighbor not in seen:
                seen.add(neighbor)
                queue.append(path + [neighbor])
    return None


assert shortest_path({"a": ["b"], "b": ["c"], "c": []}, "a", "c") == ["a", "b", "c"]
assert shortest_path({"a": []}, "a", "z") is None
assert shortest_path({}, 1, 1) == [1]


# == dijkstra, shortest_distances
# graph: edges, roads
# start: source, origin
# distances: costs, best
# - Dijkstra's algorithm: the distance from {start} to every node it reaches.
# - Return the shortest distances from {start} in a weighted graph.
# - Compute distances from {start}; graph[node] maps neighbours to lengths.
# ? How far is every node that can be reached from {start}? Lengths are in {graph}.
def dijkstra(graph: dict, start) -> dict:
    distances = {start: 0}
    heap = [(0, start)]
    while heap:
        distance, node = heapq.heappop(heap)
        if distance > distances[node]:
            continue
        for neighbor, length in graph.get(node, {}).items():
            candidate = distance + length
            if candidate < distances.get(neighbor, float("inf")):
                distances[neighbor] = candidate
                heapq.heappush(heap, (candidate, neighbor))
    return distances


assert dijkstra({"a": {"b": 1, "c": 5}, "b": {"c": 2}}, "a") == {"a": 0, "b": 1, "c": 3}
assert dijkstra({}, "x") == {"x": 0}


# == topological_sort, topological_order
# graph: edges, dependencies
# order: result, ordered
# - Sort the nodes of a directed graph so that edges go forward.
# - Return a topological order of {graph}; a cycle is a ValueError.
# - Topological sort; every node comes before the nodes it points to.
# ? Order the nodes so that each comes before those it points to; a ValueError for a cycle.
def topological_sort(graph: dict) -> list:
    incoming = {node: 0 for node in graph}
    for node in graph:
        for neighbor in graph[node]:
            incoming[neighbor] = incoming.get(neighbor, 0) + 1
    ready = [node for node in incoming if incoming[node] == 0]
    order = []
    while ready:
        node = ready.pop(0)
        order.append(node)
        for neighbor in graph.get(node, []):
            incoming[neighbor] -= 1
            if incoming[neighbor] == 0:
                ready.append(neighbor)
    if len(order) < len(incoming):
        raise ValueError("the graph has a cycle")
    return order


assert topological_sort({"a": ["b"], "b": ["c"], "c": []}) == ["a", "b", "c"]
assert topological_sort({}) == []
try:
    topological_sort({"a": ["b"], "b": ["a"]})
except ValueError:
    pass
else:
    raise AssertionError("a cycle was sorted")


# == has_cycle, is_cyclic
# graph: edges, links
# - Check whether a directed graph has a cycle.
# - Return True if some path in {graph} leads back to where it began.
# - Tell whether {graph} is cyclic.
# ? Does any way through {graph} come back to its beginning?
def has_cycle(graph: dict) -> bool:
    done = set()
    active = set()

    def visit(node):
        if node in active:
            return True
        if node in done:
            return False
        active.add(node)
        found = any(visit(neighbor) for neighbor in graph.get(node, []))
        active.remove(node)
        done.add(node)
        return found

    return any(visit(node) for node in graph)


assert has_cycle({"a": ["b"], "b": ["a"]})
assert not has_cycle({"a": ["b"], "b": []})
assert not has_cycle({})


# == is_connected, all_reachable
# graph: edges, neighbours
# - Check whether an undirected graph is connected.
# - Return True if every node can be reached from every other.
# - Tell whether {graph}, which lists both directions of each edge, is connected.
# ? Can every node of the undirected {graph} be reached from any other?
def is_connected(graph: dict) -> bool:
    if not graph:
        return True
    start = next(iter(graph))
    seen = {start}
    stack = [start]
    while stack:
        for neighbor in graph[stack.pop()]:
            if neighbor not in seen:
                seen.add(neighbor)
                stack.append(neighbor)
    return len(seen) == len(graph)


assert is_connected({1: [2], 2: [1]})
assert not is_connected({1: [], 2: []})
assert is_connected({})


# == connected_components, find_components
# graph: edges, neighbours
# component: group, part
# - Return the connected components of an undirected graph.
# - List the groups of nodes that hang together, each of them sorted.
# - Find the connected components of {graph}, as sorted lists.
# ? Which nodes hang together? A sorted list for each group.
def connected_components(graph: dict) -> list:
    seen = set()
    components = []
    for start in graph:
        if start in seen:
            continue
        component = []
        stack = [start]
        seen.add(start)
        while stack:
            node = stack.pop()
            component.append(node)
            for neighbor in graph[node]:
                if neighbor not in seen:
                    seen.add(neighbor)
                    stack.append(neighbor)
        components.append(sorted(component))
    return components


assert connected_components({1: [2], 2: [1], 3: []}) == [[1, 2], [3]]
assert connected_components({}) == []


# == edges_to_graph, build_graph
# edges: pairs, links
# graph: result, neighbours
# - Turn a list of edges into a dictionary of neighbours.
# - Build an undirected graph from pairs of nodes.
# - Return the neighbours of every node, for edges in both directions.
# ? From pairs of nodes, list the neighbours of each node, both ways.
def edges_to_graph(edges: list) -> dict:
    graph = {}
    for a, b in edges:
        graph.setdefault(a, []).append(b)
        graph.setdefault(b, []).append(a)
    return graph


assert edges_to_graph([(1, 2), (1, 3)]) == {1: [2, 3], 2: [1], 3: [1]}
assert edges_to_graph([]) == {}


# == count_edges, number_of_edges
# graph: neighbours, links
# - Count the edges of an undirected graph.
# - Return the number of edges; each one is listed at both of its nodes.
# - How many edges does the undirected {graph} have?
# ? Give the number of edges in {graph}, which names each one twice.
def count_edges(graph: dict) -> int:
    return sum(len(neighbors) for neighbors in graph.values()) // 2


assert count_edges({1: [2, 3], 2: [1], 3: [1]}) == 2
assert count_edges({}) == 0


# == tree_depth, height_of_tree
# tree: node, root
# - Return the depth of a tree of (value, left, right) tuples.
# - Compute how many levels a binary tree has; None is an empty tree.
# - Depth of a binary tree given as (value, left, right), None for no tree.
# ? How many levels has a tree of (value, left, right)? None has no level.
def tree_depth(tree) -> int:
    if tree is None:
        return 0
    _, left, right = tree
    return 1 + max(tree_depth(left), tree_depth(right))


assert tree_depth(None) == 0
assert tree_depth((1, None, None)) == 1
assert tree_depth((1, (2, None, (3, None, None)), None)) == 3


# == tree_sum, sum_of_tree
# tree: node, root
# - Add up the values of a tree of (value, left, right) tuples.
# - Sum all values in a binary tree; None is an empty tree.
# - Return the sum of the values of a tree of (value, left, right).
# ? Give the total of all values in a tree of (value, left, right).
def tree_sum(tree) -> int:
    if tree is None:
        return 0
    value, left, right = tree
    return value + tree_sum(left) + tree_sum(right)


assert tree_sum(None) == 0
assert tree_sum((1, (2, None, None), (3, None, None))) == 6


# == in_order, in_order_values
# tree: node, root
# - List the values of a tree from left to right.
# - In-order traversal of a tree of (value, left, right) tuples.
# - Return the values of a binary tree in order: left, value, right.
# ? Give the values of a tree of (value, left, right), left part first, then value.
def in_order(tree) -> list:
    if tree is None:
        return []
    value, left, right = tree
    return in_order(left) + [value] + in_order(right)


assert in_order((2, (1, None, None), (3, None, None))) == [1, 2, 3]
assert in_order(None) == []


# == pre_order, pre_order_values
# tree: node, root
# - Pre-order traversal of a tree of (value, left, right) tuples.
# - Return the values of a binary tree, each before those below it.
# - List values in pre-order: value, left, right.
# ? Give the values of a tree of (value, left, right): value first, then left, then right.
def pre_order(tree) -> list:
    if tree is None:
        return []
    value, left, right = tree
    return [value] + pre_order(left) + pre_order(right)


assert pre_order((2, (1, None, None), (3, None, None))) == [2, 1, 3]
assert pre_order(None) == []


# == level_order, levels
# tree: root, top
# - Return the values of a binary tree level by level.
# - List the values of a tree of (value, left, right), one list for each level.
# - Level-order traversal: a list of values for every level of the tree.
# ? One list for each level of a tree of (value, left, right), from the top.
def level_order(tree) -> list:
    result = []
    level = [tree] if tree else []
    while level:
        result.append([node[0] for node in level])
        level = [child for node in level for child in node[1:] if child]
    return result


assert level_order((1, (2, None, None), (3, None, None))) == [[1], [2, 3]]
assert level_order(None) == []


# == mirror_tree, invert_tree
# tree: node, root
# - Swap the left and right parts everywhere in a tree.
# - Mirror a binary tree of (value, left, right) tuples.
# - Return the mirror image of a tree; None stays None.
# ? Exchange left and right at every node of a tree of (value, left, right).
def mirror_tree(tree):
    if tree is None:
        return None
    value, left, right = tree
    return (value, mirror_tree(right), mirror_tree(left))


assert mirror_tree((1, (2, None, None), None)) == (1, None, (2, None, None))
assert mirror_tree(None) is None


# ==! count_leaves
# tree: node, root
# ? Count the nodes of a tree of (value, left, right) that have nothing below them.
# ? How many leaves has a tree of (value, left, right)? None has no leaf.
def count_leaves(tree) -> int:
    if tree is None:
        return 0
    _, left, right = tree
    if left is None and right is None:
        return 1
    return count_leaves(left) + count_leaves(right)


assert count_leaves(None) == 0
assert count_leaves((1, None, None)) == 1
assert count_leaves((1, (2, None, None), (3, None, None))) == 2
