"""Stage 06, names, domain and range, binding: each rule with a case that it catches and a near one that it leaves alone."""

from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag import schemas
from gpu_rag.index import s06_govern
from gpu_rag.index.binding import ChunkText, Ends, bind_mention, bind_relation, holds
from gpu_rag.index.governance import by_decision
from gpu_rag.index.name_rules import malformed
from gpu_rag.index.relation_rules import violations
from gpu_rag.index.s06_govern import GovernConfig

Run = Callable[..., Any]
CLAUSE = (
    "the long and winding road that leads to your door will never disappear as I have seen that road before it leads me here"
)


def units(tables: dict[str, Any], mentions: list[dict[str, Any]], relations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of stage 06 over units of an extractor `llm` in the first chunk."""
    chunk = tables["chunks"].to_pylist()[0]
    place = {"chunk_id": chunk["chunk_id"], "doc_id": chunk["doc_id"], "extractor": "llm"}
    span = {"start": None, "end": None, "confidence": None, "type": None}
    named = [
        {"mention_id": f"m{i}", **place, **span, "kind": "entity", "description": None, "aliases": None, **row}
        for i, row in enumerate(mentions)
    ]
    related = [{"relation_id": f"r{i}", **place, **span, **row} for i, row in enumerate(relations)]
    tables = tables | {
        "unit_mentions": schemas.UNIT_MENTIONS.from_rows(named),
        "unit_relations": schemas.UNIT_RELATIONS.from_rows(related),
        "vectors": schemas.VECTORS.empty(),
        "embeddings": schemas.EMBEDDINGS.empty(),
    }
    return tables | s06_govern.STAGE.run(tables, config=GovernConfig())


@pytest.mark.parametrize("name", ["12", "26,540,100", "...", "he", "They", "the", "which of them", CLAUSE + " now"])
def test_what_names_nothing_is_malformed(name: str) -> None:
    assert malformed(name)


@pytest.mark.parametrize(
    "name", ["1984", "1980s", "IT", "The Who", "Will", "7-Eleven", "B52", "\u5317\u4eac", "h", CLAUSE.rsplit(" ", 1)[0]]
)
def test_what_names_something_is_not(name: str) -> None:
    assert not malformed(name)


def test_a_title_of_function_words_and_a_date_of_digits_are_names() -> None:
    assert malformed("It")
    assert not malformed("It", "title")
    assert not malformed("2020-01-02", "date")


@pytest.mark.parametrize(
    ("type_", "predicate", "subject", "object_", "expected"),
    [
        ("supports", "because", "person", "claim", "reject"),
        ("supports", "because", "claim", "claim", None),
        ("supports", "because", "event", "claim", "review"),
        ("attacks", "but", "claim", "place", "reject"),
        ("located_in", "in", "place", "date", "reject"),
        ("located_in", "in", "place", "person", "reject"),
        ("located_in", "in", "person", "place", None),
        ("born_in", "born in", "place", "place", "reject"),
        ("born_in", "born in", "person", "date", None),
        (None, "was born in", "organization", "place", "reject"),
        (None, "was born in", "", "place", None),
        (None, "located in", "place", "date", "reject"),
        (None, "allocated in", "place", "date", None),
        (None, "married to", "person", "place", "reject"),
        (None, "married to", "person", "person", None),
        ("made_up", "in", "place", "date", None),
        ("located_in", "in", "", "", None),
    ],
)
def test_domain_and_range(type_: str | None, predicate: str, subject: str, object_: str, expected: str | None) -> None:
    assert violations(type_, predicate, subject, object_) == expected


def test_unknown_types_break_no_rule_and_known_ones_do(corpus: Run) -> None:
    tables = corpus({"d": ("", "Bern lies in Ada and in Europe.")})
    relations = [{"subject": "Bern", "predicate": "in", "object": other, "type": "located_in"} for other in ("Ada", "Europe")]
    mentions = [{"name": "Bern", "type": "place"}, {"name": "Ada", "type": "person"}, {"name": "Europe", "type": "name"}]
    rows = units(tables, mentions, relations)["relations"].to_pylist()
    assert [(row["decision"], row["reasons"]) for row in rows] == [("reject", ["domain_range"]), ("accept", [])]


def test_a_kind_that_there_is_not_is_rejected_and_kept(corpus: Run) -> None:
    mentions = [{"name": "Bern", "kind": "city"}, {"name": "Bern", "kind": "concept"}]
    rows = units(corpus({"d": ("", "Bern")}), mentions, [])["mentions"].to_pylist()
    assert [(row["decision"], row["reasons"]) for row in rows] == [("reject", ["schema"]), ("accept", [])]


def test_a_relation_of_a_thing_to_itself_is_rejected(corpus: Run, govern: Run) -> None:
    triples = [["Bern", "is", "bern"], ["Bern", "is", "Berne"]]
    tables = govern(corpus({"d": ("", "Bern is Bern, or Berne.")}, {"d": ([], triples)}), "recorded")
    assert sorted((row["decision"], tuple(row["reasons"])) for row in tables["relations"].to_pylist()) == [
        ("accept", ()),
        ("reject", ("self_loop",)),
    ]


def test_a_name_is_not_bound_inside_a_longer_word_but_in_scripts_without_spaces_it_is() -> None:
    assert bind_mention(ChunkText(0, "", "The annual Annie met Ann."), "Ann", "entity", None) == (21, 24)
    assert bind_mention(ChunkText(0, "", "Annual reports."), "Ann", "entity", None) is None
    assert bind_mention(ChunkText(0, "", "\u6211\u5728\u5317\u4eac\u5de5\u4f5c"), "\u5317\u4eac", "entity", None) == (2, 4)
    assert holds("Annie's house", "Annie")
    assert not holds("Annie's house", "Ann")


def test_a_relation_is_not_bound_inside_longer_words_but_to_a_plural_it_is() -> None:
    chunk = ChunkText(0, "", "Japanese cities like Hiroshima have suburban railway systems.")
    assert bind_relation(chunk, "Hiroshima", "Japan", None) is None
    assert bind_relation(chunk, "Hiroshima", "suburban railway system", None) == (21, 60)


def test_one_name_is_no_evidence_that_another_is_its_alias() -> None:
    chunk = ChunkText(0, "", "The CTR was filed. A currency report (CTR) is long.")
    ends = Ends({"ctr": frozenset(("CTR", "currency report")), "currency report": frozenset(("CTR", "currency report"))}, {})
    assert bind_relation(chunk, "currency report", "CTR", None, ends) == (21, 41)
    assert bind_relation(ChunkText(0, "", "The CTR was filed."), "currency report", "CTR", None, ends) is None


def test_a_claim_in_other_words_is_bound_by_its_sentence_if_it_shares_its_words(corpus: Run) -> None:
    text = "Lotteries prey on the poor. The weather was fine."
    said = {"name": "lotteries exploit poor people", "start": 0, "end": 27}
    elsewhere = {**said, "start": 28, "end": len(text)}
    mentions = [
        {**said, "kind": "claim"}, {**elsewhere, "kind": "claim"}, {**said, "kind": "entity"}, {**said, "kind": "claim", "end": 900},
    ]  # fmt: skip
    rows = units(corpus({"d": ("", text)}), mentions, [])["mentions"].to_pylist()
    assert [(row["decision"], row["reasons"]) for row in rows] == [("accept", [])] + [("reject", ["unbound"])] * 3
    assert (rows[0]["start"], rows[0]["end"]) == (0, 27)


def test_a_relation_between_claims_is_bound_to_their_sentences() -> None:
    chunk = ChunkText(5, "", "Lotteries prey on the poor. So they should go.")
    ends = Ends({}, {"lotteries exploit people": (5, 32), "lotteries should be banned": (33, 51)})
    assert bind_relation(chunk, "lotteries exploit people", "lotteries should be banned", (5, 51), ends) == (5, 51)
    assert bind_relation(chunk, "lotteries exploit people", "nobody said this", (5, 51), ends) is None


def test_an_alias_of_the_chunk_stands_for_the_name_in_a_relation(corpus: Run) -> None:
    tables = corpus({"d": ("", "Mr. Holmes lives in Baker Street.")})
    relation = {"subject": "Sherlock Holmes", "predicate": "lives in", "object": "Baker Street"}
    mention = {"name": "Sherlock Holmes", "aliases": ["Mr. Holmes"]}
    (row,) = units(tables, [mention], [relation])["relations"].to_pylist()
    assert (row["decision"], row["start"], row["end"]) == ("accept", 0, 32)
    (row,) = units(tables, [{**mention, "aliases": ["Mr. Watson"]}], [relation])["relations"].to_pylist()
    assert row["reasons"] == ["unbound"]


def test_the_default_class_of_an_extractor_decides_on_units_without_a_score(corpus: Run, extract: Run) -> None:
    tables = corpus({"d": ("", "Bern is old.")}, {"d": (["Bern"], [])})
    extract(tables, "mentions", "recorded")
    config = GovernConfig(default_class={"recorded": "review"})
    rows = s06_govern.STAGE.run(tables, config=config)["mentions"]
    assert {row["extractor"]: (row["decision"], row["reasons"]) for row in rows.to_pylist()} == {
        "mentions": ("accept", []),
        "recorded": ("review", ["unscored"]),
    }
    assert [by_decision(rows, decision).num_rows for decision in ("accept", "review", "reject")] == [1, 1, 0]


def test_every_admitted_relation_has_a_span_that_holds_both_names(corpus: Run, govern: Run) -> None:
    text = "Marie Curie was born in Warsaw, the capital. In Paris she met Pierre Curie. X is not here."
    triples = [["Marie Curie", "met", "Pierre Curie"], ["Warsaw", "is", "the capital"], ["Marie Curie", "left", "Berlin"]]
    tables = govern(corpus({"d": ("", text)}, {"d": (["Paris"], triples)}), "recorded", "mentions")
    names = {row["entity_id"]: row["names"] for row in tables["entities"].to_pylist()}
    accepted = by_decision(tables["relations"], "accept").to_pylist()
    assert len(accepted) == tables["relations"].num_rows - 1
    for row in accepted:
        found = text[row["start"] : row["end"]]
        assert all(any(name in found for name in names[row[end]]) for end in ("subject_id", "object_id"))


def test_descriptions_have_one_row_per_entity_and_text(corpus: Run) -> None:
    said = [{"name": "Bern", "description": text} for text in ("A city.", "A city.", "A capital.", "")]
    tables = units(corpus({"d": ("", "Bern and Basel")}), [*said, {"name": "Basel", "description": "A city."}], [])
    rows = tables["descriptions"].to_pylist()
    assert sorted((row["text"], row["mention_id"]) for row in rows) == [
        ("A capital.", "m2"),
        ("A city.", "m0"),
        ("A city.", "m4"),
    ]


def test_the_type_of_an_entity_is_that_of_most_mentions_and_says_what_it_is_if_any_does(corpus: Run) -> None:
    types = ["name", "name", "name", "place", "person", "place", None]
    tables = units(corpus({"d": ("", "Bern")}), [{"name": "Bern", "type": type_} for type_ in types], [])
    assert tables["entities"].column("type").to_pylist() == ["place"]
    tables = units(corpus({"d": ("", "Bern")}), [{"name": "Bern", "type": type_} for type_ in ("person", "place", None)], [])
    assert tables["entities"].column("type").to_pylist() == ["person"]
