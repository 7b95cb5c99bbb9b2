"""The benchmark of updates on a small corpus: what it counts is true, whatever its seconds are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from gpu_rag.config import load_config
from gpu_rag.errors import InputError
from gpu_rag.evaluation.bench_tables import update_table
from gpu_rag.evaluation.bench_update import bench_update

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[[int], Path]:
    def write(num_documents: int) -> Path:
        rows = [
            {"doc_id": f"d{n}", "title": f"Hall {n}", "text": f"Hall {n} was built by Ada Reed in 18{n:02d}. It has {n} doors."}
            for n in range(num_documents)
        ]
        path = tmp_path / "corpus.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


def test_an_update_computes_the_changed_document_alone_and_equals_a_rebuild(corpus: Callable[[int], Path]) -> None:
    figures = bench_update(corpus(8), load_config(settings=("run.num_workers=1",)), repeats=2)
    stages = figures["stages"]
    assert stages["04_extract"]["rebuild_computed"] == 8
    assert stages["04_extract"]["update_computed"] == stages["03_chunk"]["update_computed"] == 1
    assert stages["05_embed"]["update_computed"] < stages["05_embed"]["rebuild_computed"] / 4
    assert len(figures["update_seconds"]) == len(figures["rebuild_seconds"]) == 2
    assert figures["equal_to_rebuild"]
    console = Console(width=120, record=True)
    console.print(update_table(figures))
    assert "04_extract" in console.export_text()


def test_more_updates_than_documents_are_refused(corpus: Callable[[int], Path]) -> None:
    with pytest.raises(InputError, match="3 documents"):
        bench_update(corpus(3), load_config(), repeats=3)
