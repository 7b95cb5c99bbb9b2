"""Runs side by side, as long as they answered over the same corpus."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from gpu_rag.errors import InputError
from gpu_rag.evaluation.definitions import format_value
from gpu_rag.store import read_json

_ROWS = (
    "recall@2", "recall@5", "recall@10", "recall@20", "exact_match", "f1", "strict", "lenient",
    "correct_refusal", "false_answer", "false_refusal", "bbs", "num_answered", "num_refused", "seconds_query",
)  # fmt: skip


def compare_runs(runs: Sequence[Path]) -> Table:
    """Return a table with one column per evaluated RUN folder.

    Raises:
        StoreError: If a run has not been evaluated, naming the missing file.
        InputError: If two runs answered over different corpora, naming both.
    """
    infos = [read_json(run / "report.json") for run in runs]
    metrics = [read_json(run / "metrics.json") for run in runs]
    for run, info in zip(runs, infos, strict=True):
        if info["corpus_hash"] != infos[0]["corpus_hash"]:
            raise InputError(
                f"runs {runs[0]} (corpus {infos[0]['corpus_hash']}) and {run} (corpus {info['corpus_hash']}) "
                "answered over different corpora and are not compared"
            )
    table = Table("metric", *(f"{info['system']}\n{run.name}" for run, info in zip(runs, infos, strict=True)))
    for name in _ROWS:
        if any(of_run.get(name) is not None for of_run in metrics):
            table.add_row(name, *(format_value(name, of_run.get(name)) for of_run in metrics))
    return table
