"""What is shipped: wheel, CUDA image and lock files, and a package that imports without its heavy libraries."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("ray", "vllm", "torch", "faiss", "bm25s", "sentence_transformers", "transformers", "numba", "triton")
# Part of the interface of a declared library, which decides their version.
COME_WITH = {"markupsafe": "jinja2", "tokenizers": "sentence-transformers", "transformers": "sentence-transformers"}
SOURCES = ("gpu_rag", "kernels", "configs", "ray_jobs", "tests")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths in the wheel, built from a copy: a build folder in the tree would leak old modules into the wheel."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_the_two_packages_and_nothing_else_at_top_level(wheel_names: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_names} == {"gpu_rag", "gpu_rag_kernels"}


def test_wheel_holds_every_file_of_the_packages(wheel_names: set[str]) -> None:
    expected = {
        *_tree(ROOT / "gpu_rag", "gpu_rag"),
        *_tree(ROOT / "kernels/gpu_rag_kernels", "gpu_rag_kernels"),
        *_tree(ROOT / "configs", "gpu_rag/configs"),
    }
    assert wheel_names == expected
    assert {"gpu_rag/py.typed", "gpu_rag/configs/hardware/cpu.yaml"} <= wheel_names


@pytest.mark.parametrize("name", ["cpu", "h200x1", "h200x8"])
def test_hardware_config_loads_and_changes_no_default_of_another_section(name: str) -> None:
    from gpu_rag.config import Config, load_config

    config, default = load_config(hardware=name), Config()
    changed = {section for section in Config.model_fields if getattr(config, section) != getattr(default, section)}
    assert changed <= {"run", "embed", "llm"}
    rates = {"prompt_tokens_per_second", "output_tokens_per_second"}  # what the hardware does, not which model it runs
    assert config.llm.model_dump(exclude=rates) == default.llm.model_dump(exclude=rates)
    assert config.embed.encoder.device == ("cpu" if name == "cpu" else "cuda")
    assert (config.run.gpus_per_worker > 0) == (name != "cpu")


def test_every_file_the_dockerfile_copies_exists_and_is_sent_to_the_builder() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    sources = _dockerfile_sources()
    assert "requirements/cuda.lock" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert "!" + source.split("/")[0] in allowed, source


def test_dockerfile_copies_all_that_the_build_reads() -> None:
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "gpu_rag", "kernels", "configs"} <= set(_dockerfile_sources())


@pytest.mark.parametrize(("lock", "extras", "python"), [("cuda", ("cuda",), "3.12"), ("cpu", ("cpu", "dev"), "3.11")])
def test_lock_pins_every_direct_dependency_once_and_within_its_range(lock: str, extras: tuple[str, ...], python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [*project["dependencies"], *(item for extra in extras for item in project["optional-dependencies"][extra])]
    pins = _pins(ROOT / f"requirements/{lock}.lock", python)
    for requirement in map(Requirement, direct):
        versions = pins.get(canonicalize_name(requirement.name), [])
        assert len(versions) == 1, (requirement.name, versions)
        assert requirement.specifier.contains(versions[0]), (str(requirement), versions[0])


def test_cuda_lock_has_a_hash_for_every_pin() -> None:
    text = (ROOT / "requirements/cuda.lock").read_text()
    entries = re.split(r"\n(?=\S+==)", text)[1:]
    assert len(entries) > 100
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", ["cuda", "cpu"])
def test_lock_names_no_index_and_no_path(lock: str) -> None:
    text = (ROOT / f"requirements/{lock}.lock").read_text()
    assert re.findall(r".*(?:://|--(?:extra-)?index|--find-links| @ ).*", text) == []


def test_every_imported_library_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runtime = [*project["dependencies"], *(item for name in extras if name != "dev" for item in extras[name])]
    declared = {canonicalize_name(Requirement(item).name) for item in runtime}
    distributions = packages_distributions()
    for module, path in _imported_modules():
        names = {canonicalize_name(name) for name in distributions.get(module, [module])}
        assert {COME_WITH.get(name, name) for name in names} & declared, f"{path} imports {module}, pyproject.toml lacks it"


@pytest.mark.parametrize("module", ["gpu_rag", "gpu_rag.schemas", "gpu_rag.cli"])
def test_import_takes_no_heavy_library(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    assert _python(code, tmp_path).split() == []


@pytest.mark.parametrize("module", ["gpu_rag", "gpu_rag.schemas", "gpu_rag.cli"])
def test_import_works_where_no_heavy_library_can_be_imported(module: str, tmp_path: Path) -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r}))"  # None there makes every import of it fail
    assert _python(f"{blocked}; import {module}; print('imported')", tmp_path).split() == ["imported"]


def _tree(folder: Path, prefix: str) -> set[str]:
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _imported_modules() -> set[tuple[str, str]]:
    """(top-level module, file) of every import in the two packages, the standard library and ours left out."""
    imported = set()
    for path in (*(ROOT / "gpu_rag").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            else:
                continue
            imported |= {(module.split(".")[0], path.relative_to(ROOT).as_posix()) for module in modules}
    ours = {"gpu_rag", "gpu_rag_kernels", *sys.stdlib_module_names}
    return {(module, path) for module, path in imported if module not in ours}


def _dockerfile_sources() -> list[str]:
    lines = (ROOT / "Dockerfile.cuda").read_text().splitlines()
    return [source.removeprefix("./") for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]


def _pins(lock: Path, python: str) -> dict[str, list[str]]:
    """Versions by package that hold on Linux x86-64 for that Python."""
    here = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
    }
    pins: dict[str, list[str]] = {}
    for line in lock.read_text().splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            requirement = Requirement(line.rstrip(" \\"))
            if requirement.marker is None or requirement.marker.evaluate(here):
                pins.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier)[2:])
    return pins


def _python(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
