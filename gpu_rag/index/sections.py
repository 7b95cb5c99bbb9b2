"""Sections of a document: what stands under which heading, and the units that a visible scope counts.

A section runs from its heading to the next one of its own or a smaller level. Text before the first heading is in no section.
The units of the boundary are chapters (else scenes, else parts) where the document has any, else its outermost sections;
which ones these are can be read off the titles and levels again, so that they need no column of their own.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gpu_rag.index.heading_words import CONTENTS, OUTER_NAMES, Kind
from gpu_rag.index.headings import Heading, division, find_headings

_THIN = 250  # characters under an entry of a table of contents, without white space
_NEAR = 400  # between the word "Contents" and the first entry
_LETTERS = re.compile(r"[\W_]+")
_BOUNDARY_KINDS: tuple[Kind, ...] = ("chapter", "scene", "part")


class Section(NamedTuple):
    """Code points [start, end) of the source text, from the heading on; level 1 is the outermost."""

    title: str
    level: int
    start: int
    end: int


def find_sections(source: str, start: int) -> list[Section]:
    """Return the sections of source[start:] in order of their headings."""
    headings = _with_depths(_without_contents(find_headings(source, start), source))
    levels = {depth: level for level, depth in enumerate(sorted({heading.depth for heading in headings}), 1)}
    ends = [len(source)] * len(headings)
    open_: list[int] = []
    for index, heading in enumerate(headings):
        while open_ and headings[open_[-1]].depth >= heading.depth:
            ends[open_.pop()] = heading.start
        open_.append(index)
    return [
        Section(heading.title, levels[heading.depth], heading.start, end) for heading, end in zip(headings, ends, strict=True)
    ]


def boundary_of(sections: Sequence[Section]) -> str:
    """Return what a visible scope counts in a document of these sections: `chapter`, `section` or `none`."""
    if any(division(section.title) for section in sections):
        return "chapter"
    return "section" if _outermost(sections) else "none"


def boundary_starts(sections: Sequence[Section], boundary: str) -> list[int]:
    """Return where the units of the boundary begin, in order."""
    if boundary == "section":
        return [section.start for section in _outermost(sections)]
    if boundary != "chapter":
        return []
    kinds = [(section.start, division(section.title)) for section in sections]
    for kind in _BOUNDARY_KINDS:
        starts = [start for start, found in kinds if found and found[0] == kind]
        if starts:
            return starts
    return []


def cut_points(source: str, sections: Sequence[Section], boundary: str) -> list[int]:
    """Return where no chunk may reach over: the starts of sections.

    A heading with nothing under it but the next heading stays with that one, unless it begins a unit of the boundary.
    """
    units = set(boundary_starts(sections, boundary))
    cuts = []
    joined = False
    for section, end in zip(sections, _next_starts(source, sections), strict=True):
        if not joined:
            cuts.append(section.start)
        joined = section.start not in units and end < len(source) and _is_bare(source, section, end)
    return cuts


def section_paths(source: str, sections: Sequence[Section], spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return for each span of the source the titles that all of it stands under, outermost first, joined by " > ".

    What stands under a heading that opens the span stands under it; "" is under none.
    """
    starts = [section.start for section in sections]
    following = _next_starts(source, sections)
    paths = []
    for start, end in spans:
        at = bisect_right(starts, start) - 1
        while at >= 0 and following[at] < end and _is_bare(source, sections[at], following[at]):
            at += 1
        while at >= 0 and sections[at].end < end:
            at = _parent(sections, at)
        path = []
        while at >= 0:
            path.append(sections[at].title)
            at = _parent(sections, at)
        paths.append(" > ".join(reversed(path)))
    return paths


def _parent(sections: Sequence[Section], at: int) -> int:
    """Return the section that encloses another, -1 if none does."""
    level = sections[at].level
    while at >= 0 and sections[at].level >= level:
        at -= 1
    return at


def _next_starts(source: str, sections: Sequence[Section]) -> list[int]:
    return [*(section.start for section in sections[1:]), len(source)][: len(sections)]


def _is_bare(source: str, section: Section, end: int) -> bool:
    """Return whether nothing but its title stands in the section up to `end`."""
    if end - section.start > 2 * len(section.title) + 80:
        return False
    return _LETTERS.sub("", source[section.start : end]) == _LETTERS.sub("", section.title)


def _outermost(sections: Sequence[Section]) -> list[Section]:
    """Return the sections of the first level that has more than one; a single one is the document's own title."""
    counts = Counter(section.level for section in sections)
    level = min((level for level, count in counts.items() if count > 1), default=0)
    return [section for section in sections if section.level == level]


def _without_contents(headings: list[Heading], source: str) -> list[Heading]:
    """Return the headings without the entries of a table of contents.

    Entries are divisions with nearly nothing under them, two at least, that come again later in the same parts; or three that
    follow the word "Contents". The last entry may have text under it: what stands before the first chapter.
    """
    divisions = [index for index, heading in enumerate(headings) if heading.kind in _BOUNDARY_KINDS]
    paths = _paths([headings[index] for index in divisions])
    thin = [_is_thin(headings, index, source) for index in divisions]
    last = {path: place for place, path in enumerate(paths)}
    entries: set[int] = set()
    at = 0
    while at < len(divisions):
        end, seen = at, set()
        while end < len(divisions) and paths[end] not in seen and (end == at or thin[end - 1]):
            seen.add(paths[end])
            end += 1
        while end > at and not thin[end - 1] and last[paths[end - 1]] < end:
            end -= 1  # the first chapter itself
        again = sum(last[path] >= end for path in paths[at:end])
        if end - at >= 2 and (2 * again > end - at or (end - at >= 3 and _follows_contents(headings, divisions[at], source))):
            entries.update(range(divisions[at], divisions[end - 1] + 1))
        at = max(end, at + 1)
    return [heading for index, heading in enumerate(headings) if index not in entries]


def _paths(divisions: Sequence[Heading]) -> list[tuple[object, ...]]:
    """Return part and number of each division: what is the same in a table of contents and in the text."""
    part: tuple[int, ...] = ()
    chapter: tuple[int, ...] = ()
    paths: list[tuple[object, ...]] = []
    for heading in divisions:
        if heading.kind == "part":
            part, chapter = heading.number, ()
        elif heading.kind == "chapter":
            chapter = heading.number
        paths.append((heading.kind, part, chapter, heading.number))
    return paths


def _is_thin(headings: Sequence[Heading], index: int, source: str) -> bool:
    end = headings[index + 1].start if index + 1 < len(headings) else len(source)
    body = source[headings[index].end : min(end, headings[index].end + 20 * _THIN)]
    return sum(not char.isspace() for char in body) < _THIN and end - headings[index].end <= 20 * _THIN


def _follows_contents(headings: Sequence[Heading], index: int, source: str) -> bool:
    before = source[max(0, headings[index].start - _NEAR) : headings[index].start].lower()
    return any(name in before for name in CONTENTS)


def _with_depths(headings: list[Heading]) -> list[Heading]:
    """Put names by custom such as "Preface" on a level with chapters where there are some."""
    kinds = {heading.kind for heading in headings}
    outer = next((heading.depth for kind in _BOUNDARY_KINDS for heading in headings if heading.kind == kind), None)
    if outer is None or "named" not in kinds:
        return headings
    return [
        heading._replace(depth=outer) if heading.kind == "named" and _is_outer(heading.title) else heading
        for heading in headings
    ]


def _is_outer(title: str) -> bool:
    return re.fullmatch(OUTER_NAMES, title.strip(" .:"), re.IGNORECASE) is not None


__all__ = ["Section", "boundary_of", "boundary_starts", "cut_points", "find_sections", "section_paths"]
