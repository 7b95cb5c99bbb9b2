from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from gpu_rag import schemas
from gpu_rag.errors import InputError
from gpu_rag.index import s02_profile
from gpu_rag.index.s02_profile import ProfileConfig
from gpu_rag.index.s03_chunk import STAGE, ChunkConfig
from gpu_rag.spans import source_text
from gpu_rag.stage import run_here, work_keys

Document = tuple[str, str, str]  # id, title, text
Recorded = tuple[str, str, str]  # parent, chunk id, text
PASSAGE = ChunkConfig()
RECORDED = ChunkConfig(preset="recorded")


def _tables(documents: list[Document], recorded: Sequence[Recorded] = ()) -> dict[str, pa.Table]:
    rows = [
        {
            "doc_id": doc_id, "title": title, "text": text, "access": [], "duplicate_of": None,
            "state": "ok" if title + text else "skipped", "reason": "",
        }
        for doc_id, title, text in documents
    ]  # fmt: skip
    chunks = [
        {"doc_id": doc_id, "chunk_id": name, "order": order, "text": text}
        for order, (doc_id, name, text) in enumerate(recorded)
    ]
    tables = {
        "documents": schemas.DOCUMENTS.from_rows(rows),
        "recorded_chunks": schemas.RECORDED_CHUNKS.from_rows(chunks),
    }
    return tables | run_here(s02_profile.STAGE, ProfileConfig(), tables)


def _chunk(
    documents: list[Document], config: ChunkConfig = PASSAGE, recorded: Sequence[Recorded] = ()
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    """Return chunks and sentences in order of their place, and the reasons of documents that are not ok."""
    tables = _tables(documents, recorded)
    content = STAGE.content(tables, config)
    work = content.set_column(0, "work_key", content.column("row_id"))
    results = STAGE.run(work, config=config)
    assert results.schema == STAGE.result_schema
    results = results.rename_columns({"work_key": "row_id"})
    output = STAGE.assemble(tables, results, config)
    chunks = schemas.check_table(output["chunks"], schemas.CHUNKS).to_pylist()
    sentences = schemas.check_table(output["sentences"], schemas.SENTENCES).to_pylist()
    place = {row["chunk_id"]: (row["doc_id"], row["order"]) for row in chunks}
    chunks.sort(key=lambda row: (row["doc_id"], row["order"]))
    sentences.sort(key=lambda row: (*place[row["chunk_id"]], row["order"]))
    reasons = {row["row_id"]: row["reason"] for row in results.to_pylist() if row["state"] != "ok"}
    return chunks, sentences, reasons


def test_passage_is_the_whole_source_text_and_its_sentences_leave_the_title_out() -> None:
    text = "The first sentence is here. The second one follows it."
    chunks, sentences, _ = _chunk([("d", "Title", text)])
    (chunk,) = chunks
    assert (chunk["start"], chunk["end"], chunk["text"], chunk["order"]) == (0, len(text) + 6, f"Title\n{text}", 0)
    assert [row["text"] for row in sentences] == ["The first sentence is here.", "The second one follows it."]
    assert [row["order"] for row in sentences] == [0, 1]
    assert [chunk["text"][row["start"] : row["end"]] for row in sentences] == [row["text"] for row in sentences]


def test_a_document_of_title_alone_has_its_title_as_sentence() -> None:
    for text in ("", "  \n"):
        chunks, sentences, _ = _chunk([("d", "Only a title", text)])
        assert [row["text"] for row in sentences] == ["Only a title"]
        assert len(chunks) == 1


def test_documents_without_text_give_no_chunk_and_no_documents_give_tables() -> None:  # C13
    for documents in ([], [("a", "", ""), ("b", "", "")]):
        assert _chunk(documents) == ([], [], {})


def test_equal_documents_are_one_piece_of_work_and_get_chunks_of_their_own() -> None:  # D2
    tables = _tables([("d1", "T", "same text here."), ("d2", "T", "same text here.")])
    assert len(set(work_keys(STAGE.content(tables, PASSAGE), "f"))) == 1
    chunks, sentences, _ = _chunk([("d1", "T", "same text here."), ("d2", "T", "same text here.")])
    assert [row["doc_id"] for row in chunks] == [row["doc_id"] for row in sentences] == ["d1", "d2"]
    assert len({row["chunk_id"] for row in chunks}) == len({row["sentence_id"] for row in sentences}) == 2


def test_title_and_text_do_not_run_together_in_the_work_key() -> None:
    tables = _tables([("d1", "ab", "c"), ("d2", "a", "bc")])
    assert len(set(work_keys(STAGE.content(tables, PASSAGE), "f"))) == 2


def test_windows_of_500_words_share_200() -> None:
    words = [f"w{i}" for i in range(1100)]
    chunks, _, _ = _chunk([("d", "", " ".join(words))], ChunkConfig(preset="words-500-200"))
    assert [row["text"].split() for row in chunks] == [words[0:500], words[300:800], words[600:1100]]
    assert [row["order"] for row in chunks] == [0, 1, 2]


@pytest.mark.parametrize(("num_words", "num_windows"), [(1, 1), (499, 1), (500, 1), (501, 2), (800, 2), (801, 3)])
def test_the_last_window_is_no_tail_of_the_one_before(num_words: int, num_windows: int) -> None:
    chunks, _, _ = _chunk([("d", "", "word " * num_words)], ChunkConfig(preset="words-500-200"))
    assert len(chunks) == num_windows
    ends = [row["end"] for row in chunks]
    assert ends == sorted(set(ends))


def test_windows_start_in_the_title_and_count_characters_of_chinese() -> None:
    config = ChunkConfig(preset="words-500-200", window_words=4, overlap_words=1)
    chunks, _, _ = _chunk([("d", "T", "\u4e00\u4e8c\u4e09 x y\u56db\u4e94")], config)
    assert [row["text"] for row in chunks] == ["T\n\u4e00\u4e8c\u4e09", "\u4e09 x y\u56db", "\u56db\u4e94"]


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "tok " * 250_000,
        "\n" * 500_000 + "x" * 500_000,
        "\u4f60\u597d\u3002" * 60_000,
        "x" * 50_000 + ". End of it.",
    ],
    ids=["no space", "one token", "newlines", "chinese", "long sentence"],
)
@pytest.mark.parametrize("preset", ["passage", "words-500-200"])
def test_every_chunk_is_bounded_and_together_they_cover_the_text(text: str, preset: str) -> None:  # C6, C9
    chunks, sentences, _ = _chunk([("d", "", text)], ChunkConfig.model_validate({"preset": preset}))
    assert max(len(row["text"]) for row in chunks) <= 20_000
    assert all(row["text"].strip() for row in chunks)
    covered = bytearray(len(text))
    for row in chunks:
        covered[row["start"] : row["end"]] = b"\x01" * (row["end"] - row["start"])
    assert all(covered[at] for at, char in enumerate(text) if not char.isspace())
    assert max(len(row["text"]) for row in sentences) <= 2_000


def test_a_long_text_is_cut_at_sentence_ends_else_at_white_space() -> None:
    config = ChunkConfig(max_chars=100)
    sentence = "This sentence has exactly forty letters. "
    chunks, _, _ = _chunk([("d", "", sentence * 5)], config)
    assert [row["text"] for row in chunks] == [sentence * 2, sentence * 2, sentence]
    chunks, _, _ = _chunk([("d", "", "seven77 " * 30)], config)
    assert {row["text"] for row in chunks} <= {"seven77 " * 12, "seven77 " * 6}


def test_an_inserted_sentence_renames_no_other_chunk() -> None:
    config = ChunkConfig(preset="words-500-200", window_words=3, overlap_words=0)
    before = {row["text"]: row["chunk_id"] for row in _chunk([("d", "", "a b c d e f")], config)[0]}
    after = {row["text"]: row["chunk_id"] for row in _chunk([("d", "", "x y z a b c d e f")], config)[0]}
    assert before.items() < after.items()


def test_equal_chunks_of_a_document_have_ids_of_their_own() -> None:
    config = ChunkConfig(preset="words-500-200", window_words=1, overlap_words=0)
    chunks, sentences, _ = _chunk([("d", "", "no no no")], config)
    assert len({row["chunk_id"] for row in chunks}) == len({row["sentence_id"] for row in sentences}) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_words": 200, "overlap_words": 200}, {"window_words": 100}, {"overlap_words": -1}, {"max_chars": 0},
        {"min_sentence_chars": 50, "max_sentence_chars": 50}, {"preset": "pages"}, {"size": 3},
    ],
)  # fmt: skip
def test_lengths_that_do_not_fit_are_refused_by_name(wrong: dict[str, Any]) -> None:  # C7
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ChunkConfig.model_validate(wrong)


def test_recorded_chunks_keep_their_ids_and_stand_where_they_were_cut() -> None:
    source = "T\nOne  two\nthree. \u201cFour\u201d five. One two."
    recorded = [("d", "d#0", "One two three."), ("d", "d#1", '"Four" five.'), ("d", "d#2", "One two.")]
    chunks, sentences, reasons = _chunk([("d", "T", source[2:])], RECORDED, recorded)
    assert reasons == {}
    assert [(row["chunk_id"], row["text"]) for row in chunks] == [
        ("d#0", "One  two\nthree."), ("d#1", "\u201cFour\u201d five."), ("d#2", "One two."),
    ]  # fmt: skip
    assert all(row["text"] == source[row["start"] : row["end"]] for row in chunks + sentences)


def test_repeated_recorded_chunks_are_told_apart_and_order_goes_by_place() -> None:
    recorded = [("d", "x", "same"), ("d", "y", "same"), ("d", "z", "first")]
    chunks, _, _ = _chunk([("d", "", "first same other same")], RECORDED, recorded)
    assert [(row["chunk_id"], row["start"]) for row in chunks] == [("z", 0), ("x", 6), ("y", 17)]


def test_a_recorded_chunk_that_is_not_there_makes_its_document_invalid_and_no_other() -> None:
    documents = [("a", "", "one two"), ("b", "", "one two"), ("c", "", "three"), ("e", "", "four " * 10)]
    recorded = [("a", "a#0", "one"), ("a", "a#1", "missing"), ("b", "b#0", "two"), ("e", "e#0", "four " * 9)]
    config = ChunkConfig(preset="recorded", max_chars=20)
    chunks, sentences, reasons = _chunk(documents, config, recorded)
    assert reasons == {
        "a": "recorded chunk a#1 does not stand in the document",
        "c": "no chunk is recorded for the document",
        "e": "recorded chunk e#0 has 45 characters, more than chunk.max_chars=20",
    }
    assert [row["chunk_id"] for row in chunks] == ["b#0"] == [row["chunk_id"] for row in sentences]


def test_recorded_without_recorded_chunks_is_refused() -> None:
    with pytest.raises(InputError, match=r"no chunks\.jsonl"):
        _chunk([("a", "", "one")], RECORDED)
    assert _chunk([], RECORDED) == ([], [], {})


def test_recorded_chunks_are_no_content_of_other_presets() -> None:
    documents, recorded = [("d", "", "one two")], [("d", "d#0", "one")]
    with_them = STAGE.content(_tables(documents, recorded), PASSAGE)
    assert with_them.equals(STAGE.content(_tables(documents), PASSAGE))


def test_all_recorded_chunks_of_the_novels_are_located(data_root: Any) -> None:
    from gpu_rag.index.s01_ingest import IngestConfig, read_corpus

    corpus = read_corpus(data_root / "novels3", IngestConfig())
    documents = [(row["doc_id"], row["title"], row["text"]) for row in corpus.documents.to_pylist()]
    recorded = [(row["doc_id"], row["chunk_id"], row["text"]) for row in corpus.recorded_chunks.to_pylist()]
    chunks, _, reasons = _chunk(documents, RECORDED, recorded)
    assert reasons == {}
    assert {row["chunk_id"] for row in chunks} == {name for _, name, _ in recorded}
    sources = {doc_id: source_text(title, text) for doc_id, title, text in documents}
    assert all(row["text"] == sources[row["doc_id"]][row["start"] : row["end"]] for row in chunks)
    assert [row["chunk_id"] for row in chunks] == sorted(row["chunk_id"] for row in chunks)
