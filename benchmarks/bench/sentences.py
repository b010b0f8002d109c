"""Sentences in languages with letters that the recognizer may not know.

Most are Article 1 of the Universal Declaration of Human Rights; the others are pangrams.
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
    "ru": (
        "Все люди рождаются свободными и равными в своем достоинстве и правах.",
        "Они наделены разумом и совестью и должны поступать в отношении друг",
        "друга в духе братства. Каждый человек имеет право на жизнь, на свободу",
        "и на личную неприкосновенность.",
    ),
    "uk": (
        "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
        "Вони наділені розумом і совістю і повинні діяти у відношенні один до",
        "одного в дусі братерства.",
    ),
    "el": (
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και",
        "τα δικαιώματα. Είναι προικισμένοι με λογική και συνείδηση, και",
        "οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
    ),
    "ar": (
        "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا",
        "وضميرا وعليهم أن يعامل بعضهم بعضا بروح الإخاء.",
    ),
    "he": (
        "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו",
        "בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו ברוח של אחוה.",
    ),
    "ko": (
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
        "인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
    ),
    "hy": (
        "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու",
        "իրավունքներով։ Նրանք ունեն բանականություն ու խիղճ և միմյանց պետք է",
        "եղբայրաբար վերաբերվեն։",
    ),
}
"""Lines of text by language."""
