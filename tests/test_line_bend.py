"""How much the lines of a page bend, from masks of text whose bend is known."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from curved_pages import HEIGHT, MARGIN, WIDTH, bent, flat_page

from ocrsvc.engines.ppocr.pipeline.line_field import LastMask, LineField, find_pieces, fit_field
from ocrsvc.records import Pixels

SAG_PX = 60.0
# A line y = sag (1 - (2x/w - 1)²) turns from 4 sag/w to -4 sag/w over the page, and by less over the text alone.
TURN_DEG = np.degrees(2 * np.arctan(4 * SAG_PX / WIDTH)) * (WIDTH - 2 * MARGIN) / WIDTH


def field_of(mask: Pixels) -> LineField:
    field = fit_field(find_pieces(mask))
    assert field is not None
    return field


def page_of_bars(length_px: int) -> Pixels:
    """A mask with 26 rows of bars of that length."""
    mask: Pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    for top in range(60, HEIGHT - 60, 40):
        for left in range(MARGIN, WIDTH - MARGIN - length_px + 1, length_px + 40):
            mask[top : top + 12, left : left + length_px] = 1
    return mask


def bend_mask(mask: Pixels, sag_px: float) -> Pixels:
    picture = bent(255 * mask, sag_px, background=0)[0]
    return np.asarray(picture > 60, np.uint8)


@pytest.mark.parametrize("length_px", [60, 200, WIDTH - 2 * MARGIN])
def test_bent_lines_turn_as_they_were_bent_whether_they_are_short_or_long(length_px: int) -> None:
    bend = field_of(bend_mask(page_of_bars(length_px), SAG_PX))
    assert bend.turn_deg == pytest.approx(TURN_DEG, rel=0.1)
    assert bend.pieces >= 100


@pytest.mark.parametrize("length_px", [60, 200, WIDTH - 2 * MARGIN])
@pytest.mark.parametrize("turned", [0, 7, 90])
def test_straight_lines_do_not_turn_however_the_page_lies(length_px: int, turned: float) -> None:
    matrix = cv2.getRotationMatrix2D((WIDTH / 2, HEIGHT / 2), turned, 0.8)
    mask = np.asarray(cv2.warpAffine(page_of_bars(length_px), matrix, (WIDTH, HEIGHT)), np.uint8)
    assert field_of(mask).turn_deg < 0.7


def test_lines_that_converge_do_not_turn() -> None:
    corners = np.array([[0, 0], [WIDTH, 0], [WIDTH, HEIGHT], [0, HEIGHT]], np.float32)
    seen = np.array([[60, 150], [WIDTH, 0], [WIDTH, HEIGHT], [60, HEIGHT - 200]], np.float32)
    matrix = cv2.getPerspectiveTransform(corners, seen)
    for length_px in (60, WIDTH - 2 * MARGIN):
        mask = np.asarray(cv2.warpPerspective(page_of_bars(length_px), matrix, (WIDTH, HEIGHT)), np.uint8)
        assert field_of(mask).turn_deg < 1.0


def test_the_same_page_upright_and_lying_bends_the_same() -> None:
    mask = bend_mask(page_of_bars(100), SAG_PX)
    lying = np.ascontiguousarray(mask.T)
    assert field_of(lying).turn_deg == pytest.approx(field_of(mask).turn_deg, rel=0.05)


@pytest.mark.parametrize("lit", [0, 1, 6])
def test_a_page_with_hardly_any_text_bends_nothing(lit: int) -> None:
    mask: Pixels = np.zeros((96, 128), np.uint8)
    mask[5, 5 : 5 + lit] = 1
    assert fit_field(find_pieces(mask)) is None


def test_a_page_that_is_all_text_is_measured() -> None:
    assert fit_field(find_pieces(np.ones((512, 512), np.uint8))) is None


def test_drawn_text_is_flat_until_it_is_bent() -> None:
    page = flat_page()[0]

    def blocks(picture: Pixels) -> Pixels:
        dark = np.asarray(cv2.adaptiveThreshold(picture, 1, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, 31, 25))
        return np.asarray(cv2.dilate(dark, np.ones((1, 13), np.uint8)), np.uint8)

    assert field_of(blocks(page)).turn_deg < 1.5
    assert field_of(blocks(bent(page, SAG_PX, background=245)[0])).turn_deg > 10


def test_rows_of_a_bent_page_are_straight_and_parallel_when_they_are_straightened() -> None:
    field = field_of(bend_mask(page_of_bars(100), SAG_PX))
    grid = bent(np.zeros((HEIGHT, WIDTH), np.uint8), SAG_PX)[1]
    x, y = np.meshgrid(np.arange(MARGIN, WIDTH - MARGIN, 50), np.arange(100, HEIGHT - 100, 80))
    curved = grid.locate(np.stack([x, y], axis=-1).astype(np.float32))
    straight = field.straighten(curved)
    # The page may keep a slant, which is the same everywhere.
    slant = np.polynomial.Polynomial.fit(straight[0, :, 0], straight[0, :, 1], 1).convert().coef[1]
    levelled = straight[..., 1] - slant * straight[..., 0]
    assert np.ptp(curved[..., 1], axis=1).min() > 40
    assert np.ptp(levelled, axis=1).max() < 3
    assert np.allclose(straight[..., 0], curved[..., 0], atol=6)


def test_a_mask_is_forgotten_once_its_pieces_are_known_and_they_are_in_pixels_of_the_page() -> None:
    mask = page_of_bars(100)
    last = LastMask()
    last.keep(mask)
    pieces, here = last.pieces(2 * WIDTH, 2 * HEIGHT), find_pieces(mask)
    assert np.allclose(pieces.x, 2 * here.x)
    assert np.allclose(pieces.length, 2 * here.length)
    assert len(last.pieces(WIDTH, HEIGHT).x) == 0
