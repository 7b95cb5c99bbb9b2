"""Summaries of communities: bound to spans, made again only if their evidence changed."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.config import Config
from gpu_rag.engines.encoder import Encoded
from gpu_rag.engines.llm import LlmConfig, open_llm
from gpu_rag.index import s07_graph, s09_summarize
from gpu_rag.index.s08_communities import CommunitiesConfig, communities
from gpu_rag.index.s09_summarize import SummarizeConfig, choose_sentences
from gpu_rag.spans import source_text
from gpu_rag.stage import run_here, work_keys

Tables = dict[str, pa.Table]
Documents = dict[str, tuple[str, str]]

DOCUMENTS: Documents = {
    "a": ("Orme", "Ilse Marrow met Tomas Reed. Tomas Reed met Anna Thorley. Anna Thorley met Ilse Marrow. It rained."),
    "b": ("Sall", "Odile Vane met Jarek Lund. Jarek Lund met Petra Pike. Petra Pike met Odile Vane."),
}


class CountingEncoder:
    """Stands where only shapes and counts matter: one vector per text, of its length."""

    dim = 2

    def encode(self, texts: list[str], *, kind: str = "passage") -> Encoded:
        vectors = np.array([[len(text), 1.0] for text in texts], np.float32).reshape(-1, 2)
        return Encoded(vectors, np.array([len(text.split()) for text in texts]), np.zeros(len(texts), np.int64))


@pytest.fixture
def build(corpus: Callable[..., Tables], govern: Callable[..., Tables]) -> Callable[[Documents], Tables]:
    def make(documents: Documents) -> Tables:
        tables = govern(corpus(documents))
        tables |= s07_graph.STAGE.run(tables, config=Config().graph)
        sentences = tables["sentences"].column("sentence_id").to_pylist()
        vectors = np.random.default_rng(0).standard_normal((len(sentences), 4)).astype(np.float32)
        tables["vectors"] = schemas.VECTORS.build(
            {
                "vector_id": sentences,
                "vector": list(vectors),
                "num_tokens": [1] * len(sentences),
                "cut_tokens": [0] * len(sentences),
            }
        )
        kinds = ["sentence"] * len(sentences)
        tables["embeddings"] = schemas.EMBEDDINGS.build({"kind": kinds, "item_id": sentences, "vector_id": sentences})
        return tables | communities(tables, config=CommunitiesConfig())

    return make


def summarized(tables: Tables, config: SummarizeConfig | None = None, **engines: Any) -> Tables:
    encoder = CountingEncoder() if engines else None
    return run_here(s09_summarize.STAGE, config or SummarizeConfig(), tables, encoder=encoder, **engines)


def keys(tables: Tables, config: SummarizeConfig | None = None) -> set[str]:
    return set(work_keys(s09_summarize.STAGE.content(tables, config or SummarizeConfig()), "f"))


def test_every_sentence_stands_at_its_spans(build: Callable[[Documents], Tables]) -> None:
    done = summarized(build(DOCUMENTS))
    sources = {doc_id: source_text(title, text) for doc_id, (title, text) in DOCUMENTS.items()}
    rows = done["summaries"].to_pylist()
    assert len({row["community_id"] for row in rows}) == 2
    for row in rows:
        assert row["spans"]
        for span in row["spans"]:
            assert sources[span["doc_id"]][span["start"] : span["end"]] == row["text"]
    assert not any("rained" in row["text"] for row in rows)
    vectors = np.array(done["summary_vectors"].column("vector").to_pylist())
    assert vectors.shape == (2, 4)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6


def test_what_several_documents_say_is_said_once_with_all_its_places(build: Callable[[Documents], Tables]) -> None:
    tables = build({**DOCUMENTS, "twin": ("Orme again", DOCUMENTS["a"][1])})
    rows = [row for row in summarized(tables)["summaries"].to_pylist() if "Marrow" in row["text"]]
    assert {span["doc_id"] for row in rows for span in row["spans"]} == {"a", "twin"}
    assert len({row["text"] for row in rows}) == len(rows)


def test_a_summary_is_made_again_only_if_its_evidence_changed(build: Callable[[Documents], Tables]) -> None:
    before = keys(build(DOCUMENTS))
    renamed = keys(build({"z": DOCUMENTS["a"], "y": DOCUMENTS["b"]}))
    shifted = keys(build({**DOCUMENTS, "b": ("Sall", "It was cold. " + DOCUMENTS["b"][1])}))
    changed = keys(
        build({**DOCUMENTS, "b": ("Sall", DOCUMENTS["b"][1].replace("Petra Pike met Odile", "Petra Pike fled Odile"))})
    )
    assert len(before) == 2
    assert before == renamed == shifted
    assert len(before & changed) == 1


def test_sentences_cover_most_of_what_the_community_is_about() -> None:
    evidence = [
        {"text": "Only one.", "members": [0]},
        {"text": "A long sentence about zero and one.", "members": [0, 1]},
        {"text": "Zero and one.", "members": [0, 1]},
        {"text": "Two and three.", "members": [2, 3]},
        {"text": "Three.", "members": [3]},
    ]
    assert choose_sentences(evidence, 5) == [("Zero and one.", [2]), ("Two and three.", [3])]
    assert choose_sentences(evidence, 1) == [("Zero and one.", [2])]
    assert choose_sentences([], 3) == []


def test_evidence_is_bounded_by_what_names_most(build: Callable[[Documents], Tables]) -> None:
    names = [f"Quorra {letter * 3}son" for letter in "ABCDEFGHIJKLMNOP"]
    text = " ".join(f"{name} met Hub Blythe." for name in names) + f" {', '.join(names)} met Hub Blythe."
    tables = build({"hub": ("", text)})
    content = s09_summarize.STAGE.content(tables, SummarizeConfig(max_evidence=3)).to_pylist()
    assert all(len(row["evidence"]) <= 3 for row in content)
    largest = max(content, key=lambda row: len(row["names"]))
    sizes = [len(piece["members"]) for piece in largest["evidence"]]
    assert sizes == sorted(sizes, reverse=True)


def test_a_model_binds_each_sentence_to_labels_of_what_it_was_shown(build: Callable[[Documents], Tables]) -> None:
    tables = build(DOCUMENTS)
    config = SummarizeConfig(method="llm")
    llm = open_llm(LlmConfig(engine="scripted", retries=0))
    done = summarized(tables, config, llm=llm)
    evidence = {span["text"] for span in tables["sentences"].to_pylist()}
    places = {(row["doc_id"], row["start"], row["end"]) for row in tables["sentences"].to_pylist() if row["text"] in evidence}
    rows = done["summaries"].to_pylist()
    assert rows
    assert all(row["spans"] and {(s["doc_id"], s["start"], s["end"]) for s in row["spans"]} <= places for row in rows)


def test_the_prompt_shows_fewer_sentences_where_the_context_is_short(build: Callable[[Documents], Tables]) -> None:
    long = {"a": ("", " ".join(f"Ilse Marrow met Tomas Reed at {'x' * 60} {n}." for n in range(60)))}
    tables = build(long)
    config = SummarizeConfig(method="llm")
    llm = open_llm(LlmConfig(engine="scripted", retries=0, max_context_tokens=2000))
    assert summarized(tables, config, llm=llm)["summaries"].num_rows > 0


def test_a_community_that_only_titles_name_is_empty(build: Callable[[Documents], Tables]) -> None:
    tables = build(DOCUMENTS)
    tables["sentences"] = schemas.SENTENCES.empty()
    done = summarized(tables)
    assert done["summaries"].num_rows == done["summary_vectors"].num_rows == 0


def test_no_communities_no_summaries(build: Callable[[Documents], Tables]) -> None:
    tables = build({"a": ("", "Nothing here is named.")})
    assert summarized(tables)["summaries"].num_rows == 0
    assert json.dumps(s09_summarize.STAGE.fingerprint(SummarizeConfig(), {"encoder": "e"}))
