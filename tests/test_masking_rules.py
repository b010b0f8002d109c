"""Masking rules: what they find, precision and recall, and linear time."""

import re
import time

import pytest
from masking_table import Row, rows, trim_spans
from support import data_of

from ocrsvc.errors import SettingsError
from ocrsvc.masking.cards_mails_phones import is_card
from ocrsvc.masking.identity_numbers import check_digit, is_credit_code, is_iban, is_resident_id, is_second_line
from ocrsvc.masking.rules import find_spans, make_rules, masked_text
from ocrsvc.results import MaskKind
from ocrsvc.settings.load import read_settings

BUILT_IN: tuple[MaskKind, ...] = ("id", "phone", "card", "mail")
ALL = make_rules(BUILT_IN)
TABLE = rows()
# Minimum precision and recall: 0.98 for kinds with check digits, the measured values for the others.
LEAST = {"id": (0.98, 0.98), "card": (0.98, 0.98), "phone": (0.95, 0.90), "mail": (0.98, 0.93)}


def exact_spans(row: Row) -> list[tuple[tuple[int, int], MaskKind]]:
    """Return the spans that the rules find in a sentence, trimmed of spaces."""
    found = find_spans(row.text, ALL)
    kinds = [span.kind for span in found]
    return list(zip(trim_spans(((span.begin, span.end) for span in found), row.text), kinds, strict=True))


@pytest.mark.parametrize("kind", BUILT_IN)
def test_each_kind_is_found_exactly_in_the_sentences(kind: MaskKind) -> None:
    found = right = expected = 0
    for row in TABLE:
        spans = exact_spans(row)
        found += sum(of == kind for _, of in spans)
        wanted = set(row.spans) if row.kind == kind else set()
        right += sum(of == kind and span in wanted for span, of in spans)
        expected += len(wanted)
    assert right >= LEAST[kind][0] * found, f"{kind}: precision {right / found:.3f}"
    assert right >= LEAST[kind][1] * expected, f"{kind}: recall {right / expected:.3f}"


@pytest.mark.parametrize("row", [row for row in TABLE if row.kind in {"id", "card"}], ids=lambda row: row.text[:30])
def test_numbers_with_check_digits_are_found_in_place(row: Row) -> None:
    assert [span for span, _ in exact_spans(row)] == list(row.spans)


def test_published_numbers_are_valid() -> None:
    # Examples of GB 11643 and SWIFT, the codes of Alibaba and Tencent, and the usual test cards of ISO 7812.
    assert is_resident_id("11010519491231002X")
    assert is_resident_id("440524188001010014") is False, "born in 1880, which is implausible"
    assert is_credit_code("91330100799655058B")
    assert is_credit_code("9144030071526726XG")
    assert all(map(is_iban, ("GB82WEST12345698765432", "DE89370400440532013000", "NO9386011117947")))
    assert all(map(is_card, ("4111111111111111", "5555555555554444", "378282246310005", "6011111111111117")))
    # ICAO 9303, part 4, appendix A.
    assert is_second_line("L898902C36UTO7408122F1204159ZE184226B<<<<<10")
    assert check_digit("520727") == "3"
    # In each standard only one last character is valid.
    for is_valid, number in (
        (is_resident_id, "11010519491231002X"),
        (is_credit_code, "91330100799655058B"),
        (is_iban, "DE89370400440532013000"),
        (is_card, "4111111111111111"),
    ):
        assert not any(is_valid(number[:-1] + last) for last in "0123456789" if last != number[-1])


@pytest.mark.parametrize("marked", data_of("masking_rules")["marked"])
def test_exactly_the_marked_text_is_masked(marked: str) -> None:
    masked = re.sub("«(.*?)»", lambda part: re.sub(r"\S", "*", part[1]), marked)
    assert masked_text(marked.replace("«", "").replace("»", ""), ALL) == masked


@pytest.mark.parametrize("kind", BUILT_IN)
def test_only_requested_kinds_are_masked(kind: MaskKind) -> None:
    texts = {"id": "11010519491231002X", "phone": "13800138000", "card": "4111111111111111", "mail": "a.b@example.org"}
    text = " / ".join(texts.values())
    masked = masked_text(text, make_rules([kind]))
    assert masked == text.replace(texts[kind], "*" * len(texts[kind]))


@pytest.mark.parametrize(
    "unit",
    data_of("masking_rules")["repeated"]
)  # fmt: skip
def test_every_rule_takes_linear_time(unit: str) -> None:
    # Measure again if it is slow: the machine may be busy, but a nonlinear rule is always slow.
    for _ in range(5):
        half, whole = (best_s(unit, letters) for letters in (8_000, 16_000))
        if whole < min(1.0, 3.5 * half + 0.02):
            break
    assert whole < 3.5 * half + 0.02
    assert whole < 1.0


def best_s(unit: str, letters: int) -> float:
    text, times = (unit * letters)[:letters], []
    for _ in range(2):
        began_s = time.process_time()
        find_spans(text, ALL)
        times.append(time.process_time() - began_s)
    return min(times)


def test_custom_patterns_match_the_original_and_the_half_width_text() -> None:
    pytest.importorskip("re2", reason="the extra mask is not installed")
    rules = make_rules(["own"], ["EMP-[0-9]{6}", "病历号：\\w+"])
    masked = masked_text("EMP-123456 ＥＭＰ－６５４３２１ 病历号：A12 EMP-1", rules)
    assert masked == "********** ********** ******* EMP-1"
    assert {span.kind for span in find_spans("EMP-123456", rules)} == {"own"}


def test_a_backtracking_pattern_takes_linear_time() -> None:
    pytest.importorskip("re2", reason="the extra mask is not installed")
    rules = make_rules(["own"], ["(a+)+$", "(.*a){12}b", "(x|x)*y"])
    began_s = time.process_time()
    find_spans("a" * 30_000 + "!" + "x" * 30_000, rules)
    assert time.process_time() - began_s < 2.0


@pytest.mark.parametrize("patterns", ["(", "a*", "(?=a)b", "(a)\\1", "x\n(", "y" * 1001, "\n".join(["z"] * 101)])
def test_an_invalid_or_empty_pattern_stops_the_start(patterns: str) -> None:
    pytest.importorskip("re2", reason="the extra mask is not installed")
    with pytest.raises(
        SettingsError, match=r"OCRSVC_MASK_PATTERNS is .*: accepted is with the extra .*, up to 100 RE2"
    ):
        read_settings({"OCRSVC_MASK_PATTERNS": patterns})


def test_patterns_without_re2_stop_the_start_and_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.settings.workers_and_limits.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match="accepted is with the extra mask,"):
        read_settings({"OCRSVC_MASK_PATTERNS": "EMP"})
    assert read_settings({}).mask_patterns == ()
