"""Plots of benchmark series, one SVG file each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_rag.engines.require import require


def plot_scaling(series: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write NAME.svg for each series of `bench_ppr.bench_scaling`, time against size on logarithmic axes; return the paths.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    figure_module = require("matplotlib.figure", extra="bench")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, found in series.items():
        figure = figure_module.Figure(figsize=(5, 3.5), layout="constrained")
        axes = figure.subplots()
        sizes = [point[name] for point in found["points"]]
        axes.loglog(sizes, [point["seconds"] for point in found["points"]], marker="o")
        axes.set_xlabel(name)
        axes.set_ylabel("seconds")
        axes.set_title(f"time ~ {name}^{found['exponent']:.2f}, R^2 {found['r_squared']:.3f}")
        axes.grid(True, which="both", alpha=0.3)
        paths.append(folder / f"{name}.svg")
        figure.savefig(paths[-1])
    return paths
