"""Passage text cut around spans, spans marked in place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_rag.evaluation.passages import ELLIPSIS, Segment, Span, highlight, shorten

_SPANS = st.lists(
    st.builds(Span, st.integers(-5, 400), st.integers(-5, 400), st.sampled_from(["D1", "D2"]), st.booleans()),
    max_size=5,
)


def test_spans_are_marked_in_place_and_overlaps_carry_both_labels() -> None:
    segments = highlight("0123456789", [Span(2, 6, "D1", False), Span(4, 8, "[1]", True)], 100)
    assert segments == [
        Segment("01", "plain", ""),
        Segment("23", "span", "D1"),
        Segment("45", "cited", "D1; [1]"),
        Segment("67", "cited", "[1]"),
        Segment("89", "plain", ""),
    ]


def test_a_long_text_keeps_what_is_around_its_spans() -> None:
    text = "lorem " * 500 + "HERE " + "ipsum " * 500 + "THERE " + "dolor " * 500
    segments = highlight(text, [Span(at := text.index("HERE"), at + 4, "D1", False), Span(at := text.index("THERE"), at + 5, "D2", False)], 300)  # fmt: skip
    assert [segment.text for segment in segments if segment.kind == "span"] == ["HERE", "THERE"]
    assert [segment.kind for segment in segments] == [
        "gap",
        "plain",
        "span",
        "plain",
        "gap",
        "plain",
        "span",
        "plain",
        "gap",
    ]


@given(st.text(max_size=400), _SPANS, st.integers(50, 200))
def test_segments_are_slices_of_the_text_in_order_and_bounded(text: str, spans: list[Span], limit: int) -> None:
    segments = highlight(text, spans, limit)
    at = 0
    for segment in segments:
        if segment.kind != "gap":
            at = text.index(segment.text, at) + len(segment.text)
    shown = "".join(segment.text for segment in segments if segment.kind != "gap")
    assert len(shown) <= 2 * limit
    if len(text) <= limit:
        assert shown == text
        marked = {i for span in spans for i in range(max(0, span.start), min(len(text), span.end))}
        assert sum(len(s.text) for s in segments if s.kind in ("span", "cited")) == len(marked)


@pytest.mark.parametrize(("text", "limit", "expected"), [("", 3, ""), ("abc", 3, "abc"), ("abcd", 3, "ab" + ELLIPSIS)])
def test_shorten_keeps_the_limit(text: str, limit: int, expected: str) -> None:
    assert shorten(text, limit) == expected
