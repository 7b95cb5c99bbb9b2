"""Source text, normal forms and verbatim spans.

Offsets count code points of a document's *source text* (`source_text`). A span is found under folding (white space, case,
typographic quotes and dashes), but what is stored and shown is always the source's own slice.
"""

import re
import unicodedata

_SPACES = re.compile(r"\s+")
_ASCII_PHRASE = re.compile(r"[^A-Za-z0-9 ]")
_QUOTES_AND_DASHES = {
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201b": "'", "\u2032": "'", "\u00b4": "'", "`": "'",
    "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"', "\u2033": '"', "\u00ab": '"', "\u00bb": '"',
    "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2015": "-", "\u2212": "-",
}  # fmt: skip
_INVISIBLE = frozenset("\u00ad\u200b\u200c\u200d\u2060\ufeff")


def source_text(title: str, text: str) -> str:
    """Return title + newline + text, or the one that is there; all offsets of the document count in this text."""
    return f"{title}\n{text}" if title and text else title or text


def body_start(title: str, text: str) -> int:
    """Return the offset in the source text at which the body starts: 0 for an untitled or a title-only document."""
    return len(title) + 1 if title and text else 0


def is_blank(text: str) -> bool:
    """Return whether the text holds nothing but white space and invisible characters."""
    return all(c.isspace() or c in _INVISIBLE or unicodedata.category(c) == "Cc" for c in text)


def clean_text(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD, one for one, so that offsets stay what they were.

    Control characters stay: they are valid Unicode and every file format here carries them.
    """
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def normal_form(name: str) -> str:
    """Return the Unicode-safe normal form of a name: NFKC, case folded, white space collapsed, invisible characters dropped.

    Names in every script keep their letters. A name that would become empty keeps its own characters.
    """
    folded = unicodedata.normalize("NFKC", "".join(c for c in name if c not in _INVISIBLE)).casefold()
    folded = "".join(_QUOTES_AND_DASHES.get(c, c) for c in folded)
    return _SPACES.sub(" ", folded).strip() or name


def ascii_phrase(name: str) -> str:
    """Return HippoRAG 2's phrase form: lower case, every character outside [A-Za-z0-9 ] a space. Empties non-Latin names.

    Source: public code of HippoRAG 2 (`text_processing`); used by the system `hipporag2` alone.
    """
    return _ASCII_PHRASE.sub(" ", name.lower()).strip()


def fold(text: str) -> tuple[str, list[int]]:
    """Return the folded text and, for each of its characters, the offset in `text` that it came from.

    Folding: NFKC, case, runs of white space to one space, typographic quotes and dashes to ASCII, invisible characters gone.
    """
    folded: list[str] = []
    origin: list[int] = []
    for index, char in enumerate(text):
        if char in _INVISIBLE:
            continue
        if char.isspace():
            if folded and folded[-1] != " ":
                folded.append(" ")
                origin.append(index)
            continue
        if char.isascii():
            folded.append("'" if char == "`" else char.lower())
            origin.append(index)
            continue
        mapped = _QUOTES_AND_DASHES.get(char) or unicodedata.normalize("NFKC", char).casefold()
        for part in mapped:
            folded.append(_QUOTES_AND_DASHES.get(part, part))
            origin.append(index)
    return "".join(folded), origin


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
    return origin[at], origin[at + len(needle) - 1] + 1


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
    return origin[best[0]], origin[best[1] - 1] + 1


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
