"""What a request carries: its fields, its files, and the images in them.

Knows no endpoint: each adapter names the fields that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.errors import BadBase64, BodyTooLarge, CallerError, NothingSent, OcrsvcError
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text, parse_flag
from ocrsvc.imaging.codecs.decode import FORMATS
from ocrsvc.imaging.document import is_pdf
from ocrsvc.serving.memory_budget import Share, unlimited

MAX_IMAGES: Final = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form.

    Attributes:
        name: Name of the field.
        filename: The client's name of the file, used to name answers only; None for a field that is no file.
        data: The content, as sent.
    """

    name: str
    filename: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """What one request carries.

    Attributes:
        raw: The body, when it is the image itself.
        files: Parts of a form that have a file name.
        fields: Names and values from the query string, then from the body: str, bytes, or what JSON knows.
        share: The request's account of memory.
    """

    raw: bytes | None = None
    files: tuple[Part, ...] = ()
    fields: tuple[tuple[str, object], ...] = ()
    share: Share = field(default_factory=unlimited, compare=False)

    @property
    def members(self) -> dict[str, object]:
        """The last value under each name."""
        return dict(self.fields)

    def text(self, name: str) -> str | None:
        """The last value sent under a name, as stripped text; None if there is none."""
        values = [value for key, value in self.fields if key == name]
        return as_text(values[-1]).strip() if values else None

    def flag(self, name: str) -> bool | None:
        """The truth value in a field; None for one that is missing or empty. Raises ValueError."""
        text = self.text(name)
        return parse_flag(text) if text else None

    def any_file(self) -> bytes | None:
        """The first file of a form, whatever its field is called; else a body that is an image."""
        raw = self.raw if self.raw is not None and is_image(self.raw) else None
        return next((part.data for part in self.files if part.data), raw)

    def first_image(self, file_fields: Collection[str], text_fields: Collection[str]) -> bytes:
        """The one image that counts where only one is read; see `images`. Raises its error."""
        image = self.images(file_fields, text_fields)[0]
        if isinstance(image, OcrsvcError):
            raise image
        return image

    def images(self, file_fields: Collection[str], text_fields: Collection[str]) -> list[bytes | OcrsvcError]:
        """The images in order, files before text; in place of base64 that cannot be decoded, its error.

        Args:
            file_fields: Names under which files are read.
            text_fields: Names under which base64 text is read; bytes that are an image are taken as they are.

        Raises:
            NothingSent: There is no image.
            CallerError: A field holds something other than text.
            BodyTooLarge: There are more than MAX_IMAGES, or they need more memory than there may ever be.
            QueueFull: Other requests hold the memory that they need.
        """
        images: list[bytes | OcrsvcError] = [] if self.raw is None else [self.raw]
        images += [part.data for part in self.files if part.name in file_fields and part.data]
        texts = [text for name, value in self.fields if name in text_fields for text in _texts(name, value)]
        if len(texts) > MAX_IMAGES:
            raise BodyTooLarge(f"The request holds more than {MAX_IMAGES} images.", "Send several requests.")
        images += [_image_of(text, self.share) for text in texts]
        if not images:
            raise self._nothing_sent(file_fields)
        return images

    def file_names(self, file_fields: Collection[str]) -> list[str]:
        """The names that the client gave the first of `images`: "" for a body that is one; none for those of text."""
        files = [part.filename or "" for part in self.files if part.name in file_fields and part.data]
        return [*([] if self.raw is None else [""]), *files]

    def _nothing_sent(self, file_fields: Collection[str]) -> NothingSent:
        names = {part.name for part in self.files} | {name for name, _ in self.fields}
        seen = ", ".join(repr(name[:40]) for name in sorted(names)[:10]) or "none"
        return NothingSent(
            f"The request carries no image; fields that it has: {seen}.",
            f"Send a multipart file in the field {' or '.join(map(repr, file_fields))}, base64 text, "
            "or the image as body.",
        )


def is_image(data: bytes | memoryview) -> bool:
    """Whether the first bytes belong to a format that is read, of an image or a document."""
    return any(pattern.match(data) for pattern, _ in FORMATS) or is_pdf(data)


def _texts(name: str, value: object) -> list[str | bytes]:
    """The non-blank texts in a field: one, or a list of them."""
    values: Sequence[object] = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | bytes | None) for item in values):
        raise CallerError(
            f"The field {name!r} holds something other than text.", "Send base64 text, or a list of base64 texts."
        )
    return [item for item in values if isinstance(item, str | bytes) and not _is_blank(item)]


def _is_blank(text: str | bytes) -> bool:
    return len(text) < 64 and not text.strip()


def _image_of(text: str | bytes, share: Share) -> bytes | OcrsvcError:
    if isinstance(text, bytes) and is_image(text):
        return text
    try:
        return decode_base64(text, share)
    except (BadBase64, NothingSent) as error:
        return error.without_frames()
