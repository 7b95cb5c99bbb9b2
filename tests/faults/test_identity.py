"""Documents that look alike: same file name, same text, same title, no title; and whose citations say which it was."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from gpu_rag import schemas
from gpu_rag.spans import source_text

FILES = {
    "a/readme.md": "# Harl\n\nHarl Mill was built by Anna Voss in 1790.",
    "b/readme.md": "# Orme\n\nOrme Bridge was built by Tomas Reed in 1811.",
    "b/README.md": "# Pell\n\nPell Tower was built by Ilse Marrow in 1845.",
    "readme.md": "# Sall\n\nSall Weir was built by Jon Brandt in 1866.",
    "a/readme.txt": "Verrin Hut was built by Mara Lindt in 1902.",
    "a/b/readme.md": "# Harl\n\nHarl Mill was built by Anna Voss in 1790.",
    "caf\u00e9.md": "The composed file speaks of Dorn Gate, built by Eva Holm in 1921.",
    "cafe\u0301.md": "The decomposed file speaks of Lund Gate, built by Per Stahl in 1933.",
}
HOUSES: list[dict[str, Any]] = [
    {"doc_id": "copy-2", "title": "Harl", "text": "Harl Mill was built by Anna Voss in 1790."},
    {"doc_id": "copy-1", "title": "Harl", "text": "Harl Mill was built by Anna Voss in 1790."},
    {"doc_id": "copy-3", "title": "Harl", "text": "Harl Mill was built by Anna Voss in 1790."},
    {"doc_id": "other title", "title": "Harl Mill", "text": "Harl Mill was built by Anna Voss in 1790."},
    {"doc_id": "Mercury", "title": "Mercury", "text": "Mercury is the planet nearest to the Sun."},
    {"doc_id": "mercury", "title": "Mercury", "text": "Mercury was a newspaper printed in Pell until 1902."},
    {"doc_id": "MERCURY ", "title": "mercury ", "text": "Mercury boiled in the lamps of Orme Bridge until 1930."},
    {"doc_id": 42, "text": "Orme Bridge was built by Tomas Reed in 1811."},
    {"doc_id": "null#title/../x", "title": None, "text": "Pell Tower was built by Ilse Marrow in 1845."},
    {"doc_id": 'empty "title"', "title": "", "text": "Sall Weir was built by Jon Brandt in 1866."},
    {"doc_id": "blank\ttitle\n", "title": " \n", "text": "Verrin Hut was built by Mara Lindt in 1902."},
    {"doc_id": "invisible", "title": "\u200b", "text": "Dorn Gate was built by Eva Holm in 1921."},
    {"doc_id": "l" * 3000, "title": "Lund Gate", "text": "It was built by Per Stahl in 1933. Its keeper was Otto Brandt."},
    {"doc_id": "7", "title": "A title and nothing else", "text": ""},
]
BUILDERS = {
    "Harl Mill": ("Anna Voss", {"copy-1", "copy-2", "copy-3", "other title"}),
    "Orme Bridge": ("Tomas Reed", {"42"}),
    "Pell Tower": ("Ilse Marrow", {"null#title/../x"}),
    "Sall Weir": ("Jon Brandt", {'empty "title"'}),
    "Verrin Hut": ("Mara Lindt", {"blank\ttitle\n"}),
    "Dorn Gate": ("Eva Holm", {"invisible"}),
    "Lund Gate": ("Per Stahl", {"l" * 3000}),
}
ASKED = [
    {
        "id": place,
        "question": f"Who built {place}?",
        "answers": [builder],
        "answerable": True,
        "supporting_doc_ids": sorted(found),
    }
    for place, (builder, found) in BUILDERS.items()
]


@pytest.fixture(scope="module")
def houses(new_job: Callable[[], Any]) -> Any:
    """A finished, evaluated job over `HOUSES`."""
    job = new_job()
    job.index(HOUSES)
    job.answer(ASKED)
    job.evaluate()
    return job


def documents(job: Any) -> dict[str, dict[str, Any]]:
    return {row["doc_id"]: row for row in job.generation().read(schemas.DOCUMENTS).to_pylist()}


def test_equal_file_names_in_several_folders_are_as_many_documents_and_cited_by_path(job: Any) -> None:
    tree = job.folder / "tree"
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    job.index(tree)
    found = documents(job)
    assert {doc_id: row["text"] for doc_id, row in found.items()} == FILES
    assert {doc_id for doc_id, row in found.items() if row["duplicate_of"]} == {"a/readme.md"}
    asked = [{"id": place, "question": f"Who built {place}?"} for place in BUILDERS]
    job.answer(asked, system="bm25")
    answers, ranked = job.answers(), job.ranked()
    assert ranked["Orme Bridge"][0] == "b/readme.md"
    assert ranked["Pell Tower"][0] == "b/README.md"
    assert set(ranked["Harl Mill"][:2]) == {"a/readme.md", "a/b/readme.md"}
    cited = {place: {citation["doc_id"] for citation in answers[place]["citations"]} for place in BUILDERS}
    assert all(places <= set(FILES) for places in cited.values())
    assert cited["Sall Weir"] == {"readme.md"}


def test_one_text_under_three_ids_is_one_piece_of_work_and_three_documents(houses: Any) -> None:
    found = documents(houses)
    assert len(found) == len(HOUSES)
    assert {doc_id: row["duplicate_of"] for doc_id, row in found.items() if row["duplicate_of"]} == {
        "copy-2": "copy-1", "copy-3": "copy-1",
    }  # fmt: skip
    report = houses.root / "report.json"
    from gpu_rag.store import read_json

    stages = {stage["label"]: stage for stage in read_json(report)["stages"]}
    assert stages["01_ingest"]["metrics"]["duplicates"] == 2
    assert (stages["03_chunk"]["rows"], stages["03_chunk"]["distinct"]) == (len(HOUSES), len(HOUSES) - 2)
    assert (stages["04_extract"]["rows"], stages["04_extract"]["distinct"]) == (len(HOUSES), len(HOUSES) - 2)
    assert set(houses.ranked()["Harl Mill"][:4]) == {"copy-1", "copy-2", "copy-3", "other title"}


def test_removing_the_first_of_equal_documents_costs_nothing_and_leaves_the_others(houses: Any) -> None:
    houses.index([row for row in HOUSES if row["doc_id"] != "copy-1"])
    assert set(houses.recomputed()) <= {"06_govern", "07_graph", "08_communities", "10_publish"}
    found = documents(houses)
    assert "copy-1" not in found
    assert (found["copy-2"]["duplicate_of"], found["copy-3"]["duplicate_of"]) == (None, "copy-2")
    houses.index(HOUSES)
    assert houses.recomputed() == {}


def test_documents_of_one_title_are_all_kept_with_their_own_text(houses: Any) -> None:
    found = documents(houses)
    kept = {doc_id: found[doc_id]["text"] for doc_id in ("Mercury", "mercury", "MERCURY ")}
    assert kept == {row["doc_id"]: row["text"] for row in HOUSES if row["doc_id"] in kept}
    chunks = houses.generation().read(schemas.CHUNKS).column("doc_id").to_pylist()
    assert sorted(set(chunks)) == sorted(found) and len(chunks) == len(found)


def test_documents_without_a_title_are_indexed_ranked_and_cited(houses: Any) -> None:
    found = documents(houses)
    assert [found[doc_id]["title"] for doc_id in ("42", "null#title/../x", 'empty "title"')] == ["", "", ""]
    ranked = houses.ranked()
    for place in ("Orme Bridge", "Pell Tower", "Sall Weir", "Verrin Hut", "Dorn Gate"):
        assert ranked[place][0] in BUILDERS[place][1]


def test_a_corpus_without_any_title_is_indexed_and_answered(job: Any) -> None:
    job.index([{"doc_id": row["doc_id"], "text": row["text"]} for row in HOUSES[7:12]])
    job.answer([row for row in ASKED if row["id"] in ("Orme Bridge", "Pell Tower")])
    cited = {place: {citation["doc_id"] for citation in row["citations"]} for place, row in job.answers().items()}
    assert cited == {place: BUILDERS[place][1] for place in ("Orme Bridge", "Pell Tower")}


def test_citations_name_the_users_documents_and_are_slices_of_them(houses: Any) -> None:
    given = {str(row["doc_id"]): source_text(row.get("title") or "", row["text"]) for row in HOUSES}
    answers = houses.answers()
    for place, (builder, sources) in BUILDERS.items():
        row = answers[place]
        assert row["outcome"] == "answered"
        assert any(builder in citation["quote"] for citation in row["citations"])
        assert {citation["doc_id"] for citation in row["citations"]} & sources
        for citation in row["citations"]:
            assert given[citation["doc_id"]][citation["start"] : citation["end"]] == citation["quote"]


def test_every_sentence_of_an_explanation_is_the_quote_of_a_citation_of_its_own(houses: Any) -> None:
    for row in houses.answers().values():
        marks = [int(number) for number in re.findall(r" \[(\d+)\](?= |$)", row["explanation"])]
        assert marks == list(range(1, len(row["citations"]) + 1))
        rebuilt = " ".join(f"{citation['quote']} [{number}]" for number, citation in enumerate(row["citations"], start=1))
        assert row["explanation"] == rebuilt
        assert any(row["answer"] in citation["quote"] for citation in row["citations"])
