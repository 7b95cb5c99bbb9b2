import json
from pathlib import Path

import pytest
from rich.console import Console

from gpu_rag.errors import InputError, StoreError
from gpu_rag.evaluation.compare import compare_runs


def evaluated(folder: Path, system: str, corpus: str, recall: float) -> Path:
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps({"system": system, "corpus_hash": corpus}))
    (folder / "metrics.json").write_text(json.dumps({"recall@5": recall, "bbs": None}))
    return folder


def test_runs_over_one_corpus_stand_side_by_side(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path / "a", "bm25", "c1", 0.5), evaluated(tmp_path / "b", "dense", "c1", 0.625)]
    console = Console(width=80, record=True)
    console.print(compare_runs(runs))
    text = console.export_text()
    assert "bm25" in text
    assert "50.0 %" in text
    assert "62.5 %" in text
    assert "bbs" not in text


def test_runs_over_different_corpora_are_not_compared(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path / "a", "bm25", "c1", 0.5), evaluated(tmp_path / "b", "dense", "c2", 0.625)]
    with pytest.raises(InputError, match=r"corpus c1.*corpus c2"):
        compare_runs(runs)


def test_a_run_that_was_not_evaluated_is_named(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "a", "bm25", "c1", 0.5)
    (run / "metrics.json").unlink()
    with pytest.raises(StoreError, match=r"metrics\.json is missing"):
        compare_runs([run])
