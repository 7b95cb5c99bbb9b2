"""Source text, normal forms and verbatim spans.

Offsets count code points of a document's *source text* (`source_text`). A span is found under folding (white space,
case, typographic quotes and dashes), but what is stored and shown is always the source's own slice.
"""

import re
import unicodedata
from functools import lru_cache

_SPACES = re.compile(r"\s+")
_ASCII_PHRASE = re.compile(r"[^A-Za-z0-9 ]")
_QUOTES_AND_DASHES = {
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201b": "'", "\u2032": "'", "\u00b4": "'", "`": "'",
    "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"', "\u2033": '"', "\u00ab": '"', "\u00bb": '"',
    "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2015": "-", "\u2212": "-",
}  # fmt: skip
_INVISIBLE = frozenset(
    "\u00ad\u200b\u200c\u200d\u2060\ufeff"
    "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # marks of writing direction
)
_SURROGATES = re.compile("[\ud800-\udfff]")
# Nothing to see: white space, controls, Unicode's Default_Ignorable_Code_Point (fillers of Hangul, variation selectors,
# joiners, tags, ...), annotation marks, and the Braille cell without a dot.
_BLANK = re.compile(
    "[\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)


def source_text(title: str, text: str) -> str:
    """Return title + newline + text, or the one that is there; all offsets of the document count in this text."""
    return f"{title}\n{text}" if title and text else title or text


def body_start(title: str, text: str) -> int:
    """Return the offset in the source text at which the body starts: 0 for an untitled or a title-only document."""
    return len(title) + 1 if title and text else 0


def is_blank(text: str) -> bool:
    """Return whether the text holds nothing but white space and invisible characters."""
    return _BLANK.fullmatch(text) is not None


def clean_text(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD, one for one, so that offsets stay what they were.

    Control characters stay: they are valid Unicode and every file format here carries them.
    """
    try:
        text.encode("utf-8")  # ten times as fast as looking for them, and nearly no text has one
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text


def normal_form(name: str) -> str:
    """Return the Unicode-safe normal form of a name: NFKC, case folded, white space collapsed, no invisible characters.

    Names in every script keep their letters. A name that would become empty keeps its own characters.
    """
    # Quotes before NFKC too, which takes the acute accent as a quote apart into a space and a mark.
    plain = "".join(_QUOTES_AND_DASHES.get(c, c) for c in name if c not in _INVISIBLE)
    folded = unicodedata.normalize("NFKC", plain).casefold()
    folded = "".join(_QUOTES_AND_DASHES.get(c, c) for c in folded)
    return _SPACES.sub(" ", folded).strip() or name


def ascii_phrase(name: str) -> str:
    """Return HippoRAG 2's phrase form: lower case, all but [A-Za-z0-9 ] turned into spaces. Empties non-Latin names.

    Source: public code of HippoRAG 2 (`text_processing`); used by the system `hipporag2` alone.
    """
    return _ASCII_PHRASE.sub(" ", name.lower()).strip()


@lru_cache(maxsize=32)  # many names are looked for in one text, one after the other
def fold(text: str) -> tuple[str, list[int]]:
    """Return the folded text and, for each of its characters, the offset in `text` that it came from.

    Folding: NFKC, case, runs of white space to one space, typographic quotes and dashes to ASCII, invisible
    characters gone. A character is folded together with the marks that follow it, so that composed and decomposed
    text are equal; what comes of them has the offset of the first.
    """
    folded: list[str] = []
    origin: list[int] = []
    end = 0
    while end < len(text):
        start, char = end, text[end]
        end += 1
        if char in _INVISIBLE:
            continue
        if char.isspace():
            if folded and folded[-1] != " ":
                folded.append(" ")
                origin.append(start)
            continue
        if end < len(text) and not text[end].isascii():
            end = _end_of_marks(text, end)
        if end == start + 1 and char.isascii():
            folded.append("'" if char == "`" else char.lower())
            origin.append(start)
            continue
        mapped = _QUOTES_AND_DASHES.get(char, "") if end == start + 1 else ""
        for part in mapped or unicodedata.normalize("NFKC", text[start:end]).casefold():
            if part != " " or (folded and folded[-1] != " "):  # NFKC writes an accent alone as a space and a mark
                folded.append(_QUOTES_AND_DASHES.get(part, part))
                origin.append(start)
    return "".join(folded), origin


def unfold(source: str, origin: list[int], at: int, end: int) -> tuple[int, int]:
    """Return (start, end) in `source` of the folded text's slice [at, end), with all marks of its last character."""
    return origin[at], _end_of_marks(source, origin[end - 1] + 1)


def find_span(source: str, quote: str) -> tuple[int, int] | None:
    """Return (start, end) of the first place where `quote` stands in `source`, exactly or under folding, else None.

    A quote without a word character is never found.
    """
    if not any(c.isalnum() for c in quote):
        return None
    start = source.find(quote)
    if start >= 0:
        return start, start + len(quote)
    needle = fold(quote)[0].strip()
    haystack, origin = fold(source)
    at = haystack.find(needle)
    if at < 0 or not needle:
        return None
    return unfold(source, origin, at, at + len(needle))


def smallest_window(source: str, first: str, second: str) -> tuple[int, int] | None:
    """Return (start, end) of the smallest window of `source` that holds both names under folding, else None."""
    haystack, origin = fold(source)
    spans = []
    for name in (first, second):
        needle = fold(name)[0].strip()
        found = _occurrences(haystack, needle)
        if not found:
            return None
        spans.append(found)
    best: tuple[int, int] | None = None
    i = j = 0
    while i < len(spans[0]) and j < len(spans[1]):
        (a_start, a_end), (b_start, b_end) = spans[0][i], spans[1][j]
        window = (min(a_start, b_start), max(a_end, b_end))
        if best is None or window[1] - window[0] < best[1] - best[0]:
            best = window
        if a_start < b_start:
            i += 1
        else:
            j += 1
    assert best is not None
    return unfold(source, origin, *best)


def _end_of_marks(text: str, end: int) -> int:
    """Return the end of the run of combining marks, or vowels and finals of decomposed Hangul, that starts at `end`."""
    while end < len(text):
        char = text[end]
        if char.isascii() or not ("\u1160" <= char <= "\u11ff" or unicodedata.category(char).startswith("M")):
            break
        end += 1
    return end


def _occurrences(haystack: str, needle: str) -> list[tuple[int, int]]:
    """Return the spans of `needle` in `haystack` at word boundaries, or anywhere if it never stands at one."""
    if not needle or not any(c.isalnum() for c in needle):
        return []
    anywhere = []
    at = haystack.find(needle)
    while at >= 0:
        anywhere.append((at, at + len(needle)))
        at = haystack.find(needle, at + 1)
    whole = [
        (start, end)
        for start, end in anywhere
        if not (start > 0 and haystack[start - 1].isalnum() and haystack[start].isalnum())
        and not (end < len(haystack) and haystack[end].isalnum() and haystack[end - 1].isalnum())
    ]
    return whole or anywhere
