"""The metrics of a run as a table for the terminal; what each of them means stands in the report."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from gpu_rag.evaluation.definitions import format_value, grouped

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
