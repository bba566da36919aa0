"""The plots of `speculative.py`: speed-up against acceptance, and acceptance by position."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

from specrs.cli.bench import Results

mpl.use("Agg")
from matplotlib import pyplot

# Published for draft models on candle's CPU backend: acceptance from and to, speed-up from and to.
PUBLISHED = (((0.859, 0.859), (1.1, 1.1)), ((0.62, 0.70), (0.6, 0.7)))
FEWEST = 20  # drafts a position needs to be drawn


def expected_speedup(
    acceptance: float, length: int, cost: Mapping[int, float], draft_cost: float
) -> float:
    """Return the speed-up of drafts of `length` whose tokens are right independently.

    Args:
        acceptance: Probability that a token is right.
        length: Tokens of a draft.
        cost: Time of a forward by rows; between the given numbers it is a line.
        draft_cost: Time per drafted token, relative to a forward of one row.
    """
    made = sum(acceptance**i for i in range(length + 1))
    return made / (_cost(cost, length + 1) / cost[1] + length * draft_cost)


def _cost(cost: Mapping[int, float], rows: int) -> float:
    left = max(known for known in cost if known <= rows)
    right = min((known for known in cost if known >= rows), default=left)
    if left == right:
        return cost[left]
    return cost[left] + (cost[right] - cost[left]) * (rows - left) / (right - left)


def plot_speedup(
    cost: Mapping[int, float], draft_cost: float, parts: Mapping[str, Results], path: Path
) -> None:
    """Draw what was measured, beside what the measured cost of rows lets expect."""
    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    rates = [i / 100 for i in range(101)]
    for price, style in sorted({(0.0, "-"), (draft_cost, "--")}):
        best = [max(expected_speedup(a, k, cost, price) for k in range(max(cost))) for a in rates]
        label = f"best length, drafting costs {price:.2f} of a forward"
        axes.plot(rates, best, color="black", linestyle=style, label=label)
    if draft_cost:
        fixed = [expected_speedup(a, 4, cost, draft_cost) for a in rates]
        axes.plot(rates, fixed, color="grey", linestyle=":", label="always 4, the same cost")
    for part, results in parts.items():
        points = [results[name]["all"] for name in results if results[name]["all"].drafted]
        accepted = [figures.acceptance_rate for figures in points]
        axes.scatter(accepted, [figures.speedup for figures in points], label=f"measured: {part}")
    for accepted_range, speedups in PUBLISHED:
        axes.plot(accepted_range, speedups, "rx-", markersize=9)
    axes.plot([], [], "rx-", markersize=9, label="published (candle, CPU)")
    axes.axhline(1, color="lightgrey", zorder=0)
    axes.set(
        xlabel="acceptance: right tokens / drafted tokens",
        ylabel="decode speed relative to plain decoding",
        xlim=(0, 1),
        ylim=(0, 6),
    )
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def plot_acceptance(parts: Mapping[str, Results], path: Path) -> None:
    """Draw how often each position of a draft is right if all before it are."""
    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    for results in parts.values():
        for name, tasks in results.items():
            pairs = zip(tasks["all"].right, tasks["all"].tried, strict=True)
            rates = [right / tried for right, tried in pairs if tried >= FEWEST]
            if rates:
                axes.plot(range(1, len(rates) + 1), rates, marker=".", label=name)
    axes.set(
        xlabel="position in the draft",
        ylabel="right, if all before it are",
        ylim=(0, 1.02),
    )
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
