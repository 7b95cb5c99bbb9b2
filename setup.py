"""The package list; everything else stands in pyproject.toml.

`configs/` ships as `gpu_rag.configs`. `kernels/` holds the package gpu_rag_kernels and is no package itself: a
top-level module `kernels` would shadow Hugging Face `kernels`. `ray_jobs/` holds scripts and is not installed.
"""

from setuptools import find_namespace_packages, setup


def find(folder: str, *include: str) -> list[str]:
    """Return the packages under `folder`; to setuptools, folders of templates or configs are packages too."""
    return find_namespace_packages(folder, include=include or ("*",), exclude=("*.__pycache__",))


setup(
    packages=[
        *find(".", "gpu_rag", "gpu_rag.*"),
        *find("kernels", "gpu_rag_kernels", "gpu_rag_kernels.*"),
        "gpu_rag.configs",
        *(f"gpu_rag.configs.{name}" for name in find("configs")),
    ],
    package_dir={"gpu_rag.configs": "configs", "gpu_rag_kernels": "kernels/gpu_rag_kernels"},
)
