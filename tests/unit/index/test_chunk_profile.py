"""Stage 03 by the profile: bounds, sections, overlap, scope, and what an edit leaves alone."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_rag import schemas
from gpu_rag.engines.encoder import EncoderConfig
from gpu_rag.engines.token_counter import TokenCounter, open_token_counter
from gpu_rag.index import s02_profile
from gpu_rag.index.packing import Limits, packed_spans
from gpu_rag.index.s02_profile import ProfileConfig
from gpu_rag.index.s03_chunk import STAGE, ChunkConfig
from gpu_rag.spans import body_start, is_blank, source_text
from gpu_rag.stage import run_here, work_keys

TOKENIZER = open_token_counter(EncoderConfig())
SMALL = ChunkConfig(preset="profile", max_tokens=48, overlap_tokens=16)
TOLD = [f"On day {number} he walked along the wall and counted {number} gulls." for number in range(400)]
EXPLAINED = [f"A lock of type {number} is a chamber that has {number} gates and is used in canals." for number in range(400)]


def paragraphs(sentences: list[str], size: int = 4) -> str:
    return "\n\n".join(" ".join(sentences[at : at + size]) for at in range(0, len(sentences), size))


def tables(*documents: tuple[str, str, str]) -> dict[str, Any]:
    rows = [
        {"doc_id": doc_id, "title": title, "text": text, "access": [], "duplicate_of": None, "state": "ok", "reason": ""}
        for doc_id, title, text in documents
    ]
    made = {"documents": schemas.DOCUMENTS.from_rows(rows), "recorded_chunks": schemas.RECORDED_CHUNKS.empty()}
    return made | run_here(s02_profile.STAGE, ProfileConfig(), made)


def chunks(title: str, text: str, config: ChunkConfig = SMALL) -> list[dict[str, Any]]:
    made = run_here(STAGE, config, tables(("d", title, text)), tokenizer=TOKENIZER)
    return sorted(made["chunks"].to_pylist(), key=lambda row: row["order"])


def embedded(row: dict[str, Any], body: int) -> str:
    return row["text"] if row["start"] < body or not row["title"] else f"{row['title']}\n{row['text']}"


def assert_sound(title: str, text: str, rows: list[dict[str, Any]], config: ChunkConfig) -> None:
    """Exact slices in order, bounded in tokens and characters, that leave out nothing but blanks."""
    source, body = source_text(title, text), body_start(title, text)
    covered = np.zeros(len(source), dtype=bool)
    for row in rows:
        assert row["text"] == source[row["start"] : row["end"]]
        assert not is_blank(row["text"])
        assert len(row["text"]) <= config.max_chars
        covered[row["start"] : row["end"]] = True
    assert is_blank("".join(source[at] for at in np.flatnonzero(~covered)))
    assert max(TOKENIZER.count([embedded(row, body) for row in rows]), default=0) <= config.max_tokens
    assert [row["start"] for row in rows] == sorted({row["start"] for row in rows})
    assert [row["end"] for row in rows] == sorted({row["end"] for row in rows})
    scopes = [row["scope"] for row in rows]
    assert scopes == sorted(scopes)


def test_a_document_that_fits_is_one_chunk_and_a_longer_one_is_not() -> None:
    (row,) = chunks("Title", "# One\n\nShort.\n\n# Two\n\nAlso short.")
    assert (row["text"], row["section"], row["scope"]) == ("Title\n# One\n\nShort.\n\n# Two\n\nAlso short.", "", 2)
    assert len(chunks("Title", paragraphs(TOLD[:12]))) > 1


@pytest.mark.parametrize("sentences", [TOLD, EXPLAINED], ids=["narrative", "conceptual"])
def test_chunks_end_with_sentences_within_the_bound(sentences: list[str]) -> None:
    text = paragraphs(sentences)
    rows = chunks("The Wall", text)
    assert_sound("The Wall", text, rows, SMALL)
    assert all(row["text"].rstrip().endswith(".") for row in rows)
    counts = TOKENIZER.count([embedded(row, 9) for row in rows])
    assert np.median(counts) > SMALL.max_tokens / 2


def test_a_narrative_repeats_a_sentence_and_other_modes_none() -> None:
    told = chunks("", paragraphs(TOLD))
    assert {row["discourse"] for row in told} == {"narrative"}
    overlaps = [before["end"] - after["start"] for before, after in pairwise(told)]
    assert min(overlaps) > 0
    repeated = [told[at]["text"][-length:].strip() for at, length in enumerate(overlaps)]
    assert all(text in TOLD for text in repeated)
    explained = chunks("", paragraphs(EXPLAINED))
    assert {row["discourse"] for row in explained} == {"conceptual"}
    assert all(before["end"] == after["start"] for before, after in pairwise(explained))
    without = chunks("", paragraphs(TOLD), SMALL.model_copy(update={"overlap_tokens": 0}))
    assert all(before["end"] == after["start"] for before, after in pairwise(without))


def test_a_cut_moves_back_to_the_end_of_a_paragraph_in_the_second_half() -> None:
    rows = chunks("", paragraphs(EXPLAINED, 2))
    assert all(row["text"].endswith("\n\n") for row in rows[:-1])
    whole = chunks("", " ".join(EXPLAINED))
    assert not any("\n" in row["text"] for row in whole)


def test_a_speaker_stays_with_what_is_said() -> None:
    play = " ".join(f"ANNA. I saw gull {number} there. BEN. It has flown to wall {number} again." for number in range(60))
    rows = chunks("", play, SMALL.model_copy(update={"overlap_tokens": 0}))
    assert len(rows) > 10
    assert not any(row["text"].rstrip().endswith(("ANNA.", "BEN.")) for row in rows)
    assert_sound("", play, rows, SMALL)


def test_no_chunk_reaches_over_a_chapter_and_scope_shows_exactly_what_was_read() -> None:
    names = [f"Chapter {number}" for number in (1, 2, 3)]
    text = "It begins.\n\n" + "\n\n".join(f"{name}\n\n{paragraphs(TOLD[:30])}" for name in names)
    rows = chunks("The Wall", text)
    source = source_text("The Wall", text)
    starts = [source.index(name) for name in names]
    assert_sound("The Wall", text, rows, SMALL)
    for row in rows:
        assert not any(row["start"] < start < row["end"] for start in starts)
        assert row["scope"] == sum(start < row["end"] for start in starts)
        assert row["section"] == (names[row["scope"] - 1] if row["scope"] else "")
    assert {row["scope"] for row in rows} == {0, 1, 2, 3}


@pytest.mark.parametrize("preset", ["passage", "words-500-200"])
def test_a_chunk_that_reaches_into_the_next_chapter_is_not_visible_before_it(preset: str) -> None:
    text = "\n\n".join(f"Chapter {number}\n\n{paragraphs(TOLD[:30])}" for number in (1, 2, 3))
    config = ChunkConfig.model_validate({"preset": preset, "window_words": 150, "overlap_words": 40, "max_chars": 1500})
    rows = chunks("", text, config)
    starts = [text.index(f"Chapter {number}") for number in (1, 2, 3)]
    assert any(row["start"] < start < row["end"] for row in rows for start in starts)
    for row in rows:
        assert row["scope"] == sum(start < row["end"] for start in starts)
        inside = sum(start <= row["start"] for start in starts)
        assert row["section"] == (f"Chapter {inside}" if inside == row["scope"] else "")


def test_a_document_without_boundary_has_scope_0_and_topics_of_its_profile() -> None:
    rows = chunks("The Wall", paragraphs(TOLD[:40]))
    assert {(row["scope"], row["section"]) for row in rows} == {(0, "")}
    assert all(row["topics"][0] == "wall" for row in rows)


def test_one_changed_paragraph_leaves_the_chunks_of_all_other_sections() -> None:
    bodies = [paragraphs([f"{name} {sentence}" for sentence in TOLD[:40]]) for name in ("Ann", "Ben", "Cyd", "Dan", "Eve")]
    before = [f"Chapter {number}\n\n{body}" for number, body in enumerate(bodies, 1)]
    middle = before[2].split("\n\n")
    middle[4] = "Nobody was there, and nothing that had been said before was true any more. " * 3
    after = [*before[:2], "\n\n".join(middle), *before[3:]]
    old, new = (chunks("Five", "\n\n".join(parts)) for parts in (before, after))
    kept = {row["chunk_id"]: row["text"] for row in old if row["scope"] != 3}
    assert len(kept) > 20
    assert {row["chunk_id"]: row["text"] for row in new if row["scope"] != 3} == kept
    assert {row["chunk_id"] for row in old} != {row["chunk_id"] for row in new}
    same = {row["chunk_id"] for row in old if row["scope"] == 3} & {row["chunk_id"] for row in new}
    assert same  # what stands before the changed paragraph


def test_a_heading_without_text_stays_with_the_next_one() -> None:
    text = f"PART ONE\n\nCHAPTER I\n\n{paragraphs(TOLD[:20])}\n\nCHAPTER II\n\n{paragraphs(TOLD[:20])}"
    rows = chunks("", text)
    assert rows[0]["text"].startswith("PART ONE\n\nCHAPTER I\n\nOn day 0")
    assert rows[0]["section"] == "PART ONE > CHAPTER I"
    assert rows[-1]["section"] == "PART ONE > CHAPTER II"


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000, "tok " * 250_000, "\n" * 200_000 + "x" * 200_000, "\u4f60\u597d\u3002" * 60_000,
        "word " * 10_000 + ". End of it.", "\u4f60" * 50_000, "a." * 50_000, "CHAPTER I\n\n" * 3000, "- x\n" * 20_000,
    ],
    ids=["no space", "one token", "newlines", "chinese", "long sentence", "no stop", "dots", "bare headings", "list"],
)  # fmt: skip
def test_odd_texts_are_bounded_and_covered(text: str) -> None:  # C6, C9
    config = ChunkConfig(preset="profile")
    rows = chunks("A title", text, config)
    assert_sound("A title", text, rows, config)
    assert sum(len(row["text"]) for row in rows) < 2 * len(text) + 100


def test_a_title_that_takes_most_of_the_room_leaves_a_quarter() -> None:
    title = "a very long title " * 20
    rows = chunks(title, paragraphs(TOLD[:40]))
    own = TOKENIZER.count([row["text"] for row in rows if row["start"] > len(title)])
    assert max(own) <= SMALL.max_tokens // 4 + 2
    assert max(TOKENIZER.count([row["text"] for row in rows])) <= SMALL.max_tokens


@settings(max_examples=150, deadline=None)
@given(
    title=st.sampled_from(["", "T", "A title of seven words, or eight"]),
    text=st.text(
        st.one_of(st.sampled_from("ab A.?!\u3002\"'\n\t\u00a0\u200b\u4f60#I1"), st.characters(codec="utf-8")), max_size=300
    ),
    tokens=st.integers(16, 40),
    overlap=st.integers(0, 15),
    chars=st.integers(1, 200),
)
def test_any_text_is_bounded_and_covered(title: str, text: str, tokens: int, overlap: int, chars: int) -> None:
    config = ChunkConfig(preset="profile", max_tokens=tokens, overlap_tokens=overlap, max_chars=chars)
    if title or text:
        rows = chunks(title, text, config)
        source, body = source_text(title, text), body_start(title, text)
        room = max(tokens, TOKENIZER.count([f"{title}\n"])[0] + max(1, tokens // 4))
        assert all(row["text"] == source[row["start"] : row["end"]] and len(row["text"]) <= chars for row in rows)
        counts = TOKENIZER.count([embedded(row, body) for row in rows])
        assert all(count <= room or len(row["text"]) == 1 for count, row in zip(counts, rows, strict=True))
        covered = {at for row in rows for at in range(row["start"], row["end"])}
        assert is_blank("".join(char for at, char in enumerate(source) if at not in covered))


class TwiceAsMany:
    """A tokenizer whose counts do not add up: a text has more tokens than its parts."""

    def count(self, texts: Any) -> list[int]:
        return [2 + len(text) // 5 + (len(text) // 20) ** 2 for text in texts]

    def starts(self, text: str) -> np.ndarray:
        return np.arange(0, len(text), 5)


def test_the_bound_holds_for_a_tokenizer_whose_counts_do_not_add_up() -> None:
    tokenizer: TokenCounter = TwiceAsMany()
    source = paragraphs(TOLD)
    spans = packed_spans(source, "", 0, [], Limits(60, 20_000, 10), tokenizer)
    assert max(tokenizer.count([source[start:end] for start, end in spans])) <= 60
    assert {at for start, end in spans for at in range(start, end)} == set(range(len(source)))


@pytest.mark.parametrize("wrong", [{"overlap_tokens": 256}, {"max_tokens": 40}, {"max_tokens": 7, "overlap_tokens": 0}])
def test_an_overlap_that_is_no_smaller_than_the_chunk_is_refused_by_name(wrong: dict[str, int]) -> None:  # C7
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ChunkConfig.model_validate({"preset": "profile", **wrong})


def test_the_tokenizer_counts_where_it_is_asked_and_nowhere_else() -> None:
    def fingerprint(tokenizer: str, **settings: Any) -> str:
        return STAGE.fingerprint(ChunkConfig.model_validate(settings), {"tokenizer": tokenizer})

    assert STAGE.engines_for(ChunkConfig()) == ()
    assert fingerprint("a") == fingerprint("b") == fingerprint("a", max_tokens=99)
    assert fingerprint("a", preset="profile") != fingerprint("b", preset="profile")
    assert fingerprint("a", preset="profile") != fingerprint("a", preset="profile", max_tokens=99)
    assert fingerprint("a", preset="profile") == fingerprint("a", preset="profile", window_words=999)


def test_a_profile_is_content_of_its_own_preset_alone() -> None:
    made = tables(("d", "T", f"Chapter 1\n\n{paragraphs(TOLD[:20])}"))
    other = made | {"profiles": made["profiles"].set_column(3, schemas.PROFILES.schema.field(3), [["argumentative"]])}
    keys = [[work_keys(STAGE.content(t, config), "f") for t in (made, other)] for config in (ChunkConfig(), SMALL)]
    assert keys[0][0] == keys[0][1]
    assert keys[1][0] != keys[1][1]
    rows = run_here(STAGE, ChunkConfig(), other)["chunks"].to_pylist()
    assert {row["discourse"] for row in rows} == {"argumentative"}
