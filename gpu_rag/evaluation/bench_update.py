"""Benchmark of updates: one changed document against a rebuild without any cache, in one run.

Ray, workers and encoder are started first, by an index of a few documents, and serve both sides; that start-up is shown apart.
The rebuild indexes the whole corpus into an empty folder; then one document after another gets a sentence more, each followed
by an update. In the end the corpus as it then is is rebuilt once more, which gives a second figure and must give the same
content hash.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gpu_rag.config import Config
from gpu_rag.errors import InputError, StoreError
from gpu_rag.evaluation.roofline import cpu_model
from gpu_rag.index.build import IndexResult, build_generation, index_pool
from gpu_rag.index.s01_ingest import Corpus, read_corpus
from gpu_rag.index.update import corpus_of, update_locked
from gpu_rag.stage_report import StageReport
from gpu_rag.store import writer_lock

_WARM_UP_DOCUMENTS = 16  # enough for every worker to open its engines
_FIELDS = ("doc_id", "title", "text", "access")
_ADDED = "In the year {year} the record of {title} was copied by hand."


class _Quiet:
    """Takes no notice of progress."""

    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None: ...


def bench_update(corpus: Path, config: Config, *, repeats: int, limit: int | None = None) -> dict[str, Any]:
    """Return the seconds of a rebuild and of updates of one document, per stage, and their ratio.

    Args:
        corpus: A file, or a folder (see `s01_ingest`).
        config: As `build_index`.
        repeats: Updates, each of another document; the median is reported.
        limit: Use only the first documents.

    Raises:
        InputError: If the corpus has too few documents.
        StoreError: If the updated index is not what a rebuild gives.
    """
    source = read_corpus(corpus, config.ingest, limit)
    documents = [row for row in source.documents.to_pylist() if row["state"] == "ok"]
    if len(documents) <= repeats:
        raise InputError(f"{corpus} has {len(documents)} documents with text; {repeats} updates need more")
    folder = Path(tempfile.mkdtemp(prefix="gpu-rag-bench-"))
    try:
        with index_pool(config) as pool:

            def build(name: str, read: Callable[[], Corpus]) -> tuple[IndexResult, float]:
                started = time.perf_counter()
                with writer_lock(folder / name):
                    result = build_generation(read(), folder / name, config, progress=_Quiet(), pool=pool)
                return result, time.perf_counter() - started

            _, start_up = build("warm-up", lambda: read_corpus(corpus, config.ingest, _WARM_UP_DOCUMENTS))
            rebuilt, rebuild_seconds = build("index", lambda: read_corpus(corpus, config.ingest, limit))
            updates = []
            step = len(documents) // repeats
            for number in range(repeats):
                row = documents[number * step + step // 2]
                row["text"] += " " + _ADDED.format(year=1700 + number, title=row["title"] or row["doc_id"])
                coming = folder / f"coming-{number}.jsonl"
                coming.write_text(json.dumps({name: row[name] for name in _FIELDS}) + "\n", encoding="utf-8")
                started = time.perf_counter()
                with writer_lock(folder / "index"):
                    result = update_locked(coming, folder / "index", config, progress=_Quiet(), pool=pool)
                updates.append((result.index, time.perf_counter() - started))
            updated = updates[-1][0].generation
            again, again_seconds = build("again", lambda: corpus_of(updated))
            if again.generation.content_hash != updated.content_hash:
                raise StoreError("the updated index is not what a rebuild of the changed corpus gives")
    finally:
        shutil.rmtree(folder)
    update_seconds = median(seconds for _, seconds in updates)
    return {
        "cpu": cpu_model(),
        "documents": len(documents),
        "start_up_seconds": start_up,
        "rebuild_seconds": [rebuild_seconds, again_seconds],
        "update_seconds": [seconds for _, seconds in updates],
        "ratio_rebuild_to_update": median([rebuild_seconds, again_seconds]) / update_seconds,
        "stages": _stages(rebuilt, [result for result, _ in updates]),
        "equal_to_rebuild": True,
    }


def _stages(rebuilt: IndexResult, updates: Sequence[IndexResult]) -> dict[str, dict[str, float]]:
    """Return, per stage, the seconds of both sides and the work that they computed."""
    stages = {}
    for at, report in enumerate(rebuilt.reports):
        later = [result.reports[at] for result in updates]
        stages[report.label] = {
            "rebuild_seconds": report.seconds,
            "rebuild_computed": report.computed,
            "update_seconds": median(other.seconds for other in later),
            "update_computed": max(other.computed for other in later),
        }
    return stages
