"""A PDF's own text that something is drawn over: images, those in forms too, and rectangles."""

from __future__ import annotations

import pytest
from documents import stream
from text_layer_pages import own_lines, page_pdf, text, with_image

SENTENCE = "The quick brown fox jumps over the lazy dog."
OWN = text(SENTENCE.encode())
IMAGE = b"q 300 0 0 200 0 0 cm /I Do Q\n"


def form(content: bytes, head: bytes, inner: bytes) -> bytes:
    resources = b"/Resources << /XObject << /I 60 0 R %s >> /Font << /F 3 0 R >> >>" % inner
    return stream(content, b"/Type /XObject /Subtype /Form /BBox [0 0 300 200] %s %s" % (head, resources))


def page_with_forms(page: bytes, content: bytes = IMAGE, head: bytes = b"", depth: int = 1) -> bytes:
    """A page that draws the form /X with this content, by so many forms that each draw the next one."""
    gray = with_image(bytes([90, 160]) * 100, 20, 10)
    more = {60: gray["more"][60]}  # type: ignore[index]
    for number in range(depth):
        is_last = number == depth - 1
        inner = b"" if is_last else b"/X %d 0 R" % (81 + number)
        more[80 + number] = form(content if is_last else b"/X Do\n", head if is_last else b"", inner)
    return page_pdf(page, more=more, resources=b"/XObject << /X 80 0 R /I 60 0 R >> /ExtGState << /T << /ca 0.3 >> >>")


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_text_below_an_image_in_a_form_is_not_taken(depth: int) -> None:
    file = page_with_forms(OWN + b"/X Do\n", depth=depth)
    assert own_lines(file) == []


@pytest.mark.parametrize(
    "page",
    [
        b"/X Do\n" + OWN,
        OWN + b"q 1 0 0 1 0 -80 cm /X Do Q\n",
        OWN + b"q 0.5 0 0 0.5 0 0 cm /X Do Q\n",
        OWN + b"q 0 0 300 100 re W n /X Do Q\n",
    ],
)
def test_text_beside_or_above_the_image_of_a_form_is_taken(page: bytes) -> None:
    assert own_lines(page_with_forms(page)) == [SENTENCE]


def test_an_image_is_where_the_matrix_of_its_form_says_and_as_large_as_its_box() -> None:
    moved = page_with_forms(OWN + b"/X Do\n", head=b"/Matrix [1 0 0 1 0 -80]")
    cut = page_with_forms(OWN + b"/X Do\n").replace(b"/BBox [0 0 300 200]", b"/BBox [0 0 300 100]")
    assert (own_lines(moved), own_lines(cut)) == ([SENTENCE], [SENTENCE])


def test_text_in_a_form_is_below_what_the_form_draws_after_it() -> None:
    assert own_lines(page_with_forms(b"/X Do\n", OWN + IMAGE)) == []
    assert own_lines(page_with_forms(b"/X Do\n", IMAGE + OWN)) == [SENTENCE]


@pytest.mark.parametrize("colour", [b"0 g", b"1 g", b"1 0 0 rg"])
def test_words_below_an_opaque_rectangle_are_not_taken(colour: bytes) -> None:
    bar = b"q %s 0 140 128 25 re f Q\n" % colour
    assert own_lines(page_pdf(OWN + bar)) == ["jumps over the lazy dog."]
    assert own_lines(page_with_forms(OWN + b"/X Do\n", bar)) == ["jumps over the lazy dog."]
    assert own_lines(page_pdf(b"q 0.9 g 0 140 128 25 re f Q\n" + OWN)) == [SENTENCE]


def test_text_below_what_is_transparent_or_no_rectangle_is_taken() -> None:
    veil = b"q /T gs 0 140 128 25 re f Q\n"
    triangle = b"0.8 g 0 100 m 128 100 l 128 152 l h f\n"
    assert own_lines(page_with_forms(OWN + veil)) == [SENTENCE]
    assert own_lines(page_with_forms(OWN + b"q /T gs 300 0 0 200 0 0 cm /I Do Q\n")) == [SENTENCE]
    assert own_lines(page_pdf(OWN + triangle)) == [SENTENCE]
