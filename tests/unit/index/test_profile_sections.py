"""Headings and sections: every form of heading beside a near text that is none."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index.heading_words import cjk_number_of, number_of
from gpu_rag.index.headings import division
from gpu_rag.index.sections import (
    Section,
    boundary_of,
    boundary_starts,
    cut_points,
    find_sections,
    section_paths,
)
from gpu_rag.spans import body_start, source_text

BODY = "The rain had stopped and nobody said a word about it, since there was nothing more to say that day. " * 4


def titles(text: str, start: int = 0) -> list[str]:
    return [section.title for section in find_sections(text, start)]


def chapters(*headings: str, body: str = BODY) -> str:
    return "\n\n".join(f"{heading}\n\n{body}" for heading in headings)


@pytest.mark.parametrize(
    "heading",
    [
        "CHAPTER IV", "Chapter 4", "Chapter 4: The Night Mail", "CHAPTER IV. THE NIGHT MAIL", "Chapter Four", "PART TWO", "Book III",
        "THE FIRST ACT", "SCENE FIRST--INTRODUCTION.", "Act II \u2014 The Harbour", "Canto the First", "\u0413\u043b\u0430\u0432\u0430 1",
        "\u7b2c1\u7ae0 \u591c\u6c7d\u8eca", "\u7b2c\u5341\u4e8c\u7ae0", "\uc81c3\uc7a5", "Kapitel 2", "Chapitre premier II", "Preface", "EPILOGUE.",
        "# Harbour", "### The harbour at night ###", "THE NIGHT MAIL",
    ],
)  # fmt: skip
def test_a_heading_of_every_form_begins_a_section(heading: str) -> None:
    if heading == "Chapitre premier II":
        assert titles(chapters(heading)) == []  # French ordinals are not known
        return
    text = f"{BODY}\n\n{heading}\n\n{BODY}"
    (section,) = find_sections(text, 0)
    assert (section.start, section.end, section.level) == (len(BODY) + 2, len(text), 1)
    assert text[section.start :].startswith(heading)


@pytest.mark.parametrize(
    "line",
    [
        "Chapter 4 of the report deals with water.", "Part two of the plan was never carried out", "chapter 4", "Book a room",
        "Act now", "Letter to the Lantern", "Volume was low.", "Chapter IIX", "The first act of the play was long.", "#hashtag",
        "STOP!", "ANNA:", "[MUSIC]", "OK", "Contents of the box were lost", "I", "Appendix 1 shows the numbers and where they are from.",
        "Chapter 4 ........ 17", "CHAPTER IV.      17",
    ],
)  # fmt: skip
def test_a_line_that_only_looks_like_one_does_not(line: str) -> None:
    assert titles(f"{BODY}\n\n{line}\n\n{BODY}") == []


def test_a_division_inside_a_wrapped_paragraph_is_no_heading() -> None:
    assert titles(f"{BODY}\n\nas is told in\nChapter IV. The\nrest is silence.\n\n{BODY}") == []
    assert titles(f"{BODY}\n\nas is told.\nChapter IV\nThe rest is silence.\n\n{BODY}") == ["Chapter IV"]


def test_underlined_headings_but_no_rules_between_paragraphs_and_no_code() -> None:
    text = f"Harbour\n=======\n\n{BODY}\n\nThe tug\n-------\n\n{BODY}\n\n---\n\n{BODY}\n\n```\n# no heading\n```\n"
    sections = find_sections(text, 0)
    assert [(section.title, section.level) for section in sections] == [("Harbour", 1), ("The tug", 2)]
    assert titles(f"Chapter 1\n=========\n\n{BODY}") == ["Chapter 1"]


def test_numbered_titles_count_on_from_one_and_a_list_or_a_stray_number_is_none() -> None:
    paper = chapters("1 Introduction", "2. Data", "2.1 Sources", "2.2 Cleaning", "3. What Follows")
    found = find_sections(paper, 0)
    assert [section.title for section in found] == [
        "1 Introduction",
        "2. Data",
        "2.1 Sources",
        "2.2 Cleaning",
        "3. What Follows",
    ]
    assert [section.level for section in found] == [1, 1, 2, 2, 1]
    assert found[1].end == found[4].start
    assert titles(f"{BODY}\n\n1. Buy milk\n\n2. Buy eggs\n\n3. Go home\n\n{BODY}") == []
    assert titles(chapters("7. Stray", "9. Other")) == []
    assert titles(chapters("1 January 1900")) == []


def test_roman_numbers_alone_count_on_from_one() -> None:
    assert titles(chapters("I", "II.", "III. The River Bank")) == ["I", "II.", "III. The River Bank"]
    assert titles(chapters("V", "X.")) == []


def test_lines_in_capitals_but_no_running_head_and_no_shouting_text() -> None:
    assert titles(chapters("THE HARBOUR", "THE TUG")) == ["THE HARBOUR", "THE TUG"]
    assert titles(chapters(*["RUNNING HEAD"] * 3)) == []
    assert titles("\n\n".join(["WE ALL SHOUT HERE"] + [f"AND SO DO WE IN {number}" for number in range(9)])) == []


def test_parts_hold_chapters_and_chapters_hold_scenes() -> None:
    text = chapters("PART ONE", "CHAPTER I", "SCENE 1", "CHAPTER II", "PART TWO", "CHAPTER I")
    found = find_sections(text, 0)
    assert [section.level for section in found] == [1, 2, 3, 2, 1, 2]
    assert found[0].end == found[4].start
    assert found[1].end == found[3].start
    assert boundary_starts(found, boundary_of(found)) == [found[1].start, found[3].start, found[5].start]


def test_a_title_below_a_bare_number_is_part_of_the_heading_and_a_first_sentence_is_not() -> None:
    assert titles(f"CHAPTER I.\n\nTHE NIGHT MAIL\n\n{BODY}") == ["CHAPTER I. THE NIGHT MAIL"]
    assert titles(f"Chapter 1\nThe Night Mail\n\n{BODY}") == ["Chapter 1: The Night Mail"]
    assert titles(f"CHAPTER I.\n\nIt was night.\n\n{BODY}") == ["CHAPTER I."]


def test_a_table_of_contents_is_not_taken_for_the_chapters() -> None:
    names = [f"Chapter {number}: Of Things" for number in (1, 2, 3)]
    listed = "Contents\n\n" + "\n\n".join(names) + f"\n\n{BODY}\n\n"
    text = listed + chapters(*names)
    found = find_sections(text, 0)
    assert [section.title for section in found] == ["Contents", *names]
    assert found[1].start == len(listed)
    unnamed = "\n\n".join(names) + "\n\n" + chapters(*names)
    assert titles(unnamed) == names
    assert find_sections(unnamed, 0)[0].start > 40


def test_chapters_of_a_few_words_and_parts_that_count_anew_are_no_table_of_contents() -> None:
    assert len(titles(chapters("Chapter 1", "Chapter 2", "Chapter 3", body="Short."))) == 3
    parts = chapters("Part 1", "Chapter 1", "Chapter 2", "Part 2", "Chapter 1", "Chapter 2", body="Short.")
    assert len(titles(parts)) == 6


FLAT = (
    'Produced by volunteers. DANDY DICK. CONTENTS   CHAPTER            PAGE   PREFACE        5   I.--JOINTS     9 '
    f'PREFACE. {BODY * 6}CHAPTER I. JOINTS AND BONES. [Illustration: L]ITTLE girls like dolls. {BODY * 6}'
    f'As was said in CHAPTER I. and again. CHAPTER II. IT WAS a dark night. {BODY * 6}END OF THE FIRST ACT. THE SECOND ACT. {BODY}'
)  # fmt: skip


def test_headings_inside_a_book_without_line_breaks() -> None:
    found = find_sections(FLAT, 0)
    assert [section.title for section in found] == [
        "CONTENTS",
        "PREFACE.",
        "CHAPTER I. JOINTS AND BONES.",
        "CHAPTER II.",
        "THE SECOND ACT.",
    ]
    assert FLAT[found[2].start :].startswith("CHAPTER I. JOINTS")
    assert FLAT[found[3].start :].startswith("CHAPTER II. IT WAS")


def test_a_list_of_acts_before_the_acts_is_left_out() -> None:
    listed = "ACT I. AT THE DEANERY. (Morning.) ACT II. THE SAME PLACE. (Evening.) ACT III.--The Next Day. Scene: a wood. "
    acts = "".join(f"THE {number} ACT. {BODY * 3}" for number in ("FIRST", "SECOND", "THIRD"))
    assert titles(listed + BODY * 3 + acts) == ["THE FIRST ACT.", "THE SECOND ACT.", "THE THIRD ACT."]


def test_offsets_start_behind_the_title_and_the_title_is_no_heading() -> None:
    source = f"Chapter 9: A Title\nChapter 1\n\n{BODY}"
    assert titles(source, len("Chapter 9: A Title\n")) == ["Chapter 1"]


def test_chapters_are_the_boundary_else_sections_and_one_heading_alone_is_none() -> None:
    markdown = find_sections("# Title\n\n## One\n\ntext\n\n## Two\n\ntext", 0)
    assert boundary_of(markdown) == "section"
    assert [markdown[1].start, markdown[2].start] == boundary_starts(markdown, "section")
    assert boundary_of(find_sections("# Title\n\ntext", 0)) == "none"
    assert boundary_of([]) == "none"
    chaptered = find_sections("# Title\n\n## Preface\n\ntext\n\n## Chapter 1\n\ntext", 0)
    assert boundary_of(chaptered) == "chapter"
    assert boundary_starts(chaptered, "chapter") == [chaptered[2].start]
    assert boundary_starts(chaptered, "none") == []


def test_no_chunk_reaches_over_a_section_but_a_bare_heading_stays_with_the_next() -> None:
    text = f"# Book\n\n## One\n\n{BODY}\n\n## Two\n\n{BODY}"
    sections = find_sections(text, 0)
    assert cut_points(text, sections, "section") == [0, sections[2].start]
    bare = f"Chapter 1\n\nChapter 2\n\n{BODY}"
    units = find_sections(bare, 0)
    assert cut_points(bare, units, "chapter") == [section.start for section in units]


def test_a_path_holds_what_all_of_the_span_stands_under() -> None:
    text = f"# Book\n\n## One\n\n{BODY}\n\n## Two\n\n{BODY}"
    sections = find_sections(text, 0)
    one, two = sections[1], sections[2]
    spans = [(0, one.end), (one.start + 10, one.end), (two.start, two.end), (one.start + 10, two.end), (0, len(text))]
    assert section_paths(text, sections, spans) == ["Book > One", "Book > One", "Book > Two", "Book", "Book"]
    assert section_paths(text, [], [(0, 5)]) == [""]
    later = find_sections(f"{BODY}\n\n# Late\n\n{BODY}\n\n# Later\n\n{BODY}", 0)
    assert section_paths(text, later, [(0, 5), (5, later[0].start + 9)]) == ["", ""]


@pytest.mark.parametrize(
    ("text", "value"),
    [("IV", 4), ("xix", 19), ("IIX", 0), ("12", 12), ("Twelve", 12), ("twelfth", 12), ("MCMX", 1910)],
)
def test_numbers_of_divisions(text: str, value: int) -> None:
    assert number_of(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("\u5341\u4e8c", 12), ("\u4e8c\u5341", 20), ("\u4e00\u767e\u96f6\u4e94", 105), ("7", 7), ("\u4e00\u3007", 10)],
)
def test_numbers_of_chinese_divisions(text: str, value: int) -> None:
    assert cjk_number_of(text) == value


def test_a_title_says_which_division_it_is() -> None:
    assert division("Chapter 4: The Night Mail") == ("chapter", 4)
    assert division("PART TWO") == ("part", 2)
    assert division("Scene IV.") == ("scene", 4)
    assert division("Preface") is None
    assert division("Chapters 4 and 5 are about water.") is None


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# ", "a" * 100_000, "CHAPTER " * 5000, "\n" * 100_000, "# x\n" * 5000, "I\n\n" * 5000]
)
def test_odd_texts_give_sections_inside_of_them(text: str) -> None:
    for section in find_sections(text, 0):
        assert isinstance(section, Section)
        assert 0 <= section.start < section.end <= len(text)
        assert section.title.strip()


_LINE = st.one_of(
    st.sampled_from([
        "Chapter 1", "CHAPTER II.", "PART ONE", "1. Data", "2. More", "1.1 Sub", "I", "II.", "# One", "## Two", "====", "---", "",
        "ALL IN CAPITALS", "Preface", "Contents", "Some words of text.", "Chapter 3 ....... 4", "```", "  ", "\u7b2c1\u7ae0",
        "x" * 2500 + ". CHAPTER IV. NAMES. And on. PREFACE. It ends",
    ]),
    st.text(max_size=20),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(_LINE, max_size=30), st.integers(0, 5))
def test_sections_of_any_text_are_in_order_nested_and_not_blank(lines: list[str], start: int) -> None:
    text = "\n".join(lines)
    found = find_sections(text, min(start, len(text)))
    assert [section.start for section in found] == sorted({section.start for section in found})
    open_: list[Section] = []
    for section in found:
        assert start <= section.start < section.end <= len(text)
        assert section.title.strip()
        while open_ and open_[-1].end <= section.start:
            open_.pop()
        assert not open_ or (open_[-1].level < section.level and section.end <= open_[-1].end)
        open_.append(section)
    boundary = boundary_of(found)
    starts = boundary_starts(found, boundary)
    assert (boundary == "none") == (not starts)
    assert set(starts) <= {section.start for section in found}
    assert set(cut_points(text, found, boundary)) <= {section.start for section in found}


def test_the_chapters_acts_and_scenes_of_the_novels_are_found_and_not_their_lists(data_root: Any) -> None:
    found = {}
    for line in (data_root / "novels3" / "corpus.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        source = source_text(row["title"], row["text"])
        sections = find_sections(source, body_start(row["title"], row["text"]))
        starts = boundary_starts(sections, boundary_of(sections))
        titles_of = {section.start: section.title for section in sections}
        found[row["doc_id"]] = [titles_of[start] for start in starts]
        assert all(source[start:].startswith(titles_of[start].split()[0]) for start in starts)
    health, play, scenes = (found[f"grb_novel-{number}"] for number in ("000008", "000012", "000015"))
    assert [division(title) for title in health] == [("chapter", number) for number in range(1, 20)]
    assert play == ["THE FIRST ACT.", "THE SECOND ACT.", "THE THIRD ACT."]
    assert [division(title) for title in scenes] == [("scene", number) for number in range(1, 8)]
