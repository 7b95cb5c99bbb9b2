"""The embedding benchmark on a corpus of a few documents."""

import json
from pathlib import Path

import numpy as np
import pytest

from gpu_rag.config import Config
from gpu_rag.errors import InputError
from gpu_rag.evaluation import bench_embed
from gpu_rag.evaluation.bench_embed import bench_corpus


def _corpus(folder: Path, texts: list[str]) -> Path:
    rows = [{"doc_id": str(row), "title": f"Title {row}", "text": text} for row, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recorded = {"doc_id": "0", "entities": ["Alice Adams"], "triples": [["Alice Adams", "met", "Bob Brown"]]}
    (folder / "openie.jsonl").write_text(json.dumps(recorded) + "\n", encoding="utf-8")
    return folder


def test_every_kind_is_measured_against_product_and_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_embed, "_PRODUCT_SECONDS", 0.01)
    texts = ["Alice Adams met Bob Brown in Paris. They spoke of Rome.", "Nero ruled Rome.", "Bob Brown died in 1963."]
    figures = bench_corpus(_corpus(tmp_path, texts), Config(), repeats=1, limit=2)
    assert figures["kinds"].keys() == {"chunk", "sentence", "entity", "fact"}
    assert figures["kinds"]["chunk"]["texts"] == figures["kinds"]["chunk"]["sample_texts"] == 2
    for kind in figures["kinds"].values():
        assert kind["max_abs_difference"] < 1e-4
        assert {"1", str(figures["threads"])} == kind["by_threads"].keys()
        for shares in kind["by_threads"].values():
            assert 0 < shares["share"] < 2
            assert shares["peer_share"] > 0
    assert json.loads(json.dumps(figures)) == figures


def test_operations_of_texts_are_those_of_products_and_attention() -> None:
    model = bench_embed._Model(hidden=2, wide=4, layers=3)
    weights = 3 * (2 * 6 + 2 * 2 + 2 * 4 + 4 * 2)
    assert model.gflop(np.array([5, 1])) == pytest.approx((2 * weights * 6 + 4 * 3 * 2 * 26) / 1e9)


def test_corpus_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"doc_id": "1", "title": "", "text": " "}\n', encoding="utf-8")
    with pytest.raises(InputError, match="nothing to embed"):
        bench_corpus(tmp_path, Config(), repeats=1, limit=None)
