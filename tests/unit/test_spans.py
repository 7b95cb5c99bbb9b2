import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_rag import spans

_TEXT = st.text(max_size=12)
_QUOTE = _TEXT.filter(lambda text: any(c.isalnum() for c in text))
_AB = st.text(alphabet="ab c", max_size=14)
_NAME = st.text(alphabet="ab", min_size=1, max_size=2)


@pytest.mark.parametrize(
    ("title", "text", "source", "body"),
    [("T", "x", "T\nx", 2), ("T", "", "T", 0), ("", "x", "x", 0), ("", "", "", 0), ("a\nb", " ", "a\nb\n ", 4)],
)
def test_source_text_is_title_newline_text(title: str, text: str, source: str, body: int) -> None:
    assert spans.source_text(title, text) == source
    assert spans.body_start(title, text) == body
    if text:
        assert spans.source_text(title, text)[body:] == text


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", "\ufeff", "\u00a0\u3000", "\x00\x01", "\u200e \u202b"])
def test_white_space_and_invisible_characters_are_blank(text: str) -> None:
    assert spans.is_blank(text)


@pytest.mark.parametrize("text", [".", "a", " \u4e2d ", "\ufffd", "\u0301", "\U0001f600"])
def test_anything_visible_is_not_blank(text: str) -> None:
    assert not spans.is_blank(text)


@given(st.text(alphabet=st.characters(), max_size=20))
def test_clean_text_can_be_encoded_and_keeps_offsets(text: str) -> None:
    cleaned = spans.clean_text(text)
    cleaned.encode("utf-8")
    assert len(cleaned) == len(text)
    assert all(a == b or (b == "\ufffd" and "\ud800" <= a <= "\udfff") for a, b in zip(text, cleaned, strict=True))


def test_clean_text_replaces_a_lone_surrogate_and_nothing_else() -> None:
    assert spans.clean_text("a\ud800b \x00\x01\x0b\x0c\x1b\uffff") == "a\ufffdb \x00\x01\x0b\x0c\x1b\uffff"


@given(_TEXT)
def test_normal_form_is_its_own_normal_form_and_never_empties_a_name(name: str) -> None:
    normal = spans.normal_form(name)
    assert spans.normal_form(normal) == normal
    assert bool(normal) == bool(name)


@given(_TEXT)
def test_normal_form_does_not_see_composition(name: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    assert spans.normal_form(composed) == spans.normal_form(decomposed)


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("O\u00b4Neil", "o'neil"), ("O\u2019Neil", "o'neil"), ("\u201cThe\u201d  Who", '"the" who'), ("5\u2033", '5"'),
        ("STRASSE", "strasse"), ("Stra\u00dfe", "strasse"), ("\u6771\u4eac", "\u6771\u4eac"), ("\uff21", "a"),
        ("Ab\u200bc\u200e", "abc"), ("\u200b", "\u200b"), ("A\u00a0B", "a b"), ("1914\u20131918", "1914-1918"),
    ],
)  # fmt: skip
def test_normal_form_of_known_names(name: str, normal: str) -> None:
    assert spans.normal_form(name) == normal


def test_ascii_phrase_empties_other_scripts() -> None:
    assert spans.ascii_phrase("J. R. R. Tolkien's") == "j  r  r  tolkien s"
    assert spans.ascii_phrase("\u6771\u4eac") == ""


@given(_TEXT)
def test_fold_gives_an_offset_in_order_for_every_character(text: str) -> None:
    folded, origin = spans.fold(text)
    assert len(folded) == len(origin)
    assert origin == sorted(origin)
    assert all(0 <= offset < len(text) for offset in origin)
    assert "  " not in folded


@given(_TEXT, _QUOTE, _TEXT)
def test_a_quote_is_found_composed_decomposed_normalised_or_in_capitals(before: str, quote: str, after: str) -> None:
    nfc, nfd = unicodedata.normalize("NFC", quote), unicodedata.normalize("NFD", quote)
    for stands, asked in ((nfc, nfd), (nfd, nfc), (quote, spans.normal_form(quote)), (quote.upper(), quote)):
        assume(any(c.isalnum() for c in asked))
        source = f"{before} {stands} {after}"
        found = spans.find_span(source, asked)
        assert found is not None
        start, end = found
        assert 0 <= start < end <= len(source)


@given(_TEXT, _QUOTE, _TEXT)
def test_what_is_found_folds_to_the_quote(before: str, quote: str, after: str) -> None:
    source = before + quote + after
    start, end = spans.find_span(source, quote) or (0, 0)
    assert spans.fold(source[start:end])[0].strip() == spans.fold(quote)[0].strip()


@pytest.mark.parametrize("quote", ["", " ", "...", "\u2014", "\u200b"])
def test_a_quote_without_a_word_character_is_never_found(quote: str) -> None:
    assert spans.find_span(f"a {quote} b", quote) is None


@pytest.mark.parametrize(
    ("source", "quote", "slice_"),
    [
        ("He said: \u201cIt\u2019s  a\nday\u201d.", '"it\'s a day"', "\u201cIt\u2019s  a\nday\u201d"),
        ("the \ufb01eld ends", "FIELD", "\ufb01eld"),
        ("co\u00adoperate", "cooperate", "co\u00adoperate"),
        ("cafe\u0301 noir", "CAF\u00c9", "cafe\u0301"),
        ("1914 \u2013 1918", "1914 - 1918", "1914 \u2013 1918"),
    ],
)  # J6: true quotes must not be lost to curly quotes, dashes and line wraps
def test_presentation_is_folded_and_the_slice_is_the_sources_own(source: str, quote: str, slice_: str) -> None:
    start, end = spans.find_span(source, quote) or (0, 0)
    assert source[start:end] == slice_


def test_a_letter_without_its_accent_is_another_letter() -> None:
    assert spans.find_span("a cafe\u0301 b", "caf\u00e8") is None
    assert spans.find_span("only cafe\u0301", "coffee") is None


@given(_AB, _NAME, _NAME)
def test_smallest_window_is_the_smallest_over_all_pairs(source: str, first: str, second: str) -> None:
    got = spans.smallest_window(source, first, second)
    if first not in source or second not in source:
        assert got is None
        return
    folded = spans.fold(source)[0]
    pairs = [(a, b) for a in _at_boundaries(folded, first) for b in _at_boundaries(folded, second)]
    best = min(max(a[1], b[1]) - min(a[0], b[0]) for a, b in pairs)
    assert got is not None
    assert len(spans.fold(source[got[0] : got[1]])[0]) == best


def test_names_inside_words_count_only_where_there_are_no_others() -> None:
    assert spans.smallest_window("Anna met Ann in Paris", "Ann", "Paris") == (9, 21)
    assert spans.smallest_window("Anna in Paris", "Ann", "Paris") == (0, 13)
    assert spans.smallest_window("Anna in Paris", "Bob", "Paris") is None
    assert spans.smallest_window("Anna in Paris", "--", "Paris") is None


def _at_boundaries(text: str, name: str) -> list[tuple[int, int]]:
    found = [(at, at + len(name)) for at in range(len(text)) if text.startswith(name, at)]
    whole = [(a, b) for a, b in found if not text[a - 1 : a].isalnum() and not text[b : b + 1].isalnum()]
    return whole or found
