"""Sentences of ordinary text in languages whose letters a recognizer may or may not read.

Mostly Article 1 of the Universal Declaration of Human Rights, and sentences made to hold every letter.
"""

from __future__ import annotations

from typing import Final

SENTENCES: Final[dict[str, tuple[str, ...]]] = {
    "fr": (
        "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
        "Ils sont doués de raison et de conscience et doivent agir les uns",
        "envers les autres dans un esprit de fraternité. Où est le cœur de la forêt ?",
        "Ça va très bien, grâce à Noël, naïve et française, août, hôtel, île, sûr",
    ),
    "ro": (
        "Toate ființele umane se nasc libere și egale în demnitate și în drepturi.",
        "Ele sunt înzestrate cu rațiune și conștiință și trebuie să se comporte",
        "unele față de altele în spiritul fraternității. Mâine în oraș, când vântul",
    ),
    "sk": (
        "Všetci ľudia sa rodia slobodní a sebe rovní, čo sa týka ich dôstojnosti",
        "a práv. Sú obdarení rozumom a majú navzájom jednať v bratskom duchu.",
        "Kŕdeľ šťastných ďatľov učí pri ústí Váhu mĺkveho koňa obhrýzať kôru",
    ),
    "az": (
        "Bütün insanlar ləyaqət və hüquqlarına görə azad və bərabər doğulurlar.",
        "Onların şüurları və vicdanları var və bir-birlərinə münasibətdə",
        "qardaşlıq ruhunda davranmalıdırlar. İyul ayı, gözəl şəhər, çox iş",
    ),
    "tl": (
        "Ang lahat ng tao'y isinilang na malaya at pantay-pantay sa karangalan",
        "at mga karapatan. Niño, piña, señor, España, Parañaque",
    ),
    "eo": (
        "Ĉiuj homoj estas denaske liberaj kaj egalaj laŭ digno kaj rajtoj.",
        "Ili posedas racion kaj konsciencon, kaj devus konduti unu al alia",
        "en spirito de frateco. Eĥoŝanĝo ĉiuĵaŭde, ĝis revido, ŝi aĉetis ĵus",
    ),
    "tr": (
        "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
        "Akıl ve vicdana sahiptirler ve birbirlerine karşı kardeşlik zihniyeti",
        "ile hareket etmelidirler. Pijamalı hasta yağız şoföre çabucak güvendi",
    ),
    "is": (
        "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum.",
        "Menn eru gæddir vitsmunum og samvizku, og ber þeim að breyta bróðurlega",
        "hverjum við annan. Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa",
    ),
    "pl": (
        "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności",
        "i swych praw. Są oni obdarzeni rozumem i sumieniem i powinni",
        "postępować wobec innych w duchu braterstwa. Zażółć gęślą jaźń",
    ),
    "lv": (
        "Visi cilvēki piedzimst brīvi un vienlīdzīgi savā pašcieņā un tiesībās.",
        "Viņi ir apveltīti ar saprātu un sirdsapziņu, un viņiem jāizturas citam",
    ),
    "cs": (
        "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
        "Jsou nadáni rozumem a svědomím a mají spolu jednat v duchu bratrství.",
        "Příliš žluťoučký kůň úpěl ďábelské ódy",
    ),
    "hu": (
        "Minden emberi lény szabadon születik és egyenlő méltósága és joga van.",
        "Az emberek, ésszel és lelkiismerettel bírván, egymással szemben",
        "testvéri szellemben kell hogy viseltessenek. Árvíztűrő tükörfúrógép",
    ),
}
"""By language, in lines."""
