"""Communities of the governed graph, and the counts before and after governance."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.index import s08_communities
from gpu_rag.index.s08_communities import CommunitiesConfig, communities

Tables = dict[str, pa.Table]

TWO_GROUPS = {
    "a": ("Orme", "Ilse Marrow met Tomas Reed. Tomas Reed met Anna Thorley. Anna Thorley met Ilse Marrow."),
    "b": ("Sall", "Odile Vane met Jarek Lund. Jarek Lund met Petra Pike. Petra Pike met Odile Vane."),
    "c": ("Lone", "Hollis Tenn slept."),
}


@pytest.fixture
def found(corpus: Callable[..., Tables], govern: Callable[..., Tables]) -> Callable[..., Tables]:
    def run(documents: dict[str, tuple[str, str]], *methods: str, recorded: Any = None, **settings: Any) -> Tables:
        tables = govern(corpus(documents, recorded), *methods)
        return tables | communities(tables, config=CommunitiesConfig(**settings))

    return run


def named(tables: Tables) -> list[list[str]]:
    names = dict(zip(*(tables["entities"].column(name).to_pylist() for name in ("entity_id", "name")), strict=True))
    return sorted(sorted(names[member] for member in row["members"]) for row in tables["communities"].to_pylist())


def counts(tables: Tables) -> dict[str, tuple[int, int]]:
    return {row["measure"]: (row["before"], row["after"]) for row in tables["community_counts"].to_pylist()}


def test_entities_that_are_mentioned_together_are_a_community_and_others_are_in_none(found: Callable[..., Tables]) -> None:
    tables = found(TWO_GROUPS)
    assert named(tables) == [
        ["Anna Thorley", "Ilse Marrow", "Tomas Reed"],
        ["Jarek Lund", "Odile Vane", "Petra Pike"],
    ]
    assert [row["num_edges"] for row in tables["communities"].to_pylist()] == [3, 3]
    assert counts(tables)["communities"] == (2, 2)
    assert counts(tables)["isolated"][1] >= 1  # Hollis Tenn, and the titles


def test_only_the_raw_graph_counts_what_governance_rejects(found: Callable[..., Tables]) -> None:
    recorded = {"a": (["Ilse Marrow", "Tomas Reed"], [["Ilse Marrow", "met", "Tomas Reed"], ["Ghost", "met", "Phantom"]])}
    tables = found({"a": TWO_GROUPS["a"]}, "recorded", recorded=recorded)
    assert named(tables) == [["Ilse Marrow", "Tomas Reed"]]
    assert counts(tables) == {"communities": (2, 1), "edges": (2, 1), "entities": (4, 2), "isolated": (0, 0)}


def test_an_entity_and_its_alias_are_one_member(found: Callable[..., Tables]) -> None:
    documents = {
        "a": ("", "The World Health Organization (WHO) met Ilse Marrow. WHO met Ilse Marrow."),
    }
    tables = found(documents)
    canonical = set(tables["entities"].column("canonical_id").to_pylist())
    for row in tables["communities"].to_pylist():
        assert set(row["members"]) <= canonical
        assert row["members"] == sorted(set(row["members"]))


def test_ids_come_from_members_and_level_not_from_documents(found: Callable[..., Tables]) -> None:
    renamed = {f"{doc_id}-x": content for doc_id, content in TWO_GROUPS.items()}
    first, second = (found(documents)["communities"] for documents in (TWO_GROUPS, dict(reversed(renamed.items()))))
    assert first.equals(second)


def test_an_empty_graph_has_no_communities() -> None:
    tables = {schema.name: schema.empty() for schema in (schemas.ENTITIES, schemas.MENTIONS, schemas.RELATIONS)}
    done = communities(tables, config=CommunitiesConfig())
    assert done["communities"].num_rows == 0
    assert {row["before"] + row["after"] for row in done["community_counts"].to_pylist()} == {0}
    assert s08_communities.STAGE.writes == (schemas.COMMUNITIES, schemas.COMMUNITY_COUNTS)
