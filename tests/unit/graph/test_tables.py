"""Graphs from tables with ids of any kind."""

import pytest
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph import arcs_of_tables, build_csr, csr_of_tables, node_rows, personalized_pagerank


@pytest.mark.parametrize("ids", [["b", "a", "d", "c"], [40, -1, 7, 2**40], [("x", 1), ("x", 2), ("y", 1), "z"]])
def test_graph_of_ids_is_that_of_their_places(ids: list) -> None:
    graph = csr_of_tables(ids, [ids[0], ids[2]], [ids[1], ids[1]], torch.tensor([2.0, 0.5]), undirected=True)
    expected = build_csr(4, torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([2.0, 0.5]), undirected=True)
    assert torch.equal(graph.indices, expected.indices)
    assert torch.equal(graph.weights, expected.weights)
    assert graph.num_nodes == 4  # the last has no edge
    reset = torch.zeros(1, 4)
    reset[0, node_rows(ids, [ids[2]])] = 1.0
    assert int(personalized_pagerank(graph, reset).scores.argmax()) == 2


def test_arcs_of_ids_keep_their_order() -> None:
    arcs = arcs_of_tables(["p", "q"], ["q", "p", "q"], ["p", "q", "q"])
    assert (arcs.source.tolist(), arcs.target.tolist()) == ([1, 0, 1], [0, 1, 1])


def test_an_id_that_is_no_nodes_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"target_ids\[1\]='z' is the id of no node"):
        csr_of_tables(["a", "b"], ["a", "b"], ["b", "z"], undirected=False)
    with pytest.raises(InputError, match="node id 'a' occurs more than once"):
        arcs_of_tables(["a", "b", "a"], ["a"], ["b"])
    with pytest.raises(InputError, match="target has 2 arcs, source has 1"):
        arcs_of_tables(["a", "b"], ["a"], ["b", "a"])
