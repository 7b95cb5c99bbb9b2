"""Fixtures for all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def _has_cuda() -> bool:
    return os.path.exists("/dev/nvidiactl")


if not _has_cuda():  # before triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the data sets; tests over them are skipped where it is absent."""
    root = Path(os.environ.get("GPU_RAG_DATA", REPOSITORY.parent / "shared" / "data"))
    if not root.is_dir():
        pytest.skip("data sets absent: set GPU_RAG_DATA, or clone beside shared/")
    return root


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray for all tests that need workers; starting one per test would take most of their time."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 28)
    yield
    ray.shutdown()
