"""Homonyms: conflicting evidence keeps them apart, and nothing else does."""

from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag import ids
from gpu_rag.index import s07_graph
from gpu_rag.index.s07_graph import GraphConfig

Run = Callable[..., Any]
Documents = dict[str, tuple[str, str]]


def senses(tables: dict[str, Any], name: str) -> list[str]:
    return sorted(row["sense"] for row in tables["entities"].to_pylist() if row["name"] == name)


def spotted(documents: Documents, corpus: Run, govern: Run) -> dict[str, Any]:
    tables: dict[str, Any] = govern(corpus(documents))
    return tables


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("Li Wei, CFO of Alpha, spoke.", "Li Wei, the CFO of Beta, left.", ["cfo of alpha", "cfo of beta"]),
        ("Alpha's chief executive Li Wei spoke.", "Li Wei is the CEO at Beta.", ["ceo of alpha", "ceo of beta"]),
        ("Li Wei (born 1950) sang.", "Li Wei was born in Paris on 3 May 1987.", ["born 1950", "born 1987"]),
        (
            "Georgetown is the capital of Guyana.",
            "Georgetown is the capital of Penang.",
            ["capital of guyana", "capital of penang"],
        ),
        ("Li Wei, CFO of Alpha, spoke.", "Li Wei, CFO of Alpha Inc., left.", [""]),
        ("Li Wei, CFO of Alpha, spoke.", "Li Wei, CEO of Beta, left.", [""]),
        ("Li Wei, CFO of Alpha, spoke.", "Li Wei, former CFO of Beta, left.", [""]),
        ("Li Wei, CFO of Alpha, spoke.", "Li Wei was CFO of Beta in 1990.", [""]),
        ("Li Wei, CFO of Alpha, spoke.", "Li Wei was there.", [""]),
        ("Li Wei (born 1950) sang.", "Li Wei (born 1951) sang.", [""]),
        ("Li Wei (born 1950) sang.", "Li Wei met Ann Orr (born 1987).", [""]),
        ("Li Wei was minister from 1950.", "Li Wei was minister from 1987.", [""]),
    ],
)
def test_roles_that_nobody_holds_twice(first: str, second: str, expected: list[str], corpus: Run, govern: Run) -> None:
    name = "Georgetown" if first.startswith("Georgetown") else "Li Wei"
    assert senses(spotted({"a": ("", first), "b": ("", second)}, corpus, govern), name) == expected


def test_a_document_that_gives_both_values_says_that_they_are_of_one(corpus: Run, govern: Run) -> None:
    documents = {"a": ("", "Li Wei, CFO of Alpha, spoke."), "b": ("", "Li Wei, CFO of Beta, left.")}
    both = {**documents, "c": ("", "Li Wei, CFO of Alpha, came. Li Wei became CFO of Beta.")}
    assert len(senses(spotted(documents, corpus, govern), "Li Wei")) == 2
    assert senses(spotted(both, corpus, govern), "Li Wei") == [""]


def test_a_document_that_names_both_organisations_speaks_of_one_person(corpus: Run, govern: Run) -> None:
    documents = {"a": ("", "Li Wei, CEO of Alpha, spoke."), "b": ("", "Li Wei, CEO of Beta, left.")}
    assert senses(spotted({**documents, "c": ("", "Li Wei owns Alpha and Beta.")}, corpus, govern), "Li Wei") == [""]
    assert len(senses(spotted({**documents, "c": ("", "Ann Orr owns Alpha and Beta.")}, corpus, govern), "Li Wei")) == 2


def test_qualified_titles_keep_homonyms_apart_and_the_whole_title_joins_its_sense(corpus: Run, govern: Run) -> None:
    documents = {
        "a": ("Mercury (planet)", "Mercury is hot."), "b": ("Mercury (element)", "Mercury is heavy."), "c": ("", "Mercury fell."),
    }  # fmt: skip
    tables = spotted(documents, corpus, govern)
    assert senses(tables, "Mercury") == ["", "element", "planet"]
    canonical = {(row["name"], row["sense"]): row["canonical_id"] for row in tables["entities"].to_pylist()}
    assert canonical["Mercury (planet)", ""] == canonical["Mercury", "planet"] != canonical["Mercury (element)", ""]
    assert canonical["Mercury", ""] == ids.entity_id("mercury")


@pytest.mark.parametrize(
    "titles", [("Titanic (film)", "Titanic (1997 film)"), ("Titanic (ship)", "Titanic"), ("Titanic", "Titanic")]
)
def test_titles_that_do_not_contradict_one_another_are_of_one(titles: tuple[str, str], corpus: Run, govern: Run) -> None:
    documents = {str(place): (title, "Titanic sank.") for place, title in enumerate(titles)}
    assert senses(spotted(documents, corpus, govern), "Titanic") == [""]


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("person", "place"), ["person", "place"]),
        (("person", "city"), ["person", "place"]),
        (("person", "work"), [""]),
        (("place", "organization"), [""]),
        (("person", None), [""]),
        (("name", "title"), [""]),
    ],
)
def test_a_person_and_a_place_of_one_name(
    types: tuple[str | None, str | None], expected: list[str], corpus: Run, extract: Run
) -> None:
    from gpu_rag import schemas
    from gpu_rag.index.entities import entity_table

    tables = corpus({"a": ("", "Jackson."), "b": ("", "Jackson.")})
    extract(tables)
    rows = [{**row, "type": types[row["doc_id"] == "b"], "extractor": "llm"} for row in tables["unit_mentions"].to_pylist()]
    mentions = schemas.UNIT_MENTIONS.from_rows(rows)
    assert sorted(entity_table(tables["chunks"], mentions, tables["unit_relations"]).column("sense").to_pylist()) == expected


def test_descriptions_are_evidence_too(corpus: Run, extract: Run) -> None:
    from gpu_rag import schemas
    from gpu_rag.index.entities import entity_table

    tables = corpus({"a": ("", "Li Wei."), "b": ("", "Li Wei.")})
    extract(tables)
    for other, expected in (("Beta", ["cfo of alpha", "cfo of beta"]), ("Alpha", [""])):
        said = {"a": "He is the CFO of Alpha.", "b": f"Li Wei works as CFO of {other}."}
        rows = [{**row, "description": said[row["doc_id"]]} for row in tables["unit_mentions"].to_pylist()]
        entities = entity_table(tables["chunks"], schemas.UNIT_MENTIONS.from_rows(rows), tables["unit_relations"])
        assert sorted(entities.column("sense").to_pylist()) == expected


def test_links_of_homonyms_go_to_the_one_that_the_document_speaks_of(corpus: Run, govern: Run) -> None:
    documents = {
        "a": ("", "Li Wei, CFO of Alpha, spoke. Li Wei left."), "b": ("", "Li Wei, CFO of Beta, left."), "c": ("", "Li Wei ran."),
    }  # fmt: skip
    tables = spotted(documents, corpus, govern)
    tables |= s07_graph.STAGE.run(tables, config=GraphConfig())
    found = {row["sense"]: row["entity_id"] for row in tables["entities"].to_pylist() if row["name"] == "Li Wei"}
    linked = {sense: {row["doc_id"] for row in tables["links"].to_pylist() if row["entity_id"] == entity}
              for sense, entity in found.items()}  # fmt: skip
    assert linked == {"": {"c"}, "cfo of alpha": {"a"}, "cfo of beta": {"b"}}


def test_facts_of_homonyms_are_two_and_their_texts_are_equal(corpus: Run, govern: Run) -> None:
    documents = {"a": ("", "Li Wei, CFO of Alpha, sings."), "b": ("", "Li Wei, CFO of Beta, sings.")}
    recorded = {doc_id: (["Li Wei"], [["Li Wei", "does", "sings"]]) for doc_id in documents}
    tables = govern(corpus(documents, recorded), "recorded")
    assert tables["facts"].column("text").to_pylist() == ["('li wei', 'does', 'sings')"] * 2
    assert set(tables["facts"].column("fact_id").to_pylist()) == set(tables["relations"].column("fact_id").to_pylist())


def test_senses_do_not_depend_on_document_ids_and_a_deleted_document_leaves_no_trace(corpus: Run, govern: Run) -> None:
    alpha, beta, plain = "Li Wei, CFO of Alpha, spoke.", "Li Wei, CFO of Beta, left.", "Li Wei ran."
    one = spotted({"a": ("", alpha), "b": ("", beta), "c": ("", plain)}, corpus, govern)["entities"]
    other = spotted({"x": ("", plain), "y": ("", beta), "z": ("", alpha)}, corpus, govern)["entities"]
    assert one.equals(other)
    without = spotted({"a": ("", alpha), "c": ("", plain)}, corpus, govern)["entities"]
    assert set(without.column("sense").to_pylist()) == {""}
