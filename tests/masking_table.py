"""Real-looking sentences in Chinese and English, with numbers that are to be masked, and with those that are not.

In a sentence, `{name}` is a number of `NUMBERS`, made with check digits of its own; what is written out is as it is.
What is to be masked stands in « ». A row says its group, which a report has a line for, and the kind of its numbers; a
group that begins with "not" has none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mask_numbers import card, credit_code, full_width, iban, in_groups, resident_id, with_wrong_check

_CHANCE: Final = random.Random(13)

PERSONS: Final = {
    "p1": resident_id("110105", "19491231", "002"),
    "p2": resident_id("440308", "19870604", "151"),
    "p3": resident_id("310115", "20010228", "778"),
    "p4": resident_id("510104", "19560115", "226"),
    "p5": resident_id("650103", "19991130", "004"),
    "p6": resident_id("370202", "19760704", "613"),
    "p7": resident_id("330106", "20150808", "033"),
    "p8": resident_id("442000", "19680929", "490"),
    "old1": "110105491231002",
    "old2": "440301870604151",
    "old3": "320102560115226",
}
COMPANIES: Final = {
    "c1": credit_code("91330100", "79965505"),
    "c2": credit_code("91440300", "71526726"),
    "c3": credit_code("92310115", "MA1K4X2E"),
    "c4": credit_code("12110000", "40000920"),
    "c5": credit_code("51500000", "MJP5807A"),
    "c6": credit_code("91110108", "MA00E7WX"),
}
ACCOUNTS: Final = {
    "i1": iban("GB", "WEST12345698765432"),
    "i2": iban("DE", "370400440532013000"),
    "i3": iban("FR", "20041010050500013M02606"),
    "i4": iban("NL", "ABNA0417164300"),
    "i5": iban("CH", "00762011623852957"),
    "i6": iban("ES", "21000418450200051332"),
    "i7": iban("NO", "86011117947"),
    "i8": iban("MT", "MALT011000012345MTLCAST001S"),
}
CARDS: Final = {
    "v1": card("4", 16, _CHANCE),
    "v2": card("4539", 16, _CHANCE),
    "v3": card("4716", 19, _CHANCE),
    "m1": card("51", 16, _CHANCE),
    "m2": card("5545", 16, _CHANCE),
    "m3": card("2221", 16, _CHANCE),
    "a1": card("37", 15, _CHANCE),
    "a2": card("34", 15, _CHANCE),
    "u1": card("622202", 19, _CHANCE),
    "u2": card("621700", 19, _CHANCE),
    "u3": card("625965", 16, _CHANCE),
    "u4": card("955880", 19, _CHANCE),
    "d1": card("6011", 16, _CHANCE),
    "d2": card("36", 14, _CHANCE),
    "j1": card("3530", 16, _CHANCE),
}
NUMBERS: Final = PERSONS | COMPANIES | ACCOUNTS | CARDS


@dataclass(frozen=True, slots=True)
class Row:
    """A sentence; `begin` and `end` of each number in it that is to be masked."""

    group: str
    kind: str
    text: str
    spans: tuple[tuple[int, int], ...]


def rows() -> list[Row]:
    """Every row of the table."""
    table = []
    for group, kind, sentences in _GROUPS:
        for sentence in sentences.strip().splitlines():
            text, spans = _filled(sentence.replace("\\n", "\n"))
            table.append(Row(group, kind, text, spans))
    return table


def _filled(sentence: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A sentence with its numbers, and where those stand that are in « »."""
    pieces, spans, length, begin = [], [], 0, 0
    for piece in re.split(r"([«»])", re.sub(r"\{([^}]*)\}", lambda match: _number(match[1]), sentence)):
        if piece == "«":
            begin = length
        elif piece == "»":
            spans.append((begin, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), tuple(spans)


def _number(named: str) -> str:
    """`p1`, or `p1:spread`: the number in one of its forms."""
    name, _, form = named.partition(":")
    number = NUMBERS[name]
    groups = re.fullmatch(r"(-?)((?:\d+,?)+)", form)
    if groups:
        return in_groups(number, *map(int, groups[2].split(",")), mark=groups[1] or " ")
    return _FORMS[form](number)


_FORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "": str,
    "wide": full_width,
    "spread": " ".join,
    "low": str.lower,
    "O": lambda number: number.replace("0", "O", 2),
    "l": lambda number: number.replace("1", "l", 1).replace("0", "o", 1),
    "cut": lambda number: f"{number[: len(number) // 2]}\n{number[len(number) // 2 :]}",
    "wrong": with_wrong_check,
}


def seen(found: Iterable[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Spans without the spaces at their ends."""
    trimmed = []
    for begin, end in found:
        part = text[begin:end]
        trimmed.append((begin + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())))
    return trimmed


_GROUPS: Final = (
    (
        "resident id, 18 signs",
        "id",
        """
姓名：张伟 性别：男 公民身份号码 «{p1}»
身份证号：«{p2}»，联系地址见附件。
ID No. «{p3}» (PRC)
乙方（身份证«{p4}»）自愿承租上述房屋
持证人身份证件号码«{p5}»有效期至2030.01.01
申请人:李娜,身份证号«{p7}»,本人签字
居民身份证 «{p8:6,8}»
证件号码：«{p1:6,8,4}»
证件 «{p2:-6,8,4}» 已核验
号码«{p3:wide}»
身份证：«{p4:spread}»
身份证号码 «{p5:O}» 的持有人
Citizen ID «{p7:l}», issued in Hangzhou
公民身份号码\\n«{p8}»
公民身份号码 «{p1:low}»
被保险人证件号«{p2:6,4,4,4}»
NO«{p4}»
证件号:«{p5}»/«{p7}»
甲方代表 王芳 «{p8}» 乙方代表 赵军 «{p2}»
身份证号码为«{p4:10}»的公民
公民身份号码«{p1:cut}»
证件号码 «{p2:cut}»
兹证明«{p3}»同志系我单位职工
The bearer's identity number is «{p5}».
出生日期1956年1月15日，号码«{p4}»
身份证复印件 «{p7}» 仅供办理签证使用
户主 «{p1}» 之妻 «{p5}»
收件人证件: «{p8:wide}»
学生姓名 刘洋 身份证号 «{p7:6,8}» 班级 三(2)
""",
    ),
    (
        "resident id, 15 digits",
        "id",
        """
旧身份证号 «{old1}»
原证件号码：«{old2}»（一代证）
身份证«{old3}»
Old ID card «{old1}» (issued 1985)
户口簿登记号码：«{old2}»
""",
    ),
    (
        "credit code",
        "id",
        """
统一社会信用代码：«{c1}»
纳税人识别号 «{c2}»
税号:«{c3}» 地址：上海市浦东新区
统一社会信用代码«{c4}»（事业单位法人）
社会组织代码 «{c5}»
购买方 名称：某某科技 纳税人识别号：«{c6}»
Unified Social Credit Code: «{c1}»
信用代码«{c2:wide}»
信用代码 «{c3:low}»
营业执照 «{c6:8,9}»
代码：«{c1:O}»
统一社会信用代码\\n«{c2}»
开票抬头 «{c4}» 开户行 工行
USCC «{c5}» registered in Chongqing
统一社会信用代码 «{c1:2,6,9}»
""",
    ),
    (
        "IBAN",
        "id",
        """
IBAN: «{i1}»
Please transfer to «{i2:4,4,4,4,4}» (Commerzbank)
IBAN «{i3:4,4,4,4,4,4}» BIC PSSTFRPPPAR
Rekening «{i4}» t.n.v. Jansen
Konto «{i5:4,4,4,4,4}»
收款账户 IBAN：«{i6:4,4,4,4,4}»
Kontonummer «{i7:4,4,4}»
pay into «{i8}» by Friday
IBAN «{i2:low}»
Iban «{i1:4,4,4,4,4}», sort code 12-34-56
IBAN:«{i4:4,4,4,4}»
Account: «{i2:4,8}»\\nfor rent
IBAN «{i6:O}»
Bankverbindung: «{i2}»;BIC:COBADEFF
""",
    ),
    (
        "social security number",
        "id",
        """
SSN: «123-45-6789»
Social Security Number «536 90 4399»
Employee's SSN «219-09-1234» (box a)
social security no. «078051121»
Taxpayer «457-55-5462» filed jointly
SSN«601-22-3344»
""",
    ),
    (
        "national insurance number",
        "id",
        """
NI number: «AB123456C»
National Insurance No «JG 12 34 56 A»
NINO «CE 10 20 30 B», tax code 1257L
Your number is «SL-40-50-60-D».
Employee «MW 99 88 77 C»
""",
    ),
    (
        "passport",
        "id",
        """
护照号码：«E12345678»
护照 «EA1234567» 签发地 北京
Passport No. «G28233515»
passport number «533380006» (GBR)
持护照号«E88776655»入境
«P<UTOERIKSSON<<ANNA<MARIA<<<<<<<<<<<<<<<<<<<\\nL898902C36UTO7408122F1204159ZE184226B<<<<<10»
往来港澳通行证 号码：«C12345678»
""",
    ),
    (
        "card",
        "card",
        """
卡号：«{u1}» 开户行：中国工商银行
银行卡 «{u2:4,4,4,4}»
信用卡«{u3:4,4,4}»有效期 09/27
账号 «{u4}»
Visa «{v1:4,4,4}» exp 12/26
Card number «{v2}»
charged to «{m1:-4,4,4}» on 3 May
MasterCard «{m2:4,4,4}»
Debit «{m3}» declined
American Express «{a1:4,6}»
AMEX «{a2}», four-digit code on the front
Discover «{d1:4,4,4}»
Diners «{d2:4,6}»
JCB «{j1:4,4,4}»
持卡人 王磊 卡号 «{u1:wide}»
卡号«{u2:spread}»
付款卡号 «{v1:O}»
Kartennummer: «{m1}»
请将款项汇至«{u4:4,4,4,4}»（户名：陈静）
卡号 «{u1:6}»
card «{v3}» was blocked
«{v2:4,4,4}»\\n«{m2:4,4,4}»
卡号：«{u3:8}»
Refund to card «{d1}» within 5 days
借记卡号«{u2}»，余额不足
Zahlung mit «{v1:-4,4,4}».
工资卡：«{u1:4,4,4,4}» 备注：三月
NO«{u3}»
卡号 «{j1:cut}»
""",
    ),
    (
        "phone, Chinese",
        "phone",
        """
手机：«13800138000»
联系电话 «138 0013 8000»
电话«010-62345678»
Tel: «(010) 6234 5678»
总机 «0755-83456789转8012»
客服热线：«400-820-8820»
请拨«021-58881234»咨询
手机号«+86 139-1234-5678»
«15912345678»（微信同号）
传真：«0571-87654321»
Mobile «86-13712345678»
电话:«010 84561234»
联系方式：«18612345678»/«17712345678»
电话：«62345678»
店长：«1 9 9 1 2 3 4 5 6 7 8»
电话«０１０－６２３４５６７８»
有意者请致电«62345678»
售楼处«85671234»、«85671235»
电话：«(0755)8345 6789»
""",
    ),
    (
        "phone, other",
        "phone",
        """
Call «+44 20 7946 0958» today
Phone: «(202) 555-0143»
Tel «202-555-0199»
fax «1-800-555-0175»
Mobile: «07700 900123»
Ring us on «020 7946 0018»
Tel.: «+49 30 901820»
Téléphone «+33 1 42 68 53 00»
«01632 960001» (office hours)
cell «415.555.0132»
WhatsApp «+1 415 555 0199»
Reach me at «+86 10 6234 5678»
Tel «+852 2345 6789»
Phone «5550143678»
call «020 8366 1177» or «0161 496 0000»
Contact: «202 555 0172»
Hotline «+81-3-1234-5678»
«0800 123 4567» free of charge
Tel: «+41 (0)44 668 18 00»
phone «(0161) 496 0123»
""",
    ),
    (
        "mail",
        "mail",
        """
邮箱：«zhang.wei@example.com»
E-mail: «li_na88@163.com»
Mail «j.smith+news@mail.example.co.uk»
请发送至«hr@example.com.cn»，注明职位
«info@example.org»;«sales@example.org»
邮箱«ｗａｎｇ＠ｑｑ．ｃｏｍ»
Contact «anna.schmidt@example.de».
QQ邮箱 «10001@qq.com»
email «support @ example.com»
Mail: «zhao@163. com»
电子邮件«chen@example，com»
«no-reply@sub.domain.example.net»
write to «bob (at) example.org»
Email:«O'Neil@example.ie»
投稿邮箱：«tougao@vip.sina.com»(请勿重复)
""",
    ),
    (
        "not: wrong check digit",
        "",
        """
身份证号 {p1:wrong}
身份证号：{p2:wrong}
ID {p3:wrong}
证件号码 {p4:wrong} 校验失败
统一社会信用代码 {c1:wrong}
税号 {c2:wrong}
税号 {c3:wrong}
IBAN {i1:wrong}
IBAN {i2:wrong}
IBAN {i4:wrong}
卡号 {u1:wrong}
Visa {v1:wrong}
card {m1:wrong}
AMEX {a1:wrong}
卡号 {u3:wrong}
Discover {d1:wrong}
身份证号 110105194913310021
身份证号 990105194912310026
身份证号 110105189912310028
SSN 000-12-3456
SSN 666-12-3456
SSN 912-34-5678
SSN 123-00-4567
SSN 123-45-0000
NINO GB123456A
NINO QQ123456C
""",
    ),
    (
        "not: orders and serials",
        "",
        """
订单号：202310120001234567
订单编号 2024051899887766
物流单号 SF1234567890123
快递单号：75312345678901
Order no. 114-3941689-8772232
Tracking 1Z999AA10123456784
流水号 20231012153045000123
发票代码 144031900110 发票号码 12345678
机器编号：499098765432
合同编号：HT-2023-0012345678
Serial No. C02XG0FDH7JY
S/N 356938035643809
IMEI 490154203237518
案号（2021）京0105民初12345号
Invoice 00012345-2024
Policy number PL-889-22-10456
批号 20230914 有效期至 20260913
学号 2019211001000123
车架号 LSVAA49J132047371
VIN 1HGCM82633A004352
Part 0123-4567-89
型号 GB/T 19001-2016
Batch 7712 3345 8890
档案号 310-2019-0087-0012
Ref: 9988776655443322
UUID 550e8400-e29b-41d4-a716-446655440000
增值税发票号 24312000000098765432
货号 6901028075831
""",
    ),
    (
        "not: dates, prices, measures",
        "",
        """
日期：2023-10-12 15:30:45
2023年10月12日至2024年3月1日
12/05/2024 09:15
合计 ¥1,234,567.89
Total $12,345.67 incl. VAT 19%
单价 138.00 元 数量 1380
价格：12345678901.23元
6.02214076e23
北纬39.9042° 东经116.4074°
39.904200, 116.407396
-33.868820 151.209290
面积 1234.56 平方米
温度 -12.5～36.8
1024x768, 1920×1080
2019 2020 2021 2022
15.2 18.4 22.1 30.6
GPS 40.712776,-74.005974
增长 12345678 元
比例 1:50000
版本 v2.10.3-rc1
Version 10.0.19045.3570
IP 192.168.100.200
IPv6 2001:0db8:85a3::8a2e:0370:7334
MAC 00:1B:44:11:3A:B7
Python 3.11.7 (2023-12-04)
第 12 页 共 345 页
2023.10.12-2024.10.11
""",
    ),
    (
        "not: books, taxes, others",
        "",
        """
ISBN 978-7-111-54742-6
ISBN 9787302511854
ISSN 1000-9825
ISBN 0-306-40615-2
DOI 10.1145/3372297.3417880
EIN 12-3456789
VAT GB 123 4567 82
USt-IdNr. DE136695976
Steuernummer 21/815/08150
邮编 100084 信箱 1234
Zip 20500-0003
P.O. Box 12345
QQ群 123456789
股票代码 600519 000858
sort code 20-45-33
航班 CA1234 座位 34K
G1234次 08车12F号
电梯编号 3101050012
座标 X=3456789.123 Y=39567890.456
京A·12345
ICP备12345678号
HTTP/1.1 404 Not Found
twitter @example
3 @ 4.50 each
user@localhost
a@b
12:30-13:45
Room 1201-1203
""",
    ),
    (
        "not: like phones",
        "",
        """
订单 12345678901
编号 10012345678
数量 11111111111
编码 0123456789
货号 800-12-345
密码 138-001-380
ID 2025550143 0
+12 345
1-2-3-4-5-6-7-8-9-10
座机编号 001-002-003-004
0.13800138000
邮政编码010010
会员号 13912345678
""",
    ),
)
