"""The export to PyTorch Geometric keeps every node, edge and fact, with its id."""

import numpy as np
import pytest

from gpu_rag.query.hetero import to_hetero_data
from gpu_rag.query.repository import EDGE_KINDS

pytest.importorskip("torch_geometric")

DOCUMENTS = {
    "d1": ("Rome", "Rome lies on the Tiber. Nero ruled Rome."),
    "d2": ("Nero", "Nero was an emperor. He sang."),
    "d3": ("", "An untitled text about nothing."),
}
TRIPLES = [
    ("d1", "Nero", "ruled", "Rome", "accept"),
    ("d2", "Nero", "sang in", "Ostia", "reject"),
    ("d2", "Nero", "co-mentioned", "Rome", "accept"),
]


@pytest.fixture(scope="module")
def repository(make_repository):
    return make_repository(DOCUMENTS, TRIPLES, ["Nero", "Rome", "Tiber"], [("Rome", "Ostia", 0.9)])


def test_nodes_and_edges_are_those_of_the_index(repository) -> None:
    data = to_hetero_data(repository)
    assert data.validate(raise_on_error=True)
    assert data["passage"].ids == repository.chunk_ids
    assert data["entity"].ids == repository.entity_ids
    assert data["passage"].num_nodes == 3  # d3 too, which has no edge
    assert data["entity"].num_nodes == len(repository.entity_ids)
    np.testing.assert_array_equal(data["passage"].x.numpy(), repository.chunk_vectors)
    for kind in EDGE_KINDS:
        edges, store = repository.edges(kind), data["passage" if kind.startswith("passage") else "entity", kind, "entity"]
        np.testing.assert_array_equal(store.edge_index.numpy(), [edges.source, edges.target])
        np.testing.assert_allclose(store.edge_weight.numpy(), edges.weight)
        assert store.count.tolist() == edges.count.tolist()
        assert store.accepted.tolist() == edges.accepted.tolist()
    assert data["entity", "synonym", "entity"].num_edges == 1


def test_arcs_are_the_facts_with_their_ids_vectors_and_decisions(repository) -> None:
    facts = to_hetero_data(repository)["entity", "states", "entity"]
    names = {repository.entity_ids[row]: repository.entity_names[row] for row in range(len(repository.entity_ids))}
    ends = [[names[repository.entity_ids[node]] for node in pair] for pair in facts.edge_index.T.tolist()]
    assert facts.ids == repository.fact_ids
    assert sorted(ends) == [["Nero", "Ostia"], ["Nero", "Rome"]]
    assert {end: bool(accepted) for (_, end), accepted in zip(ends, facts.accepted, strict=True)} == {
        "Ostia": False,
        "Rome": True,
    }
    np.testing.assert_array_equal(facts.edge_attr.numpy(), repository.fact_vectors)


def test_an_index_without_entities_exports_its_passages(make_repository) -> None:
    data = to_hetero_data(make_repository({"d1": ("A", "A text.")}))
    assert data.validate(raise_on_error=True)
    assert data["passage"].num_nodes == 1
    assert data["entity"].num_nodes == 0
    assert data.num_edges == 0
