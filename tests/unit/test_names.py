"""Names without a model: what is spotted, and what the gazetteer finds."""

import re
import time

import pytest

from gpu_rag.names import Gazetteer, spot_names, without_parenthesis


def names(text: str) -> list[str]:
    return [span.name for span in spot_names(text)]


def found(gazetteer: Gazetteer, text: str) -> list[tuple[str, int]]:
    return [(text[start:end], index) for start, end, index in gazetteer.find(text)]


def test_spans_are_slices_of_the_text_in_order() -> None:
    text = "In 1999, Marie Curie's friend \u0141ukasz met \u00c9mile Zola on 12 March 1990 at the University of the Arts."
    spans = spot_names(text)
    assert all(text[span.start : span.end] == span.name for span in spans)
    assert [(s.start, s.end) for s in spans] == sorted({(s.start, s.end) for s in spans})


def test_lower_case_connectors_join_a_name_at_most_two_in_a_row() -> None:
    assert names("the University of the Arts") == ["University of the Arts"]
    assert names("Vincent van Gogh and Leonardo da Vinci") == [
        "Vincent van Gogh", "Vincent van Gogh and Leonardo da Vinci", "Leonardo da Vinci",
    ]  # fmt: skip
    assert names("King of the de Witt") == ["King", "Witt"]


def test_a_name_is_given_whole_and_cut_at_and_in_on_to_for() -> None:
    assert names("they read Pride and Prejudice") == ["Pride", "Pride and Prejudice", "Prejudice"]


def test_function_words_are_stripped_from_both_ends() -> None:
    assert names("However, The Beatles played. It was The") == ["Beatles"]
    assert names("Who was in charge when She came?") == []


def test_an_abbreviation_or_initial_goes_on_over_its_full_stop_and_a_sentence_does_not() -> None:
    assert names("saw Dr. J. R. Smith. London was cold") == ["Dr. J. R. Smith", "London"]


def test_a_possessive_is_dropped_at_the_end_and_cut_inside() -> None:
    assert names("about Obama's house") == ["Obama"]
    assert names("saw Schindler's List") == ["Schindler", "Schindler's List", "List"]


def test_years_and_full_dates_are_dates_and_a_month_or_weekday_alone_is_none() -> None:
    text = "On Monday 12 March 1990, and March 5, 2001, in the 1960s. In May, 2,500 came for $1500."
    dates = [span.name for span in spot_names(text) if span.type == "date"]
    assert dates == ["12 March 1990", "1990", "March 5, 2001", "2001", "1960s"]
    assert [span.name for span in spot_names(text) if span.type == "name"] == []


@pytest.mark.parametrize(
    "date",
    [
        "24 May 1941", "24th of May, 1941", "May 24, 1941", "May 24th, 1941", "May 1941", "1941-05-24", "1941/05/24", "24.05.1941",
        "24/5/1941", "05/24/1941", "Dec. 5, 1999", "5 Jan 1999", "Sept. 2001", "4\u20136 June 1944", "June 4\u20136, 1944",
        "1999 May 3", "600 BC", "44 BCE", "10,000 BC", "AD 79", "1453 CE", "1941\u5e745\u670824\u65e5", "1999\ub144 5\uc6d4 3\uc77c",
        "12 mai 1990", "12. M\u00e4rz 1990", "3 de mayo de 1990", "12 \u043c\u0430\u044f 1990",
    ],
)  # fmt: skip
def test_dates_are_found_whole_in_the_common_orders(date: str) -> None:
    spans = {span.name: span.type for span in spot_names(f"It was on {date} there.")}
    assert spans.pop(date) == "date"
    assert all(re.fullmatch(r"\d{4}", rest) for rest in spans)  # its year too, and no name in it


@pytest.mark.parametrize(
    "text",
    [
        "version 1.2.2000.4",
        "of 32.05.1941",
        "page 24/13/1941",
        "Bach AD",
        "may 5 1999 people",
        "room 12, 3 BCs",
        "17 Mai Street",
    ],
)
def test_numbers_that_only_look_like_dates_are_none(text: str) -> None:
    assert not [span.name for span in spot_names(text) if span.type == "date" and not re.fullmatch(r"\d{4}", span.name)]


def test_numbers_belong_to_the_name_they_follow_and_ordinals_may_lead() -> None:
    assert names("on Apollo 11 by 20th Century Fox with an iPhone") == ["Apollo 11", "20th Century Fox", "iPhone"]


def test_a_newline_ends_a_name() -> None:
    assert names("Demon Dice\nDemon Dice, originally") == ["Demon Dice", "Demon Dice"]


def test_capitals_decide_in_greek_and_cyrillic() -> None:
    text = "\u043f\u0438\u0441\u0430\u0442\u0435\u043b\u044c \u041b\u0435\u0432 \u0422\u043e\u043b\u0441\u0442\u043e\u0439 \u0436\u0438\u043b \u0432 \u041c\u043e\u0441\u043a\u0432\u0435"
    assert names(text) == [
        "\u041b\u0435\u0432 \u0422\u043e\u043b\u0441\u0442\u043e\u0439",
        "\u041c\u043e\u0441\u043a\u0432\u0435",
    ]
    assert names("\u03c3\u03c4\u03b7\u03bd \u0391\u03b8\u03ae\u03bd\u03b1") == ["\u0391\u03b8\u03ae\u03bd\u03b1"]


def test_a_caseless_run_in_a_latin_text_is_a_name() -> None:
    assert names("the city of Beijing (\u5317\u4eac) lies in the north of the country") == ["Beijing", "\u5317\u4eac"]


def test_in_a_caseless_text_only_what_is_quoted_or_has_capitals_is_a_name() -> None:
    text = "\u6211\u5728\u56fe\u4e66\u9986\u770b\u4e86\u300a\u7ea2\u697c\u68a6\u300b\u548cHarry Potter"
    assert names(text) == ["\u7ea2\u697c\u68a6", "Harry Potter"]


def test_in_a_caseless_text_low_opening_quotation_marks_hold_names_too() -> None:
    assert names("\u05d4\u05e1\u05e4\u05e8 \u201e\u05e9\u05d9\u05e8\u05d9\u05dd\u201d \u05e0\u05db\u05ea\u05d1") == [
        "\u05e9\u05d9\u05e8\u05d9\u05dd"
    ]


def test_in_a_caseless_text_katakana_joined_by_a_dot_is_a_name_and_a_single_word_of_it_is_none() -> None:
    einstein = "\u30a2\u30eb\u30d9\u30eb\u30c8\u30fb\u30a2\u30a4\u30f3\u30b7\u30e5\u30bf\u30a4\u30f3"
    assert names(f"{einstein}\u306f\u7269\u7406\u5b66\u8005\u3067\u3042\u308b") == [einstein]
    assert names("\u30b3\u30f3\u30d4\u30e5\u30fc\u30bf\u306f\u6a5f\u68b0\u3067\u3042\u308b") == []


@pytest.mark.parametrize("text", ["", " ", "...", "A", "I", "\n\t\u200b", "a b c", "\ufffd\x00\x01"])
def test_texts_without_names_give_none(text: str) -> None:
    assert spot_names(text) == []


def test_a_long_run_of_capitals_is_no_name() -> None:
    assert names(" ".join(["WORD"] * 60)) == []


def test_the_longest_name_wins_and_offsets_are_exact() -> None:
    gazetteer = Gazetteer(["York", "New York", "New York City"])
    assert found(gazetteer, "in new  york\nCity, New York; York's") == [
        ("new  york\nCity", 2),
        ("New York", 1),
        ("York", 0),
    ]


def test_case_punctuation_and_width_do_not_count() -> None:
    gazetteer = Gazetteer(["St. Louis", "O'Brien", "Stra\u00dfe", "AC/DC"])
    text = "ST LOUIS, o\u2019brien, STRASSE, \uff21\uff23\uff0f\uff24\uff23"
    assert [index for _, index in found(gazetteer, text)] == [0, 1, 2, 3]


def test_a_name_is_not_found_inside_a_word() -> None:
    assert found(Gazetteer(["art", "Donald"]), "party MacDonald artful Art") == [("Art", 0)]


def test_a_trailing_parenthesis_is_optional_and_homonyms_are_all_found() -> None:
    gazetteer = Gazetteer(["Mercury (planet)", "Mercury (element)", "(parenthesis)"])
    assert found(gazetteer, "Mercury shines") == [("Mercury", 0), ("Mercury", 1)]
    assert found(gazetteer, "Mercury (planet) shines") == [("Mercury (planet)", 0)]
    assert without_parenthesis("(parenthesis)") == "(parenthesis)"


def test_names_with_equal_tokens_are_all_found() -> None:
    assert found(Gazetteer(["St. Louis", "St Louis"]), "St Louis") == [("St Louis", 0), ("St Louis", 1)]


def test_camel_case_is_found_split_and_whole() -> None:
    gazetteer = Gazetteer(["SpongeBob"])
    assert [text for text, _ in found(gazetteer, "SpongeBob, sponge bob, Spongebob")] == [
        "SpongeBob",
        "sponge bob",
        "Spongebob",
    ]
    assert [text for text, _ in found(Gazetteer(["Sponge Bob"]), "SpongeBob")] == ["SpongeBob"]


def test_one_word_in_lower_case_is_no_name_unless_the_text_has_no_capitals() -> None:
    gazetteer = Gazetteer(["It", "The Who", "Her", "Four (album)", "The Doctor (film)", "canon law"])
    assert found(gazetteer, "It is her, the who, of four, the doctor, under Canon law and canon law") == [
        ("Canon law", 5), ("canon law", 5),
    ]  # fmt: skip
    assert found(gazetteer, "Four saw The Doctor and the Who") == [("Four", 3), ("The Doctor", 4), ("the Who", 1)]
    assert found(gazetteer, "who sang on four?") == [("four", 3)]


def test_the_punctuation_at_the_ends_of_a_name_belongs_to_it() -> None:
    gazetteer = Gazetteer(["U.S.", "(500) Days of Summer", "Yahoo!"])
    text = "the U.S. saw (500) Days of Summer on Yahoo! and yahoo, U.S"
    assert [name for name, _ in found(gazetteer, text)] == ["U.S.", "(500) Days of Summer", "Yahoo!", "U.S"]


def test_scripts_without_spaces_are_matched_inside_a_run() -> None:
    assert found(Gazetteer(["\u5317\u4eac"]), "\u6211\u5728\u5317\u4eac\u5de5\u4f5c") == [("\u5317\u4eac", 0)]
    hindi = "\u0939\u093f\u0928\u094d\u0926\u0940"
    assert found(Gazetteer([hindi]), f"x {hindi} y") == [(hindi, 0)]


def test_decomposed_letters_match_composed_ones() -> None:
    assert found(Gazetteer(["Zo\u00eb Kravitz"]), "by Zoe\u0308 Kravitz.") == [("Zoe\u0308 Kravitz", 0)]


@pytest.mark.parametrize("name", ['Say "Hi"', "a, b", "tab\tname", "new\nline", "<SEP>", "back\\slash", "it's"])
def test_names_with_delimiters_are_found_as_they_are(name: str) -> None:
    assert [index for _, index in found(Gazetteer([name]), f"here is {name} again")] == [0]


def test_matching_is_linear_in_the_text() -> None:
    gazetteer = Gazetteer([" ".join(["a"] * length) + " b" for length in range(1, 31)])
    started = time.perf_counter()
    assert len(gazetteer.find("a " * 20_000)) == 0
    assert time.perf_counter() - started < 2
