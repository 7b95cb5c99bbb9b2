"""The metrics table of the terminal."""

import io

from rich.console import Console

from gpu_rag.evaluation.terminal import metrics_table


def _printed(metrics: dict[str, float | None], run_info: dict[str, object]) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(metrics_table(metrics, run_info))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_shares_are_percent_counts_are_counts_and_undefined_ones_are_named() -> None:
    metrics = {
        "recall@5": 0.825,
        "num_questions": 1234,
        "bbs": None,
        "rows_ok": 1234,
        "rows_error": 0,
        "stage_tokens": 12.5,
    }
    text = _printed(metrics, {"system": "embedded", "config_hash": "abc123"})
    lines = {line.split()[1]: line.split()[3] for line in text.splitlines() if len(line.split()) > 4}
    assert lines["recall@5"] == "82.5" and lines["num_questions"] == "1,234" and lines["stage_tokens"] == "12.5"
    assert "rows_error" not in text
    assert "undefined here" in text and "bbs" in text and "abc123" in text


def test_markup_in_a_name_is_printed_as_it_is() -> None:
    assert "[bold]mine[/bold]" in _printed({"answered": 1.0}, {"system": "[bold]mine[/bold]"})
