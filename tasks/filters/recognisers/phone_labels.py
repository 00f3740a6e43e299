"""Labels of telephone numbers ("Tel.", "電話", "тел."), and of the other numbers that stand next to labels.

Labels are words or beginnings of words in lower case, as regular expressions without groups. Those in `_JOINED` are of
scripts without spaces (Chinese, Japanese, Thai) or with prefixes and endings (Arabic "بالهاتف", Hebrew, Korean,
Hindi), and may stand inside a run of letters. They are our own collection; the words are those of contact pages.

A label decides only together with the format of the number (`phone`), so a word that also has other meanings ("call",
"문의", inquiry) is no harm, but the labels of other numbers must be complete: the nearest label counts.
"""

import re

from tasks.filters.recognisers.span import GOODS, OTHER_NUMBERS, Labels

_CALL = r"calls?\b(?![ -]?(?:n(?:o\b|r\b|um)|mark|sign))"  # the call number of a book, the call sign of a station
_SPACED = (
    r"phone|tel\b|tel:|telephone|mobile|cell(?= ?(?:phone|no|num|#|[:.+(0-9]|$))|cellular|cellphone|fax\b"
    rf"|{_CALL}|calling|whats ?app|telegram|sms|dial|hotline|helpline|ring us|ph\b|contacts?\b"
    r"|reach (?:me|us|him|her|them)|text (?:me|us)|viber"
    # German, French, Spanish, Italian, Dutch, Portuguese
    r"|telefon|telefax|handy|mobil|rufnummer|durchwahl|anruf|ruf(?:en)?\b|erreich|natel"
    r"|téléphone|tél\b|téléc|portable|appel|joindre|fixe\b"
    r"|teléfono|telf|tlf|tfno|móvil|llam|cellulare|chiam"
    r"|telefoon|mobiel|bel(?:len)?\b|gsm\b|celular|ligue|fone\b|contato|telemóvel|contacto"
    # Nordic, Polish, Czech, Slovak, Hungarian, Romanian, Turkish, Vietnamese, Indonesian, Malay
    r"|tlph|puhelin|puh\b|faksi?\b|kom\.|komórk|infolini|zadzwo|volejte|telsz|belgeç|cep (?:tel|no)|çağrı"
    r"|điện thoại|đt\b|sđt|di động|gọi|liên hệ|telepon|telpon|telp\b|handphone|hp ?[.:] ?$|mobitel"
    # Russian, Ukrainian, Bulgarian, Serbian, Greek
    r"|тел\b|телеф|моб\b|мобил|мобіл|сотов|факс|звон|позвон|дзвон|подзвон|ватсап|вайбер|горячая лини|гаряча лінія"
    r"|τηλ|κιν\b|κινητ|φαξ|φάξ|καλέστε|επικοινων"
)
_JOINED = (
    # Chinese and Japanese
    r"電話番号|電話號碼|电话号码|手机号码?|手機號碼|電話|电话|携帯|携帯番号|手机|手機|座机|热线|熱線|专线|專線|传真|傳真|致电|致電"
    r"|联系方式|聯絡方式|咨询|諮詢|洽詢|微信|ファックス|ファクス|ファクシミリ|フリーダイヤル|フリーコール|テレホン|お問い?合わ?せ|ご予約"
    r"|(?<![a-z])(?:tel|fax|phone|mobile)(?![a-z])"
    # Korean, Thai
    r"|전화|연락처|휴대폰|핸드폰|휴대전화|팩스|문의|대표번호|고객센터|상담"
    r"|โทร|เบอร์|มือถือ|แฟกซ์|สายด่วน|ติดต่อ"
    # Arabic, Persian, Urdu, Hebrew
    r"|هاتف|جوال|موبايل|تليفون|تلفون|فاكس|واتس|اتصل|الاتصال|اتصال|محمول|خلوي|تلفن|موبایل|همراه|نمابر|تماس|فون|موبائل|رابطہ"
    r"|טלפון|טל['׳.:]|נייד|פקס|פלאפון|סלולרי|חייגו|התקשרו|וואטסאפ"
    # Hindi and Marathi, Bengali, Tamil, Telugu
    r"|टेलीफ|टेलिफ|फोन|फ़ोन|मोबाइल|मोबाईल|दूरभाष|दूरध्वनी|संपर्क|सम्पर्क|कॉल|फैक्स|व्हाट्सएप|हेल्पलाइन"
    r"|ফোন|মোবাইল|যোগাযোগ|ফ্যাক্স|தொலைபேசி|கைபேசி|அலைபேசி|ఫోన్|మొబైల్"
)
_NOT_SPACED = (
    rf"{OTHER_NUMBERS}|ssn|social security"
    r"|nip\b|regon\b|krs\b|pesel|ičo\b|dič\b|cui\b|oib\b|cif\b|nif\b|cvr\b|kvk\b|btw\b|tva\b|gstin|npwp|bsn\b|siret"
    r"|инн\b|огрн|кпп\b|бик\b|р/с|к/с|сч[её]т|окпо|окато|октмо|снилс|заказ|артикул|код\b|индекс|паспорт|лиценз"
    r"|єдрпоу|іпн\b|рахун|замовл|еик\b|егн\b|булстат|αφμ|α\.φ\.μ|mã số|mst\b|số tài khoản|vergi|mersis|kimlik|sicil"
)
_NOT_JOINED = (
    r"订单|訂單|单号|單號|编号|編號|型号|型號|身份证|身分證|证号|證號|帐号|账号|帳號|账户|卡号|卡號|银行|銀行|邮编|郵遞|邮政编码|价格|價格|税号|统一编号|統一編號"
    r"|信用代码|备案|许可|qq|注文|型番|品番|口座|価格|番号|〒|法人番号|登録番号|주문|계좌|사업자|등록번호|주민|우편|통신판매|가격"
    r"|เลขที่|เลขประจำตัว|บัญชี|ราคา|حساب|السجل|الرقم القومي|رقم الطلب|الهوية|شماره ملی|کد ملی|کدپستی|کد پستی|ثبت"
    r"|ח[.\"״]פ|ע[.\"״]מ|ת[.\"״]ז|הזמנה|חשבון|עוסק|מספר רישיון|खाता|आधार|पिन|मूल्य|पंजीकरण"
)
LABELS = Labels(_SPACED, _NOT_SPACED, _JOINED, _NOT_JOINED)
"""Whether the label next to a number is that of a telephone number."""

_UNITS = (
    r"[元圆圓塊件個个次辆輛吨噸股户戶亩畝枚匹隻棟軒回円條]|台(?![北中南湾灣州])|人(?![民工])|名(?![古片])|部(?![门門])"
    r"|米(?!兰)|本(?![社店部])|公里|公斤|千克|平方|美元|港元|欧元|[万萬亿億]|世帯|キロ|メートル|ドル|[%％]"
    r"|(?:대|명|개|원|건|회|만|억|달러|킬로)(?:(?![가-힣])|[은는이가을를에의도])"
    r"|(?:เครื่อง|คน|บาท|ราย|ครั้ง|ชิ้น|ล้าน|หน่วย|คัน)"
    r"|(?:جهاز|أجهزة|وحدة|نسخة|شخص|مشترك|ريال|دولار|مليون|ألف|دستگاه|نفر|تومان)"
    r"|(?:लोग|रुपये|रुपए|इकाई|करोड़|लाख|टुकड़|यूनिट)"
)
_UNIT_WORDS = (
    r"штук|шт(?!\w)|экземпл|единиц|человек|чел(?!\w)|тыс|миллион|млн|млрд|рубл|руб(?!\w)|абонент|пользовател|долл|евро"
    r"|грив|гривень|раз(?!\w)|км(?!\w)|литр|тонн|осіб|одиниц"
    r"|chiếc|cái|người|thuê bao|máy(?!\w)|đồng|triệu|nghìn|lần(?!\w)|tỷ"
    r"|(?:units|copies|people|users|subscribers|million|dollars|euros?|pieces|customers|devices|handsets|phones|calls)(?!\w)"
    r"|(?:stück|einheiten|personen|geräte|unidades|unités|exemplaires|personas|personnes|sztuk|kusů|adet|buah|orang)(?!\w)"
)
COUNTED = re.compile(f" ?(?:{_UNITS})| (?i:{_UNIT_WORDS})")
"""A unit or what is counted, behind a number: "台", "штук", "chiếc"."""

GOODS_LABELS = Labels(r"phone|tel\b|calls?\b|fax\b", GOODS)
"""The same of a number with the format of a telephone number: only the labels of goods speak against it."""
