"""Graph views: which entities share a node, raw and governed, and which homonym a question means."""

import numpy as np
import pytest

from gpu_rag.query.graph_view import Edges, EntityNames, GraphViewConfig, build_graph_view, representatives
from gpu_rag.query.homonyms import in_sense

# U.S. and US are aligned; Li Wei is two, besides an unmarked one.
NAMES = ["U.S.", "US", "Li Wei", "Li Wei", "Li Wei", "\u5317\u4eac", "\u4e0a\u6d77"]
FORMS = ["u.s.", "us", "li wei", "li wei", "li wei", "\u5317\u4eac", "\u4e0a\u6d77"]
SENSES = ["", "", "cfo of alpha", "", "cfo of beta", "", ""]
ENTITIES = EntityNames(NAMES, FORMS, SENSES, np.array([1, 1, 2, 3, 4, 5, 6]))


@pytest.mark.parametrize(
    ("graph", "phrase_form", "expected"),
    [
        ("raw", "unicode", [0, 1, 2, 2, 2, 5, 6]),
        ("raw", "ascii", [0, 1, 2, 2, 2, 5, 6]),
        ("governed", "unicode", [1, 1, 2, 3, 4, 5, 6]),
        ("governed", "ascii", [1, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_raw_nodes_are_normal_forms_and_governed_ones_are_aligned_with_homonyms_apart(
    graph: str, phrase_form: str, expected: list[int]
) -> None:
    config = GraphViewConfig.model_validate({"graph": graph, "phrase_form": phrase_form})
    assert representatives(ENTITIES, config).tolist() == expected


def test_equal_phrases_share_a_node_in_the_governed_graph_too() -> None:
    entities = EntityNames(["A.B", "a b", "a b"], ["a.b", "a b", "a b"], ["", "", "x"], np.array([0, 1, 2]))
    assert representatives(entities, GraphViewConfig(graph="governed", phrase_form="ascii")).tolist() == [0, 0, 2]


def test_edges_of_aligned_entities_add_up_and_those_between_them_go() -> None:
    arrays = [np.array(values, np.int64) for values in ([0, 1, 0], [5, 5, 1], [1, 2, 1], [1, 1, 1])]
    relation = Edges(*arrays, weight=np.ones(3, np.float32))
    none = Edges(*[np.empty(0, np.int64)] * 4, weight=np.empty(0, np.float32))
    edges = {"relation": relation, "passage_entity": none, "passage_name": none, "synonym": none}
    weights = {}
    for graph in ("raw", "governed"):
        view = build_graph_view(GraphViewConfig.model_validate({"graph": graph}), 1, ENTITIES, edges)
        weights[graph] = sorted(view.graph.weights.tolist())
        assert view.entity_nodes[0] == (1 if graph == "raw" else 2)
    assert weights == {"raw": [2.0, 2.0, 2.0, 2.0, 4.0, 4.0], "governed": [4.0, 4.0]}


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What did Li Wei, CFO of Alpha, say?", [2]),
        ("What did Li Wei of Beta say?", [4]),
        ("What did Li Wei say?", [2, 3, 4]),
        ("What did the CFO Li Wei say?", [2, 4]),
    ],
)
def test_a_question_means_the_homonym_whose_sense_it_speaks_of(question: str, expected: list[int]) -> None:
    found = [(0, 6, entity) for entity in (2, 3, 4)]
    assert [entity for _, _, entity in in_sense(found, question, FORMS, SENSES)] == expected


def test_names_without_homonyms_are_left_alone() -> None:
    found = [(0, 2, 5), (3, 5, 6), (3, 5, 1)]
    assert in_sense(found, "x", FORMS, SENSES) == found
