"""Which column of a table holds the images: bytes, the struct that Hugging Face's data sets have, or paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.errors import BrokenArchive

_IMAGES: Final = ("image", "img", "bytes", "content")
_PATHS: Final = ("path", "image_path", "file_name", "file", "image")
_MOST_NAMES: Final = 20


@dataclass(frozen=True, slots=True)
class ImageColumn:
    """A column.

    Attributes:
        name: Of the column.
        field: Of a struct: its field with the bytes, or with the path; "" of other columns.
        has_paths: Whether it holds paths instead of bytes.
    """

    name: str
    field: str = ""
    has_paths: bool = False

    @property
    def path(self) -> str:
        """Column and field with a dot between."""
        return f"{self.name}.{self.field}" if self.field else self.name

    def values_of(self, column: Any) -> Any:
        """The array of bytes or paths in an array of this column."""
        return column.field(self.field) if self.field else column

    def to_text(self) -> str:
        """As `of` reads it."""
        return f"{self.field}.{self.name}"

    @classmethod
    def of(cls, text: str) -> ImageColumn:
        """A column of bytes that `to_text` wrote."""
        field, _, name = text.partition(".")
        return cls(name, field)


def find_image_column(schema: Any, wanted: str | None) -> ImageColumn:
    """The column of a pyarrow schema that holds images.

    Args:
        schema: The table's.
        wanted: Its name; None takes one that holds bytes, or a string that is called as paths are.

    Raises:
        BrokenArchive: There is none.
    """
    names = [wanted] if wanted is not None else _by_likelihood(schema.names)
    for may_be_paths in (False, True):
        for name in names:
            if schema.get_field_index(name) >= 0:
                column = _column_of(name, schema.field(name).type, may_be_paths=may_be_paths)
                if column and (wanted is not None or not column.has_paths or name in _PATHS):
                    return column
    columns = ", ".join(f"{field.name} ({field.type})"[:80] for field in list(schema)[:_MOST_NAMES])
    what = "column with images" if wanted is None else f"column {wanted} with images"
    raise BrokenArchive(f"It has no {what}; its columns are {columns}.", "Name one with --column.")


def _by_likelihood(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: _IMAGES.index(name) if name in _IMAGES else len(_IMAGES))


def _column_of(name: str, kind: Any, *, may_be_paths: bool) -> ImageColumn | None:
    from pyarrow import types

    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        if "bytes" in fields and _is_binary(fields["bytes"]) and not may_be_paths:
            return ImageColumn(name, "bytes")
        if "path" in fields and _is_text(fields["path"]) and may_be_paths:
            return ImageColumn(name, "path", has_paths=True)
    elif _is_binary(kind) and not may_be_paths:
        return ImageColumn(name)
    elif _is_text(kind) and may_be_paths:
        return ImageColumn(name, has_paths=True)
    return None


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
