"""The cheapest way to give every request its share: a minimum-cost flow from requests over bins of like devices to providers.

Interchangeable devices are one bin with a size, so what grows is the number of kinds, not the number of ways to
choose among twins: eight like cards of which six are asked for are eight bins, not 20,160 candidates."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bin:
    """Devices of one provider that are alike to all requests."""

    provider: int  # its place among the providers; the first ones are taken first
    size: int
    costs: Mapping[int, int]  # request -> how bad a device of these is for it; a request that is not here cannot have one


def assign(counts: Sequence[int], bins: Sequence[Bin], rooms: Sequence[int]) -> tuple[list[dict[int, int]], int, int]:
    """How many devices each request gets of each bin; how many that are in all, which is as many as is possible; and their
    cost. `rooms` is what each provider has left."""
    graph = _Graph(2 + len(counts) + len(bins) + len(rooms))
    source, sink, first_bin = 0, 1, 2 + len(counts)
    first_provider = first_bin + len(bins)
    weight = (len(rooms) + 1) * (sum(counts) + 1)  # one step of cost outweighs any order of providers
    for request, count in enumerate(counts):
        graph.edge(source, 2 + request, count, 0)
    ways: dict[tuple[int, int], int] = {}
    for number, each in enumerate(bins):
        for request, cost in each.costs.items():
            ways[request, number] = graph.edge(2 + request, first_bin + number, min(each.size, counts[request]), cost * weight)
        graph.edge(first_bin + number, first_provider + each.provider, each.size, 0)
    for provider, room in enumerate(rooms):
        graph.edge(first_provider + provider, sink, room, provider)
    total = graph.fill(source, sink)
    given: list[dict[int, int]] = [{} for _ in counts]
    cost = 0
    for (request, number), edge in ways.items():
        if amount := graph.used(edge):
            given[request][number] = amount
            cost += amount * bins[number].costs[request]
    return given, total, cost


class _Graph:
    """Edges in pairs, there and back: what goes along one can come back along the other."""

    def __init__(self, nodes: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        self.to: list[int] = []
        self.room: list[int] = []
        self.cost: list[int] = []

    def edge(self, start: int, end: int, room: int, cost: int) -> int:
        number = len(self.to)
        self.out[start].append(number)
        self.out[end].append(number + 1)
        self.to += (end, start)
        self.room += (room, 0)
        self.cost += (cost, -cost)
        return number

    def used(self, edge: int) -> int:
        return self.room[edge + 1]

    def fill(self, source: int, sink: int) -> int:
        """Send as much as possible along the cheapest ways; how much that was."""
        total = 0
        while (way := self._cheapest(source, sink)) is not None:
            amount = min(self.room[edge] for edge in way)
            for edge in way:
                self.room[edge] -= amount
                self.room[edge ^ 1] += amount
            total += amount
        return total

    def _cheapest(self, source: int, sink: int) -> list[int] | None:
        best: list[int | None] = [None] * len(self.out)
        came: list[int] = [-1] * len(self.out)
        best[source] = 0
        waiting, queued = deque([source]), {source}
        while waiting:
            node = waiting.popleft()
            queued.discard(node)
            here = best[node] or 0
            for edge in self.out[node]:
                if self.room[edge] <= 0:
                    continue
                there, cost = self.to[edge], here + self.cost[edge]
                known = best[there]
                if known is None or cost < known:
                    best[there], came[there] = cost, edge
                    if there not in queued:
                        waiting.append(there)
                        queued.add(there)
        if best[sink] is None:
            return None
        way, node = [], sink
        while node != source:
            way.append(came[node])
            node = self.to[came[node] ^ 1]
        return way
