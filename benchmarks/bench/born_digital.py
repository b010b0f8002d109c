"""Twenty born-digital PDFs: printed by a browser, made by Ghostscript, written by hand, or from Debian packages."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.sentences import SENTENCES

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_S: Final = 120

_ENGLISH: Final = (
    "The committee met on the first Tuesday of the month and heard the report of its chair. ",
    "Most of the difficult questions were left to the office, which has until the spring to answer them. ",
    "Nobody objected to the budget, although two members asked how the figures of last year compare. ",
    "A final version of the document will be published before the summer, with an index and a glossary. ",
    "Efficient offices file their affidavits first; the flow of official paper suffices to fill five shelves. ",
)
_CHINESE: Final = (
    "本报告说明了过去一年中各部门的主要工作以及下一年度的计划，并列出了预算执行情况。",
    "会议认为，应当进一步提高服务质量，减少等候时间，方便人民群众办理各项业务。",
    "所有数据均来自公开的统计资料，如有错误，请与编辑部联系，我们将在下一期更正。",
)
_JAPANESE: Final = (
    "この報告書は、昨年度の主な活動と来年度の計画についてまとめたものである。",
    "会議では、窓口の待ち時間を短くし、手続きを簡単にする方法が話し合われた。",
)


@dataclass(frozen=True, slots=True)
class BornDigital:
    """A PDF with its name and the program that made it."""

    name: str
    maker: str
    file: bytes


def born_digital(folder: Path) -> tuple[list[BornDigital], list[str]]:
    """The PDFs, made in this folder, and the names of missing programs and files."""
    made, missing = list[BornDigital](), list[str]()
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        missing.append("a browser (Debian: chromium)")
    else:
        made += [BornDigital(name, "browser", _print(browser, name, html, folder)) for name, html in _pages()]
    if shutil.which("gs"):
        made += _by_ghostscript(folder)
    else:
        missing.append("Ghostscript (Debian: ghostscript)")
    made += [BornDigital("standard fonts", "by hand", _by_hand())]
    for name, path in _FOUND.items():
        if path.is_file():
            data = path.read_bytes()
            made.append(BornDigital(name, "found", gzip.decompress(data) if path.suffix == ".gz" else data))
        else:
            missing.append(str(path))
    return made, missing


_FOUND: Final = {
    "TeX manual": Path("/usr/share/doc/libtasn1-doc/libtasn1.pdf"),
    "DocBook specification": Path("/usr/share/doc/shared-mime-info/shared-mime-info-spec.pdf"),
}


def _print(browser: str, name: str, html: str, folder: Path) -> bytes:
    source, target = folder / f"{name}.html", folder / f"{name}.pdf"
    source.write_text(f"<!doctype html><meta charset=utf-8>{html}", "utf-8")
    command = [browser, "--headless", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={target}"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")
    profile = f"--user-data-dir={folder / 'profile'}"
    subprocess.run([*command, profile, source.as_uri()], check=True, capture_output=True, timeout=_LIMIT_S)
    return target.read_bytes()


def _paragraphs(count: int, sentences: Sequence[str] = _ENGLISH) -> str:
    return "".join("<p>" + "".join(sentences[(at + step) % len(sentences)] for step in range(5)) for at in range(count))


def _table(rows: int, columns: int) -> str:
    cells = "".join(
        "<tr>"
        + "".join(
            f"<td>{_ENGLISH[(row + column) % 5].split()[column % 6]} {row * 37 + column * 11},{row:02d}"
            for column in range(columns)
        )
        for row in range(rows)
    )
    return f"<table border=1 cellpadding=4 style='border-collapse:collapse'>{cells}</table>"


def _pages() -> Iterator[tuple[str, str]]:
    """Name and HTML of each page that the browser prints."""
    yield "article", f"<h1>Annual report</h1>{_paragraphs(20)}"
    yield "two columns", f"<h1>Proceedings</h1><div style='columns:2;text-align:justify'>{_paragraphs(30)}</div>"
    yield (
        "newspaper",
        f"<div style='columns:4;font:9px serif;text-align:justify;hyphens:auto' lang=en>{_paragraphs(60)}</div>",
    )
    yield "tables", f"<h2>Figures</h2>{_table(40, 6)}<p>All in thousands.{_table(30, 4)}"
    yield (
        "invoice",
        (
            "<div style='float:right;text-align:right'>Example Ltd<br>1 Main Street<br>Springfield</div>"
            "<h1>Invoice 2026-118</h1>"
            f"<p>To: Office of Records{_table(12, 5)}<p style='text-align:right'><b>Total 1.284,50</b>"
        ),
    )
    yield (
        "code",
        "<pre style='font:11px monospace'>"
        + "\n".join(
            f"{'    ' * (row % 4)}for item{row} in range({row}): total_{row} += weight[item{row}] * 0x{row * 97:04x}"
            for row in range(120)
        ),
    )
    yield (
        "slides",
        "<style>@page{size:landscape;margin:0}</style>"
        + "".join(
            "<section style='background:#203864;color:#fff;height:200mm;padding:20mm;page-break-after:always;"
            f"font:28px sans-serif;-webkit-print-color-adjust:exact'><h1>Part {number}</h1><ul><li>{_ENGLISH[0]}"
            f"<li>{_ENGLISH[number % 5]}</ul></section>"
            for number in range(6)
        ),
    )
    yield "Chinese", f"<h1>年度报告</h1><div style='font-family:Noto Serif CJK SC'>{_paragraphs(16, _CHINESE)}</div>"
    yield (
        "Japanese, vertical",
        (
            "<div style='writing-mode:vertical-rl;height:230mm;font:18px Noto Serif CJK JP'>"
            f"{_paragraphs(5, _JAPANESE)}</div>"
        ),
    )
    yield "Arabic", f"<div dir=rtl style='font-size:18px'>{_paragraphs(8, SENTENCES['ar'])}</div>"
    yield "Hebrew", f"<div dir=rtl style='font-size:18px'>{_paragraphs(8, SENTENCES['he'])}</div>"
    yield "Russian and Greek", f"<div>{_paragraphs(12, (*SENTENCES['ru'], *SENTENCES['el']))}</div>"
    yield (
        "chart",
        (
            "<h2>Visitors</h2><svg width=600 height=320 font-size=12>"
            + "".join(
                f"<rect x={60 + 50 * at} y={300 - 23 * at % 260} width=34 height={23 * at % 260} fill=#47a />"
                for at in range(10)
            )
            + "".join(f"<text x={62 + 50 * at} y=316>20{16 + at}</text>" for at in range(10))
            + "".join(
                f"<text x=10 y={304 - 50 * at}>{at * 500}</text>"
                f"<line x1=55 x2=590 y1={300 - 50 * at} y2={300 - 50 * at} stroke=#ccc />"
                for at in range(6)
            )
            + f"</svg>{_paragraphs(4)}"
        ),
    )
    yield (
        "form",
        "".join(
            f"<p><label>{word} <input value='{value}' style='width:60mm'></label>"
            for word, value in zip(
                ["Name", "Street", "City", "Country", "Telephone", "Remarks"], _ENGLISH[0].split(), strict=False
            )
        ),
    )
    yield (
        "turned text",
        (
            "<div style='transform:rotate(90deg);transform-origin:0 0;margin-left:150mm;width:220mm'>"
            f"{_paragraphs(3)}</div>"
        ),
    )


def _by_ghostscript(folder: Path) -> Iterator[BornDigital]:
    """A report in three fonts, once with standard settings and once with all fonts embedded as subsets."""
    pages = []
    for number in range(1, 13):
        lines = "".join(f"72 {700 - 14 * row} moveto ({_ENGLISH[row % 5][:85]}) show\n" for row in range(40))
        pages.append(
            f"/Helvetica-Bold findfont 18 scalefont setfont 72 730 moveto (Part {number}) show\n"
            f"/Times-Roman findfont 11 scalefont setfont\n{lines}"
            f"/Courier findfont 9 scalefont setfont 290 40 moveto (- {number} -) show showpage\n"
        )
    source = ("%!PS\n" + "".join(pages)).encode()
    for name, more in (("report", []), ("report, embedded", ["-dPDFSETTINGS=/prepress"])):
        target = folder / f"{name}.pdf"
        command = ["gs", "-q", "-dNOPAUSE", "-dBATCH", "-dSAFER", "-sDEVICE=pdfwrite", f"-sOutputFile={target}"]
        subprocess.run([*command, *more, "-"], input=source, capture_output=True, check=True, timeout=_LIMIT_S)
        yield BornDigital(name, "gs", target.read_bytes())


def _by_hand() -> bytes:
    """Eight pages in Helvetica without an embedded font, each rotated by a further quarter turn."""
    pages = 8
    kids = b" ".join(b"%d 0 R" % (10 + 2 * number) for number in range(pages))
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, pages),
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    }
    for number in range(pages):
        lines = b"".join(b"0 -16 Td (%s) Tj\n" % _ENGLISH[row % 5][:80].encode() for row in range(40))
        content = b"BT /F 11 Tf 60 780 Td\n%s ET" % lines
        objects[10 + 2 * number] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Rotate %d /Contents %d 0 R "
            b"/Resources << /Font << /F 3 0 R >> >> >>"
        ) % (90 * number % 360, 11 + 2 * number)
        objects[11 + 2 * number] = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)
    body, places = b"%PDF-1.7\n", dict[int, int]()
    for number, value in sorted(objects.items()):
        places[number] = len(body)
        body += b"%d 0 obj\n%s\nendobj\n" % (number, value)
    count = max(objects) + 1
    rows = b"".join(
        b"%010d %05d %s \n" % ((places[at], 0, b"n") if at in places else (0, 65535, b"f")) for at in range(count)
    )
    end = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (count, len(body))
    return body + b"xref\n0 %d\n" % count + rows + end
