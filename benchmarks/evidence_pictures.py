"""Plot docs/is-it-real-kinds.png and docs/is-it-real-gap.png: rows of every distribution."""

from __future__ import annotations

import argparse
from pathlib import Path

from common import console  # isort: skip  (pins BLAS before numpy)

import evidence as kinds
import matplotlib.pyplot as plt
import numpy as np

from nrprob import ConditionalMixture, evidence

ROWS = {
    "one cloud per group": ("gaussian", "decaying spectrum", "unequal covariances", "t 3"),
    "no cloud, and no gap": ("box, d 2", "bent", "mirrored gamma", "skew-normal"),
    "clusters": ("3 sd, round", "4 sd", "5 sd", "5 sd, .9/.1"),
}


def draw_kinds() -> plt.Figure:
    """Rows about the means of their known groups, in two dimensions."""
    every = {**kinds.NULLS, **kinds.SHAPES, **kinds.CLUSTERS}
    figure, axes = plt.subplots(3, 4, figsize=(9, 7), layout="constrained")
    for (title, names), line in zip(ROWS.items(), axes, strict=True):
        for name, ax in zip(names, line, strict=True):
            X, rows = kinds.make(every[name].draw, 3, d=2)
            means = np.stack([X[rows.z == g].mean(0) for g in range(kinds.GROUPS)])
            residuals = X - means[rows.z]
            for g, marker in enumerate("os^"):
                ax.scatter(*residuals[rows.z == g].T, s=8, marker=marker, alpha=0.7)
            low, high = np.quantile(residuals, [0.005, 0.995])
            ax.set(title=name.removesuffix(", d 2"), xticks=[], yticks=[])
            ax.set(xlim=(1.1 * low, 1.1 * high), ylim=(1.1 * low, 1.1 * high))
        line[0].set_ylabel(title, fontsize=12)
    return figure


def draw_gap() -> plt.Figure:
    """`Evidence.plot` for two clusters that overlap, and for two that do not."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 4.2), layout="constrained")
    for apart, ax in zip((3, 5), axes, strict=True):
        X, rows = kinds.make(kinds.planted(apart), 4)
        result = evidence.test(ConditionalMixture(2), X, known=rows.z, random_state=0)
        result.plot(ax)
        ax.set_title(f"{apart} standard deviations apart")
        console.print(f"{apart} sd: {result}")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    docs = Path(__file__).resolve().parents[1] / "docs"
    parser.add_argument("--out", type=Path, default=docs, help="folder to write to")
    parser.add_argument("--quick", action="store_true", help="has no effect: it is quick")
    chosen = parser.parse_args()
    for name, draw in (("kinds", draw_kinds), ("gap", draw_gap)):
        path = chosen.out / f"is-it-real-{name}.png"
        draw().savefig(path, dpi=100)
        console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
