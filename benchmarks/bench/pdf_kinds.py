"""PDFs of one picture as scanners, printers and offices make them, written with qpdf (pikepdf)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import pikepdf
from pikepdf import Array, Dictionary, Name, Stream, String

from ocrsvc.adapters.umi_ocr.document_files import write_text_pdf
from ocrsvc.formats.pdf.image_pdf import ImagePdf
from ocrsvc.formats.pdf.page_image import page_image
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.results import Page

Change = Callable[[pikepdf.Pdf], None]

_LIMITS: Final = PixelLimits(1 << 40)
_MARGIN: Final = 40


def scanned(picture: bytes, change: Change = lambda _pdf: None, **how: object) -> bytes:
    """A PDF with a picture as its only page, changed by `change` and saved with the options `how`."""
    plain, whole = io.BytesIO(), io.BytesIO()
    made = ImagePdf(plain)
    made.add_page(page_image(picture, _LIMITS), None)
    made.finish()
    with pikepdf.open(plain) as pdf:
        change(pdf)
        pdf.save(whole, **how)  # type: ignore[arg-type]
    return whole.getvalue()


def born_digital(page: Page) -> bytes:
    """A PDF whose text is drawn in fonts that are not embedded."""
    whole = io.BytesIO()
    write_text_pdf([replace(page, number=1)], 1, 200, whole)
    return whole.getvalue()


def turned(degrees: int) -> Change:
    """The page drawn rotated, with a /Rotate that displays it upright."""

    def change(pdf: pikepdf.Pdf) -> None:
        page = pdf.pages[0].obj
        _, _, wide, high = (float(side) for side in page["/MediaBox"])
        matrix, size = {
            90: ((0, 1, -1, 0, high, 0), (high, wide)),
            180: ((-1, 0, 0, -1, wide, high), (wide, high)),
            270: ((0, -1, 1, 0, 0, wide), (high, wide)),
        }[degrees]
        _surround(pdf, matrix)
        page["/MediaBox"] = Array([0, 0, *size])
        page["/Rotate"] = degrees

    return change


def cropped(pdf: pikepdf.Pdf) -> None:
    """The page cropped from a larger one, with a corner other than 0, 0."""
    page = pdf.pages[0].obj
    _, _, wide, high = (float(side) for side in page["/MediaBox"])
    _surround(pdf, (1, 0, 0, 1, -7, 11))
    page["/MediaBox"] = Array([-7 - _MARGIN, 11 - _MARGIN, wide - 7 + _MARGIN, high + 11 + _MARGIN])
    page["/CropBox"] = Array([-7, 11, wide - 7, high + 11])


def with_form(pdf: pikepdf.Pdf) -> None:
    """Add a form with a text field."""
    field = pdf.make_indirect(_field(Name.Tx, String("filled in")))
    _add_field(pdf, field)


def signed(pdf: pikepdf.Pdf) -> None:
    """Add a signature field with an invalid signature."""
    signature = Dictionary(
        Type=Name.Sig, Filter=Name("/Adobe.PPKLite"), ByteRange=Array([0, 100, 200, 100]), Contents=String("0" * 64)
    )
    _add_field(pdf, pdf.make_indirect(_field(Name.Sig, pdf.make_indirect(signature))))
    pdf.Root["/AcroForm"]["/SigFlags"] = 3


def tagged(pdf: pikepdf.Pdf) -> None:
    """Add a structure tree."""
    content = pdf.pages[0].obj["/Contents"].read_bytes()
    pdf.pages[0].obj["/Contents"] = pdf.make_stream(b"/Figure << /MCID 0 >> BDC\n" + content + b"\nEMC")
    figure = pdf.make_indirect(Dictionary(Type=Name.StructElem, S=Name.Figure, Pg=pdf.pages[0].obj, K=0))
    tree = pdf.make_indirect(Dictionary(Type=Name.StructTreeRoot, K=Array([figure])))
    figure["/P"] = tree
    pdf.Root["/StructTreeRoot"], pdf.Root["/MarkInfo"] = tree, Dictionary(Marked=True)


def archival(pdf: pikepdf.Pdf) -> None:
    """Add the metadata and the output intent of PDF/A-2b."""
    with pdf.open_metadata() as metadata:
        metadata["pdfaid:part"], metadata["pdfaid:conformance"] = "2", "B"
    intent = Dictionary(Type=Name.OutputIntent, S=Name.GTS_PDFA1, OutputConditionIdentifier=String("sRGB"))
    pdf.Root["/OutputIntents"] = Array([intent])


def damaged(file: bytes) -> bytes:
    """The file with a wrong offset of its cross-reference table."""
    at = file.rindex(b"startxref")
    return file[:at] + b"startxref\n7\n%%EOF\n"


KINDS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "scanned": scanned,
    "turned by 90": lambda picture: scanned(picture, turned(90)),
    "turned by 180": lambda picture: scanned(picture, turned(180)),
    "turned by 270": lambda picture: scanned(picture, turned(270)),
    "cropped": lambda picture: scanned(picture, cropped),
    "form": lambda picture: scanned(picture, with_form),
    "signed": lambda picture: scanned(picture, signed),
    "tagged": lambda picture: scanned(picture, tagged),
    "PDF/A": lambda picture: scanned(picture, archival),
    "damaged": lambda picture: damaged(scanned(picture)),
    "restricted": lambda picture: scanned(
        picture, encryption=pikepdf.Encryption(owner="owner", allow=pikepdf.Permissions(extract=False))
    ),
    "object streams": lambda picture: scanned(picture, object_stream_mode=pikepdf.ObjectStreamMode.generate),
}
"""Functions that make a PDF of each kind from a picture file."""


def pictures_of(file: bytes) -> list[bytes]:
    """The compressed data of all pictures."""
    with pikepdf.open(io.BytesIO(file)) as pdf:
        return [
            bytes(found.read_raw_bytes())
            for found in pdf.objects
            if isinstance(found, Stream) and found.get("/Subtype") == Name.Image
        ]


def faults_of(file: bytes) -> list[str]:
    """The errors that `qpdf --check` reports."""
    with pikepdf.open(io.BytesIO(file)) as pdf:
        return [str(fault) for fault in (*pdf.check_pdf_syntax(), *pdf.get_warnings())]


def root_of(file: bytes) -> set[str]:
    """The keys of the catalog."""
    with pikepdf.open(io.BytesIO(file)) as pdf:
        return set(pdf.Root.keys())


def _surround(pdf: pikepdf.Pdf, matrix: tuple[float, ...]) -> None:
    page = pdf.pages[0].obj
    before = b"q " + b" ".join(b"%g" % number for number in matrix) + b" cm\n"
    page["/Contents"] = pdf.make_stream(before + page["/Contents"].read_bytes() + b"\nQ")


def _field(kind: Name, value: pikepdf.Object) -> Dictionary:
    frame = Array([10, 10, 110, 30])
    return Dictionary(Type=Name.Annot, Subtype=Name.Widget, FT=kind, T=String("field"), Rect=frame, V=value)


def _add_field(pdf: pikepdf.Pdf, field: pikepdf.Object) -> None:
    pdf.pages[0].obj["/Annots"] = Array([field])
    pdf.Root["/AcroForm"] = Dictionary(Fields=Array([field]))
