"""docs/data_model.md says what schemas.py says."""

from pathlib import Path

import pytest

from gpu_rag import schemas
from gpu_rag.schemas import TableSchema

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data_model.md").read_text(encoding="utf-8")
TABLES = sorted((v for v in vars(schemas).values() if isinstance(v, TableSchema)), key=lambda table: table.name)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_data_model_page_has_the_table_with_its_version_key_and_columns(table: TableSchema) -> None:
    assert f"### {table.name} (version {table.version})" in PAGE
    section = PAGE.split(f"### {table.name} (version {table.version})")[1].split("\n### ")[0].split("\n## ")[0]
    assert f"Key: {', '.join(f'`{name}`' for name in table.key)}." in section
    for name in table.schema.names:
        assert f"| `{name}` |" in section


def test_the_data_model_page_has_the_usage_columns_of_the_work_cache() -> None:
    section = PAGE.split("## The work cache")[1]
    for column in schemas.USAGE_COLUMNS:
        assert f"| `{column.name}` |" in section
    assert f"struct<{', '.join(field.name for field in schemas.CALL)}>" in section
