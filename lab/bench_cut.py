#!/usr/bin/env python3
"""Times the exact minimum cut on made-up networks of 20,000 items, or as many as are asked for.

    python lab/bench_cut.py [ITEMS]

A network is a chain in which every fourth value is read further down as well, as by a residual connection. Rows
differ in how many items have no choice, and in what casts cost beside items: the dearer they are, the further one
choice reaches. Seconds are those of the processor.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from amp_transpiler.precision.min_cut import CutProblem, Tensor, minimum_cut

# share of items that must be high, dearest item, dearest cast
ROWS = ((0.1, 10, 4), (0.1, 10, 40), (0.0, 10, 40), (0.0, 100, 100_000), (0.0, 10**12, 10**13), (0.001, 2, 10**6))


def network(items: int, must_be_high: float, item_cost: int, cast_cost: int) -> CutProblem:
    draw = np.random.default_rng(items)
    low: list[int | None] = []
    high, tensors = [], []
    for item in range(items):
        low.append(None if draw.random() < must_be_high else int(draw.integers(1, item_cost, endpoint=True)))
        high.append(int(draw.integers(1, item_cost, endpoint=True)))
        readers = {min(item + 1, items - 1), min(item + (6 if item % 4 == 0 else 1), items - 1)}
        to_low, to_high = draw.integers(1, cast_cost, 2, endpoint=True).tolist()
        tensors.append(Tensor(item, False, tuple(sorted(readers)), item % 900 == 0, item % 700 == 0, to_low, to_high))
    return CutProblem(low, high, tensors)


def main() -> None:
    items = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    minimum_cut(network(10, 0.0, 5, 5))  # loads scipy
    print("must be high  item at most  cast at most  low    seconds")
    for row in ROWS:
        problem = network(items, *row)
        start = time.process_time()
        low = sum(minimum_cut(problem))
        seconds = time.process_time() - start
        print(f"{row[0]:<13g} {row[1]:<13.4g} {row[2]:<13.4g} {low:<6} {seconds:.2f}")


if __name__ == "__main__":
    main()
