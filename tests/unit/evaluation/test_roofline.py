"""What a sweep has to move and compute, the machine's rates, and fits of growth."""

import pytest
import torch
from gpu_rag_kernels import ppr_cpu

from gpu_rag.evaluation import roofline
from gpu_rag.evaluation.roofline import Machine, measure_machine, power_fit, share_of_roofline, sweep_work
from gpu_rag.graph import build_csr


def test_work_of_a_path_of_three_nodes_is_counted_by_hand() -> None:
    # Two edges are 4 entries of an index and a weight, read once for 16 queries; 3 nodes have an offset, a slot, and a score
    # that is read and written.
    work = sweep_work(3, 4)
    assert ppr_cpu.LANES == 16
    assert work.streamed_bytes == 4 * (4 + 4) / 16 + 3 * ((8 + 4) / 16 + 2 * 4)
    assert work.gathered_rows == 4 / 16
    assert work.gathered_bytes == 4 * 4
    assert work.operations == 2 * 4 + 7 * 3


def test_float64_doubles_what_is_gathered() -> None:
    assert sweep_work(3, 4, itemsize=8).gathered_bytes == 2 * sweep_work(3, 4).gathered_bytes


@pytest.mark.parametrize(
    ("rates", "binding"),
    [((1.0, 1e9, 1e9), "stream"), ((1e9, 1.0, 1e9), "gather"), ((1e9, 1e9, 1.0), "arithmetic")],
)
def test_share_is_taken_of_the_limit_that_binds(rates: tuple[float, float, float], binding: str) -> None:
    graph = build_csr(3, torch.tensor([0, 1]), torch.tensor([1, 2]), undirected=True)
    stream, gathers, operations = rates
    found = share_of_roofline(graph, 2.0, 1e4, Machine(1, 1.0, stream, gathers, operations, operations))
    amount = {"stream": "streamed_bytes", "gather": "gathered_rows", "arithmetic": "operations"}[binding]
    assert found["binding"] == binding
    assert found["share"] == pytest.approx(2.0 * found["per_sweep_and_query"][amount] / 1e4)
    assert found["floor_us_per_query"][binding] == max(found["floor_us_per_query"].values())


def test_rates_of_this_machine_are_measured_and_torch_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "_PRODUCT_SIZE", 64)
    monkeypatch.setattr(roofline, "_COPY_SECONDS", 1e-4)
    before = torch.get_num_threads()
    machine = measure_machine(300, 1000)
    assert torch.get_num_threads() == before == machine.threads
    rates = (
        machine.memory_bytes_per_s, machine.stream_bytes_per_s, machine.gathers_per_s, machine.operations_per_s,
        machine.operations_per_s_of_one_thread,
    )  # fmt: skip
    assert all(0 < rate < 1e15 for rate in rates)


def test_fit_finds_exponent_and_factor_of_an_exact_power() -> None:
    sizes = [10.0, 20.0, 50.0, 400.0]
    fit = power_fit(sizes, [3.0 * size**1.5 for size in sizes])
    assert fit["exponent"] == pytest.approx(1.5)
    assert fit["factor"] == pytest.approx(3.0)
    assert fit["r_squared"] == pytest.approx(1.0)


def test_fit_of_what_is_no_power_says_so() -> None:
    assert power_fit([1.0, 2.0, 4.0, 8.0], [1.0, 8.0, 1.0, 8.0])["r_squared"] < 0.6
