"""Heading lines of a text in any of the forms that books, papers and Markdown use, each with its place.

What is found: Markdown (`#`, underlined), divisions ("CHAPTER IV.", "Part Two", "THE FIRST ACT", and the like in a few other
languages), names that head a section by custom ("Preface", "Abstract"), numbered titles ("2.1 Data", "IV."), and lines in
capitals. A line of more than `_LONG_LINE` characters is a page or a book whose line breaks are gone: there headings are sought
inside it, in capitals and behind the end of a sentence, or between runs of spaces.

What stands under a heading, and which of them are a table of contents, is decided in `sections`.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gpu_rag.index.heading_words import (
    ANY_UNIT,
    CJK_NUMERALS,
    INNER_NAMES,
    KIND_OF_CJK,
    NUMBERS,
    ORDINALS,
    OUTER_NAMES,
    UNITS,
    Kind,
    cjk_number_of,
    number_of,
)

_LONG_LINE = 2000
_MAX_HEADING = 120
_MAX_TITLE = 200
_DEPTHS: dict[Kind, int] = {"part": -2, "chapter": -1, "scene": 0, "named": 3, "roman": 3, "numbered": 3, "caps": 9}
_DIVISION = re.compile(
    rf"(?:(?P<unit>{ANY_UNIT})\s+(?:the\s+)?(?P<number>{NUMBERS})|the\s+(?P<ordinal>{ORDINALS})\s+(?P<of>{ANY_UNIT}))"
    r"(?!\w)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_CJK_DIVISION = re.compile(
    rf"(?:\u7b2c\s*(?P<number>\d{{1,4}}|[{CJK_NUMERALS}]{{1,6}})\s*(?P<unit>[{''.join(KIND_OF_CJK)}])"
    r"|\uc81c\s*(?P<korean>\d{1,4})\s*(?P<of>[\ubd80\uc7a5]))(?P<rest>[^\u3002\uff01\uff1f]{0,40})",
    re.DOTALL,
)
_NAMED = re.compile(rf"(?:{OUTER_NAMES}|{INNER_NAMES})[.:]?", re.IGNORECASE)
_MARKDOWN = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(=+|-{3,})[ \t]*")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_ROMAN_TITLE = re.compile(r"([IVXLC]{1,7})(?:\.(?:[ \t]+(\S.*))?)?")
_NUMBERED = re.compile(r"(\d{1,2}(?:\.\d{1,2}){0,4})(\.|\))?[ \t]+(\S.*)")
_CONTENTS_ENTRY = re.compile(r".*(?:\.{3,}|\. \. \.|[ \t]{3,}|\t)[ \t.]*(?:\d{1,4}|[ivxlc]{1,7})[ \t]*")
_INLINE = re.compile(
    rf"(?<!\S)(?:THE +(?:{ORDINALS.upper()}) +(?:{ANY_UNIT.upper()})"
    rf"|(?:{ANY_UNIT.upper()}) +(?:THE +)?(?:\d{{1,3}}|{NUMBERS.partition('|')[2].upper()})"
    rf"|{OUTER_NAMES.upper()}|{INNER_NAMES.upper()})(?!\w)"
)
_PAGE_NUMBER = re.compile(r"\s{2}\d{1,4} $")
_BODY_OPENS = re.compile(r"(?:\.?\s*(?:--|\u2014|\u2013|[.:])|\s{2,}|\s*$)")
_ENDS_SENTENCE = re.compile(r"[.!?:;\])\"'*_|`\u201d\u2019\u00bb\u3002-]")
_WORD = re.compile(r"\S+")


class Heading(NamedTuple):
    """A heading at [start, end) of the source; `depth`: smaller ones enclose greater ones, of one document alone."""

    start: int
    end: int
    title: str
    kind: Kind
    depth: int
    number: tuple[int, ...] = ()  # of a division or a numbered title


class _Line(NamedTuple):
    start: int
    text: str  # stripped
    after_gap: bool  # the line before is blank, or there is none
    before_gap: bool


def find_headings(source: str, start: int) -> list[Heading]:
    """Return the headings of source[start:] in order, those of a table of contents among them."""
    lines = list(_lines(source, start))
    found = list(_markdown(lines))
    taken = {heading.start for heading in found}
    found += [heading for heading in _divisions(lines) if heading.start not in taken]
    if len(taken) >= 2:
        return sorted(found)  # in Markdown, other numbers are lists and capitals are emphasis
    rest = [line for line in _outside(lines, found) if line.after_gap and line.before_gap]
    rest = [line for line in rest if not _CONTENTS_ENTRY.fullmatch(line.text)]
    weak = [*_chain(_numbered(rest), lines), *_chain(_roman(rest), lines)]
    return sorted([*found, *weak, *_capitals(_outside(rest, weak), lines)])


def division(title: str) -> tuple[Kind, int] | None:
    """Return kind and number of a title that names a division ("Chapter 4: The Night Mail"), else None."""
    match = _CJK_DIVISION.match(title)
    if match:
        return KIND_OF_CJK[match["unit"] or match["of"]], cjk_number_of(match["number"] or match["korean"])
    match = _DIVISION.match(title)
    if not match or not title[:1].isupper() or not _is_title(match["rest"]):
        return None
    number = number_of(match["number"] or match["ordinal"])
    unit = match["unit"] or match["of"]
    kind = next(kind for kind, units in UNITS.items() if re.fullmatch(units, unit, re.IGNORECASE))
    return (kind, number) if number else None


def _lines(source: str, start: int) -> Iterator[_Line]:
    """Yield the lines that are not blank."""
    waiting: tuple[int, str, bool] | None = None
    gap = True
    for match in re.compile(r"[^\n]*\n?").finditer(source, start):
        text = match.group().strip()
        if waiting is not None:
            yield _Line(*waiting, before_gap=not text)
            waiting = None
        if text:
            waiting = (match.start() + match.group().find(text), text, gap)
        gap = not text


def _markdown(lines: list[_Line]) -> Iterator[Heading]:
    fenced = False
    for number, line in enumerate(lines):
        if _FENCE.match(line.text):
            fenced = not fenced
        match = _MARKDOWN.fullmatch(line.text)
        if fenced or len(line.text) > _MAX_HEADING + 6:
            continue
        if match and match[2]:
            yield _heading(line, match[2], "markdown", len(match[1]))
        elif line.after_gap and not line.before_gap and number + 1 < len(lines):
            underline = _UNDERLINE.fullmatch(lines[number + 1].text)
            if underline and not _UNDERLINE.fullmatch(line.text):
                depth = 1 if underline[1][0] == "=" else 2
                end = lines[number + 1].start + len(lines[number + 1].text)
                yield Heading(line.start, end, line.text[:_MAX_TITLE], "markdown", depth)


def _divisions(lines: list[_Line]) -> Iterator[Heading]:
    """Yield divisions and names by custom, in lines of their own or inside of long ones."""
    for number, line in enumerate(lines):
        if len(line.text) > _LONG_LINE:
            yield from _inline(line)
            continue
        opens = line.after_gap or bool(_ENDS_SENTENCE.fullmatch(lines[number - 1].text[-1]))
        if len(line.text) > _MAX_HEADING or not opens or _CONTENTS_ENTRY.fullmatch(line.text):
            continue
        found = division(line.text)
        if found:
            yield _with_subtitle(line, lines[number + 1 : number + 2], *found)
        elif _NAMED.fullmatch(line.text) and not line.text[0].islower():
            yield _heading(line, line.text, "named", 3)


def _with_subtitle(line: _Line, following: list[_Line], kind: Kind, number: int) -> Heading:
    """Return the division; a short line in capitals, or alone and in title case, that follows a bare number is its title."""
    heading = _heading(line, line.text, kind, _DEPTHS[kind], (number,))
    match = _DIVISION.match(line.text) or _CJK_DIVISION.match(line.text)
    if match is None or match["rest"].strip(" .:-\u2014") or not following:
        return heading
    (after,) = following
    text = after.text
    alone = (after.before_gap and _is_title_case(text) and text[-1] not in ".,;!\u3002") or _is_capitals(text)
    if len(text) > 80 or not alone or division(text) or _NAMED.fullmatch(text):
        return heading
    joiner = " " if heading.title.endswith((".", ":")) else ": "
    return heading._replace(end=after.start + len(text), title=f"{heading.title}{joiner}{text}"[:_MAX_TITLE])


def _outside(lines: list[_Line], headings: list[Heading]) -> list[_Line]:
    """Return the lines that are no part of a heading."""
    starts = sorted(heading.start for heading in headings)
    ends = sorted(heading.end for heading in headings)
    return [line for line in lines if bisect_right(starts, line.start) == bisect_right(ends, line.start)]


def _inline(line: _Line) -> Iterator[Heading]:
    for match in _INLINE.finditer(line.text):
        before = line.text[max(0, match.start() - 12) : match.start()]
        spaced = before.endswith("  ") or _PAGE_NUMBER.search(before) is not None
        if before.strip() and not spaced and not _ENDS_SENTENCE.fullmatch(before.rstrip()[-1:]):
            continue
        found = division(match.group())
        end = _end_of_title(line.text, match.end()) if found else match.end() + line.text.startswith((".", ":"), match.end())
        following = line.text[end : end + 60]
        if re.match(r"\s{2,}[.\d]|\s*\.{3}", following):  # a page number: an entry of a table of contents
            continue
        text = line.text[match.start() : end]
        place = (line.start + match.start(), line.start + end, " ".join(text.split())[:_MAX_TITLE])
        if found and (_BODY_OPENS.match(line.text, match.end()) or end > match.end() or following[:2].strip()[:1] in "[(_|`"):
            yield Heading(*place, found[0], _DEPTHS[found[0]], (found[1],))
        elif not found and (spaced or text.endswith((".", ":")) or following.startswith(("  ", " ["))):
            yield Heading(*place, "named", 3)


def _end_of_title(text: str, start: int) -> int:
    """Return where the words in capitals that follow a division's number end, if they end like a title, else `start`."""
    opened = re.compile(r"[.:]?(?:\s?(?:--|\u2014|\u2013))?").match(text, start)
    end = best = opened.end() if opened else start
    for word in _WORD.finditer(text, end, min(len(text), start + _MAX_HEADING)):
        gap = text[end : word.start()]
        if len(gap) > 1 and end > start:
            return end if not gap.strip() else best
        if any(char.islower() for char in word.group()) or word.group()[0] in '[_|`(\u201c"' or word.group().isdecimal():
            return end if word.group()[0] in "[_|`(" and best > start and end > start else best
        if best > start and _INLINE.match(text, word.start()):
            return best
        end = word.end()
        if word.group()[-1] in ".?!:":
            best = end
    return best


def _numbered(lines: list[_Line]) -> Iterator[Heading]:
    for line in lines:
        match = _NUMBERED.fullmatch(line.text)
        if not match or len(line.text) > _MAX_HEADING:
            continue
        title = match[3]
        plain = match[2] or "." in match[1] or (_is_title_case(title) and len(title.split()) <= 8)
        if plain and not title[0].islower() and title[-1] not in ".,;:" and len(title.split()) <= 14:
            number = tuple(int(part) for part in match[1].split("."))
            yield _heading(line, line.text, "numbered", 3 + len(number), number)


def _roman(lines: list[_Line]) -> Iterator[Heading]:
    for line in lines:
        match = _ROMAN_TITLE.fullmatch(line.text)
        if match and len(line.text) <= _MAX_HEADING:
            title = match[2] or ""
            if not title or (not title[0].islower() and title[-1] not in ",;:"):
                yield _heading(line, line.text, "roman", 3, (number_of(match[1]),))


def _chain(candidates: Iterator[Heading], lines: list[_Line]) -> list[Heading]:
    """Return those that count on from 1, and subsections of the one counted last; none if less than two, or if they are a list.

    A list is what has nothing between most of its items.
    """
    starts = {line.start: number for number, line in enumerate(lines)}
    chain: list[Heading] = []
    bodies = count = 0
    for heading in candidates:
        if (len(heading.number) == 1 and heading.number[0] == count + 1) or (
            len(heading.number) > 1 and heading.number[0] == count
        ):
            count = heading.number[0]
            bodies += not (chain and starts[heading.start] == starts[chain[-1].start] + 1)
            chain.append(heading)
    return chain if count >= 2 and 2 * bodies > len(chain) else []


def _capitals(candidates: list[_Line], lines: list[_Line]) -> list[Heading]:
    """Return the lines in capitals that have text below, but none that stands there three times (a speaker, a running head)."""
    found = [line for line in candidates if len(line.text) <= 80 and _is_capitals(line.text)]
    times = Counter(line.text for line in found)
    if 2 * sum(len(line.text) for line in found) > sum(len(line.text) for line in lines):  # a text in capitals
        return []
    return [_heading(line, line.text, "caps", 9) for line in found if times[line.text] < 3 and line.start != lines[-1].start]


def _is_capitals(text: str) -> bool:
    """Return whether the text is a title in capitals; "[MUSIC]", "ANNA:" and "STOP!" are none."""
    if text.upper() != text or text.lower() == text or text[0] in "[({*_" or text[-1] in "!,;:])}":
        return False
    return sum(char.isalpha() for char in text) >= 4


def _is_title_case(text: str) -> bool:
    """Return whether most of the longer words begin with a capital; scripts without case have none."""
    words = [word for word in re.findall(r"[^\W\d_]+", text) if len(word) > 3]
    upper = sum(not word[0].islower() for word in words)
    return (bool(words) or not text[:1].islower()) and 3 * upper >= 2 * len(words)


def _is_title(rest: str) -> bool:
    """Return whether what follows a division's number is nothing, or a title: behind a mark, or in title case."""
    stripped = rest.strip()
    if not stripped.strip("."):
        return True
    marked = re.match(r"\s*(?:[.:)]|--|\u2014|\u2013|-\s)", rest)
    title = stripped.lstrip(".:)-\u2014\u2013 ")
    if len(title.split()) > 16:
        return False
    if marked:
        return bool(title) and (not title[0].islower() or not title.endswith("."))
    return _is_title_case(title) and (title[-1] not in ".," or title.upper() == title)


def _heading(line: _Line, title: str, kind: Kind, depth: int, number: tuple[int, ...] = ()) -> Heading:
    return Heading(line.start, line.start + len(line.text), " ".join(title.split())[:_MAX_TITLE], kind, depth, number)


__all__ = ["Heading", "division", "find_headings"]
