"""Tables for the terminal: the metrics of a run, whose meanings stand in the report, and what a run would take."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from gpu_rag import schemas
from gpu_rag.evaluation.definitions import format_value, grouped
from gpu_rag.evaluation.estimate import Estimate
from gpu_rag.store import Generation

_IDENTITY = ("corpus_hash", "config_hash", "code_version")


def metrics_table(metrics: dict[str, float | None], run_info: Mapping[str, Any]) -> Table:
    """Return a rich table of metrics by group; undefined ones are named in the caption, states without a row left out.

    Args:
        metrics: As `metrics.evaluate_run` gives them.
        run_info: `system` for the title, hashes and version for the caption.
    """
    listed = {name: value for name, value in metrics.items() if value is not None and (value or not name.startswith("rows_"))}
    undefined = [name for name, value in metrics.items() if value is None]
    caption = [f"{name} {run_info[name]}" for name in _IDENTITY if name in run_info]
    if undefined:
        caption.append(f"undefined here, nothing to average over: {', '.join(undefined)}")
    table = Table(
        title=Text(f"system {run_info.get('system', '')}"),
        caption=Text("\n".join(caption)),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for group, names in grouped(listed).items():
        table.add_section()
        table.add_row(Text(group, style="bold"), "")
        for name in names:
            table.add_row(Text(f"  {name}"), format_value(name, metrics[name]))
    return table


def governance_table(generation: Generation) -> Table:
    """Return what the raw and the governed graph of a generation have, and why units are not in the governed one.

    Source: the before and after figures of PAGE-RAG (papers/page-rag.txt).
    """
    table = Table(title="graph before and after governance", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    for measure in ("entities", "edges", "communities", "isolated"):
        row = next(row for row in generation.read(schemas.COMMUNITY_COUNTS).to_pylist() if row["measure"] == measure)
        table.add_row(measure, f"{row['before']:,}", f"{row['after']:,}")
    table.add_section()
    for row in generation.read(schemas.GOVERNANCE).to_pylist():
        if row["measure"].startswith(("entities.", "mentions.re", "relations.re")) and ".kind." not in row["measure"]:
            table.add_row(row["measure"], f"{row['before']:,}", f"{row['after']:,}")
    return table


def estimate_table(estimate: Estimate) -> Table:
    """Return a rich table of what each stage would ask a language model, their sum, and what is embedded."""
    asked = f", {estimate.questions:,} questions" if estimate.questions else ""
    table = Table(title=Text(f"{estimate.documents:,} documents, {estimate.chunks:,} chunks{asked}"), title_justify="left")
    table.add_column("stage", no_wrap=True)
    for name in ("rows", "calls", "prompt tokens", "at most", "from cache", "output tokens", "at most", "too long"):
        table.add_column(name, justify="right")
    names = (
        "calls", "prompt_tokens", "prompt_tokens_at_most", "shared_tokens", "output_tokens", "output_tokens_at_most",
        "too_long",
    )  # fmt: skip
    for stage in estimate.stages:
        table.add_row(stage.label, f"{stage.rows:,}", *(f"{getattr(stage, name):,}" for name in names))
    if len(estimate.stages) > 1:
        sums = (sum(getattr(stage, name) for stage in estimate.stages) for name in names)
        table.add_section()
        table.add_row("total", "", *(f"{total:,}" for total in sums))
    table.add_section()
    table.add_row("05_embed", f"{estimate.embedding_texts:,}", "", f"{estimate.embedding_tokens:,}", *[""] * 5)
    if estimate.gpu_hours is not None:
        expected, at_most = (f"{hours:,.2f}" for hours in estimate.gpu_hours)
        table.caption, table.caption_justify = Text(f"{expected} GPU-hours expected, {at_most} at most"), "left"
    return table
