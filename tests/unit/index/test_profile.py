"""Stage 02 by rules: each dimension, with a text that has it and a near one that has not."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.index import s02_profile
from gpu_rag.index.profile_rules import DISCOURSES, FORMS, profile_document
from gpu_rag.index.s02_profile import ProfileConfig
from gpu_rag.stage import run_here, work_keys

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "corpus.jsonl"
STORY = (
    "She had promised to keep it shut. She kept the promise until Thursday, when she lit a candle and went down to the cellar. "
    "\u201cWho is there?\u201d she said. Nobody answered. Then he came up the stairs and told her what he had seen, and they ran."
)
DEFINITION = (
    "A lock is a device for raising and lowering boats. It consists of a chamber with gates at both ends. The chamber is filled or "
    "emptied through valves, which are called paddles. Locks are used where a canal is not level. A flight is a series of locks."
)
ARGUMENT = (
    "The Board must not build the dam. It is said that we need the light; but we should ask whose light it is. If the rock is "
    "broken, the water cannot stay, and therefore the whole plan is wrong. I believe that no evidence supports the claim, because "
    "the borings prove the reverse."
)


def documents(*rows: tuple[str, str, str]) -> dict[str, pa.Table]:
    return {
        "documents": schemas.DOCUMENTS.from_rows(
            [
                {
                    "doc_id": doc_id, "title": title, "text": text, "access": [], "duplicate_of": None,
                    "state": "ok" if title + text else "skipped", "reason": "",
                }
                for doc_id, title, text in rows
            ]
        )
    }  # fmt: skip


def profiles(*rows: tuple[str, str, str]) -> dict[str, dict[str, Any]]:
    made = run_here(s02_profile.STAGE, ProfileConfig(), documents(*rows))["profiles"]
    return {row["doc_id"]: row for row in schemas.check_table(made, schemas.PROFILES).to_pylist()}


@pytest.mark.parametrize(
    ("text", "mode"), [(STORY, "narrative"), (DEFINITION, "conceptual"), (ARGUMENT, "argumentative")], ids=DISCOURSES
)
def test_the_discourse_mode_is_what_most_of_the_text_does(text: str, mode: str) -> None:
    assert profile_document("", text).discourse == mode


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Short.",
        "1 2 3",
        "\u4ed6\u8d70\u4e86\u3002" * 50,
        "\u041e\u043d \u0443\u0448\u0451\u043b \u0434\u043e\u043c\u043e\u0439. " * 30,
    ],
)
def test_a_text_without_cues_is_narrative(text: str) -> None:
    profile = profile_document("", text)
    assert (profile.discourse, profile.boundary) == ("narrative", "none")
    assert profile.form in FORMS


@pytest.mark.parametrize(
    ("title", "text", "form"),
    [
        ("", STORY.replace("Who is there", "Who is there, and what do you want of me"), "fiction"),
        ("", STORY.replace("\u201c", "").replace("\u201d", ""), "article"),
        ("Inquiry into the Loss of the Tug", STORY, "report"),
        ("The Inquirer", DEFINITION, "article"),
        ("", "\n\n".join(["ANNA: Did you see it? I did not.", "BEN: No. It went by too fast."] * 3), "dialogue"),
        ("", f"Note: {DEFINITION} Note: it is long.", "article"),
        (
            "",
            f"Abstract\n\n{DEFINITION}\n\n1. Locks\n\n{DEFINITION}\n\n2. Boats\n\n{DEFINITION}\n\nReferences\n\nSmith.",
            "paper",
        ),
        ("", f"Abstract\n\n{DEFINITION}", "article"),
        ("", DEFINITION * 120, "mixed"),
    ],
)
def test_the_form_is_read_off_the_surface(title: str, text: str, form: str) -> None:
    assert profile_document(title, text).form == form


def test_topics_are_the_frequent_words_that_are_no_function_words_the_title_first() -> None:
    topics = profile_document("The Canal", "The canal has locks. Locks lift boats. The lock keeper lives there.").topics
    assert topics[:2] == ("canal", "locks")
    assert not {"the", "has", "there"} & set(topics)
    assert profile_document("Crake's Ledger", "Crake\u2019s ledger.").topics[:2] == ("crake", "ledger")


def test_scripts_without_spaces_have_topics_of_two_characters() -> None:
    assert (
        profile_document(
            "", "\u706f\u5854\u5f88\u9ad8\u3002\u706f\u5854\u5f88\u8001\u3002\u6211\u770b\u89c1\u706f\u5854\u3002"
        ).topics[0]
        == "\u706f\u5854"
    )


def test_sections_count_in_the_source_text_and_give_the_boundary() -> None:
    text = f"CHAPTER I\n\n{STORY}\n\nCHAPTER II\n\n{STORY}"
    row = profiles(("d", "A Title", text))["d"]
    source = f"A Title\n{text}"
    assert row["boundary"] == "chapter"
    assert [source[section["start"] :][:11].split("\n")[0] for section in row["sections"]] == ["CHAPTER I", "CHAPTER II"]
    assert row["sections"][1]["end"] == len(source)
    assert profiles(("d", "CHAPTER I", STORY))["d"]["sections"] == []


def test_a_skipped_document_has_no_profile_and_equal_ones_are_one_piece_of_work() -> None:
    rows = (("a", "T", STORY), ("b", "T", STORY), ("c", "", ""))
    assert sorted(profiles(*rows)) == ["a", "b"]
    content = s02_profile.STAGE.content(documents(*rows), ProfileConfig())
    assert len(set(work_keys(content, "f"))) == 1
    assert profiles() == {}


def test_a_profile_depends_on_title_and_text_alone() -> None:
    alone = profiles(("x", "T", STORY))["x"]
    among = profiles(("z", "T", STORY), ("a", "U", ARGUMENT))["z"]
    assert {**alone, "doc_id": ""} == {**among, "doc_id": ""}
    assert alone["method"] == "rules"


def test_the_sample_corpus_is_read_as_a_person_would_read_it() -> None:
    read = {
        row["doc_id"]: profile_document(row["title"], row["text"]) for row in map(json.loads, EXAMPLES.open(encoding="utf-8"))
    }
    stories = [profile for name, profile in read.items() if name.startswith("story")]
    assert sum((profile.form, profile.discourse) == ("fiction", "narrative") for profile in stories) >= 9
    assert all(profile.discourse == "narrative" for profile in stories)
    reports = [profile for name, profile in read.items() if name.startswith("report")]
    assert all(profile.form == "report" for profile in reports)
    letters = [profile for name, profile in read.items() if name.startswith("arg")]
    assert sum(profile.discourse == "argumentative" for profile in letters) >= 7
    entries = [profile for name, profile in read.items() if name.startswith("ency")]
    assert all(profile.form == "article" for profile in entries)
    assert not any(profile.discourse == "argumentative" for profile in entries)
    assert read["ency-lantern-gentian"].discourse == "conceptual"


def test_a_long_document_is_profiled_in_time_that_grows_with_it() -> None:
    text = f"CHAPTER I\n\n{STORY}\n\n" * 3000
    assert len(profile_document("", text).sections) == 3000
    for odd in ("a" * 1_000_000, '"' * 200_000, "ANNA: " * 100_000, "(" * 200_000, "A " * 300_000):
        assert profile_document("", odd).discourse == "narrative"


def test_a_document_whose_worker_was_lost_is_read_as_a_plain_narrative() -> None:
    documents = schemas.DOCUMENTS.from_rows(
        [{"doc_id": "a", "title": "", "text": "x", "access": [], "duplicate_of": None, "state": "ok", "reason": ""}]
    )
    lost = {"row_id": "a", "state": "error", "reason": "worker lost: died", "form": "", "topics": [], "discourse": ""}
    fields = [
        s02_profile.STAGE.result_schema.field(name)
        for name in ("form", "topics", "discourse", "sections", "boundary", "method")
    ]
    schema = pa.schema([("row_id", pa.string()), ("state", pa.string()), ("reason", pa.string()), *fields])
    results = pa.Table.from_pylist([lost | {"sections": [], "boundary": "", "method": ""}], schema=schema)
    (row,) = s02_profile.STAGE.assemble({"documents": documents}, results, ProfileConfig())["profiles"].to_pylist()
    assert (row["discourse"], row["boundary"], row["method"], row["sections"]) == ("narrative", "none", "none", [])
