"""What benchmarks take from an index: its graph with the resets of questions, its facts as arcs with their seeds."""

import numpy as np
import pytest
import torch

from gpu_rag.config import load_config
from gpu_rag.errors import InputError
from gpu_rag.evaluation.bench_graphs import activation_of_queries, walk_of_queries
from gpu_rag.query.retrievers import Queries

DOCUMENTS = {"d1": ("", "Alpha met Beta."), "d2": ("", "Beta knew Gamma."), "d3": ("", "Delta slept.")}
TRIPLES = [("d1", "Alpha", "met", "Beta", "accept"), ("d2", "Beta", "knew", "Gamma", "accept")]


@pytest.fixture(scope="module")
def repository(make_repository):
    return make_repository(DOCUMENTS, TRIPLES)


def _queries(encoder, *texts):
    return Queries(list(texts), encoder.encode(texts).vectors)


def test_resets_are_those_that_the_system_walks_from(repository, encoder):
    config = load_config(system="hipporag2").retrieve
    case = walk_of_queries("here", repository, _queries(encoder, "Alpha met", "knew Gamma"), config)
    rows = case.rows(0, 2)
    assert case.passages == (0, 3)
    assert case.graph is repository.graph_view(config.ppr.view).graph
    assert (rows[:, :3] <= 0.05).all()
    entity = {name: 3 + row for row, name in enumerate(repository.entity_names)}
    assert rows[0, entity["Alpha"]] > rows[1, entity["Alpha"]]
    assert rows[1, entity["Gamma"]] > rows[0, entity["Gamma"]]


def test_question_that_is_not_walked_for_is_left_out(make_repository, encoder):
    retrieve = load_config(system="hipporag2").retrieve
    no_facts = make_repository(DOCUMENTS)
    with pytest.raises(InputError, match="no question has a seed"):
        walk_of_queries("here", no_facts, _queries(encoder, "Alpha met"), retrieve)


def test_facts_are_arcs_and_the_best_facts_ends_are_seeds(repository, encoder):
    case = activation_of_queries("here", repository, _queries(encoder, "Alpha met", "knew Gamma"), 2)
    names = repository.entity_names
    ends = {(names[start], names[end]) for start, end in zip(case.graph.source, case.graph.target, strict=True)}
    assert ends == {("Alpha", "Beta"), ("Beta", "Gamma")}
    seeds = [[names[node] for node in part] for part in torch.tensor_split(case.seeds.nodes, case.seeds.indptr[1:-1])]
    assert seeds == [["Alpha", "Beta"], ["Beta", "Gamma"]]
    np.testing.assert_array_equal(case.arc_vectors, repository.fact_vectors)


def test_index_without_facts_has_no_arcs_to_measure(make_repository, encoder):
    with pytest.raises(InputError, match="no arc"):
        activation_of_queries("here", make_repository(DOCUMENTS), _queries(encoder, "Alpha"), 1)
