"""Over any text and any lengths: exact slices, bounded, not blank, and nothing visible is left out."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index.s03_chunk import STAGE, ChunkConfig
from gpu_rag.index.sentences import sentence_spans
from gpu_rag.spans import body_start, is_blank, source_text

_CHARACTER = st.one_of(
    st.sampled_from("ab AB.?!\u3002\"'()\n\r\t\u2028\u00a0\x00\ufeff\u200b\u4f60\u597d\U0001f600\u0301"),
    st.characters(codec="utf-8"),
)
_TEXT = st.text(_CHARACTER, max_size=120)


@st.composite
def _configs(draw: st.DrawFn) -> ChunkConfig:
    window = draw(st.integers(1, 12))
    longest = draw(st.integers(2, 30))
    return ChunkConfig(
        preset=draw(st.sampled_from(["passage", "words-500-200"])),
        window_words=window,
        overlap_words=draw(st.integers(0, window - 1)),
        max_chars=draw(st.integers(1, 60)),
        min_sentence_chars=draw(st.integers(0, longest - 1)),
        max_sentence_chars=longest,
    )


def _run(title: str, text: str, config: ChunkConfig) -> dict[str, Any]:
    work = pa.table({"work_key": ["k"], "title": [title], "text": [text], "recorded": pa.array([[]], pa.list_(pa.string()))})
    (row,) = STAGE.run(work, config=config).to_pylist()
    return row


@settings(max_examples=300, deadline=None)
@given(st.text(_CHARACTER, max_size=8), _TEXT, _configs())
def test_chunks_are_bounded_slices_that_cover_the_source(title: str, text: str, config: ChunkConfig) -> None:
    source = source_text(title, text)
    row = _run(title, text, config)
    covered: set[int] = set()
    for span in row["chunks"]:
        assert 0 <= span["start"] < span["end"] <= len(source)
        assert span["end"] - span["start"] <= config.max_chars
        assert not is_blank(source[span["start"] : span["end"]])
        covered.update(range(span["start"], span["end"]))
    left_out = [source[at] for at in range(len(source)) if at not in covered]
    assert all(is_blank(char) for char in left_out)


@settings(max_examples=300, deadline=None)
@given(st.text(_CHARACTER, max_size=8), _TEXT, _configs())
def test_sentences_lie_in_their_chunk_in_order_and_cover_its_body(title: str, text: str, config: ChunkConfig) -> None:
    source = source_text(title, text)
    row = _run(title, text, config)
    for index, chunk in enumerate(row["chunks"]):
        spans = [(s["start"], s["end"]) for s in row["sentences"] if s["chunk"] == index]
        assert spans, "a chunk without a sentence"
        at, body = chunk["start"], body_start(title, text)
        if at < body < chunk["end"] and not is_blank(source[body : chunk["end"]]):
            at = body
        for start, end in spans:
            assert is_blank(source[at:start])
            assert start < end
            assert end - start <= config.max_sentence_chars
            assert source[start:end] == source[start:end].strip()
            assert not is_blank(source[start:end])
            at = end
        assert is_blank(source[at : chunk["end"]])


@settings(max_examples=300, deadline=None)
@given(_TEXT)
def test_fragments_are_merged_wherever_that_fits(text: str) -> None:
    spans = sentence_spans(text, min_chars=10, max_chars=1000)
    assert all(end - start >= 10 for start, end in spans) or len(spans) == 1
