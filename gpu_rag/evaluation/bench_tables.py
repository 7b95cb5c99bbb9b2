"""Benchmark figures as tables for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text


def walk_table(figures: Mapping[str, Any]) -> Table:
    """Return what `bench_ppr.bench_walk` found: time by peer, agreement, and what the machine allows."""
    table = _table(f"{figures['case']}: {figures['nodes']:,} nodes, {figures['edges']:,} edges", figures)
    ours = figures["ours_us_per_query"]
    table.add_row("ours, us a query", _number(ours), f"{figures['queries']:,} at once, {figures['flagged']} flagged")
    table.add_row(
        "igraph", _number(figures["igraph_us_per_query"]), f"{figures['ratio_to_igraph']:.1f} x ours, median of pairs"
    )
    for name, peer in figures["peers"].items():
        if "skipped" in peer:
            table.add_row(name, "", peer["skipped"])
        else:
            note = f"{peer['us_per_query'] / ours:.1f} x ours, L1 to ours {peer['largest_l1_to_ours']:.1e} at most"
            table.add_row(name, _number(peer["us_per_query"]), note)
    gated = figures["gated"]
    table.add_row("ours, gated", _number(gated["us_per_query"]), f"{gated['ratio_to_ungated']:.1f} x without gates")
    table.add_section()
    found = figures["agreement"]
    for name in ("l1_float32", "l1_float64"):
        note = f"median {found[name]['median']:.1e}, {found['resets']} resets against igraph"
        table.add_row(f"largest {name}", f"{found[name]['max']:.1e}", note)
    table.add_row(f"same top {found['top']}", f"{found['same_top_up_to_ties']} of {found['resets']}", "up to ties")
    table.add_row("not finite", str(found["not_finite"]), "scores")
    table.add_section()
    roofline = figures["roofline"]
    for name, floor in roofline["floor_us_per_query"].items():
        table.add_row(f"floor by {name}, us", _number(floor), "binds" if name == roofline["binding"] else "")
    table.add_row("share of the floor", f"{roofline['share']:.2f}", f"{roofline['sweeps']:.1f} sweeps a query")
    table.add_section()
    for name, series in figures.get("scaling", {}).items():
        table.add_row(f"time ~ {name}^", f"{series['exponent']:.2f}", f"R^2 {series['r_squared']:.4f}")
    return table


def update_table(figures: Mapping[str, Any]) -> Table:
    """Return what `bench_update.bench_update` found, by stage."""
    table = Table(title=f"{figures['documents']:,} documents, one changed; {figures['cpu']}", title_justify="left")
    table.add_column("seconds of")
    for name in ("a rebuild", "an update", "computed by a rebuild", "by an update"):
        table.add_column(name, justify="right")
    for label, found in figures["stages"].items():
        sides = ("rebuild", "update")
        seconds = [f"{found[f'{side}_seconds']:.2f}" for side in sides]
        table.add_row(label, *seconds, *(f"{found[f'{side}_computed']:,}" for side in sides))
    table.add_section()
    rebuilds, updates = ([f"{value:.2f}" for value in figures[name]] for name in ("rebuild_seconds", "update_seconds"))
    table.add_row("all of it", ", ".join(rebuilds), ", ".join(updates))
    table.add_row("ratio", f"{figures['ratio_rebuild_to_update']:.1f}")
    table.add_row("start-up, on both sides", f"{figures['start_up_seconds']:.2f}", f"{figures['start_up_seconds']:.2f}")
    return table


def activation_table(figures: Mapping[str, Any]) -> Table:
    """Return what `bench_activation.bench_spreading` found, by order."""
    table = _table(f"{figures['case']}: {figures['nodes']:,} nodes, {figures['arcs']:,} arcs", figures)
    for order, found in figures["orders"].items():
        table.add_section()
        note = f"{figures['queries']:,} at once, {found['nodes_seen']:.0f} nodes seen, {found['activated']:.1f} activated"
        table.add_row(f"{order}, us a query", _number(found["us_per_query"]), note)
        ratio = f"{found['ratio_to_authors']:.1f} x ours, median of pairs"
        table.add_row("authors' algorithm", _number(found["authors_us_per_query"]), ratio)
        cosines = found["cosines_us_per_query"]
        note = f"{cosines['ours'] / found['us_per_query']:.0%} of ours, by numpy, {found['arcs_weighed']:.0f} arcs"
        table.add_row("cosines of ours, us", _number(cosines["ours"]), note)
        note = f"{cosines['authors'] / found['authors_us_per_query']:.0%} of theirs, {found['arcs_of_subgraph']:.0f} arcs"
        table.add_row("cosines of the authors, us", _number(cosines["authors"]), note)
        same = found["agreement"]
        difference = f"largest difference {same['largest_difference']:.1e}"
        table.add_row("equal to its reference", f"{same['equal']} of {same['compared']}", difference)
        sets = same["jaccard_to_authors"]
        table.add_row("Jaccard to the authors'", f"{sets['mean']:.4f}", f"least {sets['min']:.3f}, {sets['queries']} queries")
    table.add_section()
    table.add_row("all cosines, us", _number(figures["all_cosines_by_product_us_per_query"]), "by one product of matrices")
    return table


def _table(title: str, figures: Mapping[str, Any]) -> Table:
    load = " to ".join(f"{value:.2f}" for value in figures["load"])
    caption = f"{figures['cpu']}, {figures['threads']} threads, load {load}, peak {figures['peak_rss_bytes'] / 2**30:.2f} GiB"
    table = Table(title=Text(title), caption=Text(caption), title_justify="left", caption_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("")
    return table


def _number(value: float) -> str:
    return f"{value:,.1f}"
