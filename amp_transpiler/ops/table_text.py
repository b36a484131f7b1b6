"""Reading a table of operators written as text: a row a line, the operator first, the rest about it."""

from __future__ import annotations

__all__ = ["table_rows"]


def table_rows(*tables: str) -> dict[str, str]:
    """Return operator -> the rest of its row, for all the rows of `tables`.

    Raises:
        ValueError: an operator has two rows, or a row says nothing of its operator.
    """
    found: dict[str, str] = {}
    for line in (line for table in tables for line in table.splitlines() if line.strip()):
        operator, _, rest = line.partition(" ")
        if operator in found or not rest.strip():
            raise ValueError(f"table of operators: {'two rows for' if rest.strip() else 'an empty row of'} {operator}")
        found[operator] = rest.strip()
    return found
