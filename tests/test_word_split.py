"""Where the words of a line begin, by script."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from ocrsvc.imaging.word_split import open_jieba, word_begins


def words(text: str) -> list[str]:
    ends = [*word_begins(text), len(text)]
    return [text[begin:end].rstrip() for begin, end in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The harbour, (red) one.", "The|harbour,|(red)|one."),
        ("  two  spaces ", "two|spaces"),
        ("$14.50 -3.5% 41.5cm 25℃ 12㎡ 1,000", "$14.50|-3.5%|41.5cm|25℃|12㎡|1,000"),
        ("port@example.org https://a.b/c?d=1", "port@example.org|https://a.b/c?d=1"),
        ("共480页，高41.5cm", "共|480|页|，|高|41.5cm"),
        ("￥329.04元", "￥329.04|元"),
        ("使用Python3.11或更新", "使|用|Python3.11|或|更|新"),
        ("《船》（一）：「二」", "《|船|》|（|一|）|：|「|二|」"),
        ("２５ＡＢ号", "２５ＡＢ|号"),
        ("カメラとphoto", "カ|メ|ラ|と|photo"),
        ("항구 사무소", "항구|사무소"),
        ("𠮷野", "𠮷|野"),
        ("порт Ελλάδα", "порт|Ελλάδα"),
        ("“中文” — x", "“|中|文|”|—|x"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_words_are_parted_by_spaces_and_chinese_by_character(text: str, expected: str) -> None:
    assert "|".join(words(text)) == expected


def test_a_segmenter_is_given_runs_of_chinese_and_nothing_else() -> None:
    seen: list[str] = []

    def in_pairs(text: str) -> Iterator[str]:
        seen.append(text)
        return (text[begin : begin + 2] for begin in range(0, len(text), 2))

    assert word_begins("港务所 keeps 记录，3艘", in_pairs) == [0, 2, 4, 10, 12, 13, 14]
    assert seen == ["港务所", "记录", "艘"]


def test_jieba_finds_the_words_of_its_dictionary() -> None:
    pytest.importorskip("jieba")
    assert list(open_jieba()("图书馆今天关门")) == ["图书馆", "今天", "关门"]
