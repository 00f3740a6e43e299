"""What the sentences of `benchmarks.pii_cases` are made of; nothing in it belongs to a person.

Telephone numbers come from the ranges that regulators keep free for films (555-01xx, Ofcom's, the Bundesnetzagentur's,
Arcep's, ACMA's) or count up where a country has none. Cards are the networks' test numbers, IBANs the examples of the
IBAN registry, mail boxes lie below reserved names (RFC 2606), IP addresses are public resolvers and root name servers,
social security numbers are the placeholders of forms.
"""

CARDS = (
    "4111111111111111 4012888888881881 4242424242424242 5555555555554444 5105105105105100 2223003122003222 "
    "378282246310005 371449635398431 6011111111111117 6011000990139424 30569309025904 38520000023237 3530111333300000 "
    "3566002020360505 6200000000000005 6759649826438453"
)
IBANS = (
    "DE89370400440532013000 GB29NWBK60161331926819 FR1420041010050500013M02606 ES9121000418450200051332 "
    "IT60X0542811101000000123456 NL91ABNA0417164300 BE68539007547034 CH9300762011623852957 AT611904300234573201 "
    "SE4550000000058398257466 PL61109010140000071219812874 NO9386011117947 DK5000400440116243 FI2112345600000785 "
    "PT50000201231234567890154 IE29AIBK93115212345678 BR1800360305000010009795493C1 TR330006100519786457841326"
)
PUBLIC_V4 = (
    "198.41.0.4 199.9.14.201 192.33.4.12 199.7.91.13 192.203.230.10 192.5.5.241 198.97.190.53 192.36.148.17 "
    "193.0.14.129 199.7.83.42 202.12.27.33 208.67.222.222 149.112.112.112 84.200.69.80"
)
PUBLIC_V6 = (
    "2606:4700:4700::1111 2001:4860:4860::8888 2620:fe::fe 2001:503:ba3e::2:30 2001:500:200::b 2001:7fd::1 2001:dc3::35"
)
SSNS = "123-45-6789 111-22-3333 222-33-4444 333-44-5555 444-55-6666 555-66-7777 111-11-1111 222-22-2222"

MAIL_NAMES = "jo.doe jane_roe max.mustermann m.dupont anna+news info j-smith o.e.r r2d2 kontakt jose.garcia x"
MAIL_HOSTS = "example.com example.org mail.example.net post.example.de shop.example.co.uk xn--bcher-kva.example"

# Forms in which a number is written in each country; "~" is a space, "#" a free digit of a range that nobody has.
PHONES = {
    "US": (
        "(415)~555-01## 415-555-01## 415.555.01## (312)~555-01## +1~212-555-01## +1~(646)~555-01## 1-800-555-01## "
        "+14155550100 1.305.555.01## (415)555-01## +~1~(415)~555-01##"
    ),
    "CA": "(416)~555-01## 604-555-01## +1~613~555~01## 1-514-555-01##",
    "GB": (
        "020~7946~0### (020)~7946~0### +44~20~7946~0### 0131~496~0### +44~(0)161~496~0### 0117-496-0### "
        "0044~20~7946~0### +442079460### +~44~20~7946~0###"
    ),
    "DE": (
        "030/23125### (030)~23125-### +49~30~23125~### 0221~4710~### 040/66969~### +49~(0)69~90009-### +491713920099 "
        "0049~40~66969~### (0049)~30~23125~###"
    ),
    "FR": "01~99~00~##~## 02.61.91.##.## 03-53-01-##-## +33~4~65~71~##~## +33~(0)5~36~49~##~## 0199000###",
    "ES": "612~345~678 912~345~678 +34~612~345~678 91~234~56~78 +34~912345678 612345678",
    "IT": "347~1234567 06~1234~5678 +39~347~123~4567 02/12345678 +39~06~1234~5678 3471234567",
    "NL": "06-12345678 020-1234567 +31~6~12345678 010~123~45~67 06~12~34~56~78 +31~(0)20~123~4567",
    "IN": "98765~43210 +91~98765~43210 022-23456789 09876543210 +91-98765-43210 9876543210",
    "BR": "(11)~98765-4321 (21)~3333-4444 +55~11~98765-4321 (11)~3456-7890 11~98765-4321",
    "other": "+61~2~5550~1234 +61~491~570~156 +46~8~465~004~00 +353~20~911~0000 +81~3~1234~5678",
}

ADDRESSES = {
    "US": (
        "123 Elm Street, Springfield, IL 62704",
        "742 Sample Ave., Apt 4B, Portland, OR 97201",
        "55 W. 3rd St, Suite 210, New Example, New York 10001-1234",
        "9 Old Mill Road\nExampleville, TX 75001",
        "1020 N Placeholder Blvd, Unit 7",
        "4400 Invented Oaks Drive, Los Ejemplos, California 90001",
    ),
    "GB": (
        "14 Sample Road, Exeter EX1 2AB",
        "221 Placeholder Street, London, NW1 6XE",
        "3 The Maltings, Little Example, Norfolk, NR12 8XX",
        "Flat 2, 17 Invented Gardens, Leeds LS1 4AP",
        "8 Specimen Close\nBristol\nBS1 5TR",
    ),
    "DE": (
        "Musterstraße 12, 12345 Musterstadt",
        "Beispielweg 7a, 54321 Beispielhausen",
        "Am Markt 5, 01234 Neustadt",
        "Max-Muster-Allee 101\n80001 München",
        "Probestr. 3, D-50001 Köln",
        "Lange Straße 44, 20001 Hamburg",
        "Modellgasse 9\n61348 Bad Homburg",
        "Probeweg 2, 60001 Frankfurt am Main",
    ),
    "FR": (
        "12 rue de l'Exemple, 75002 Paris",
        "3 bis, avenue du Modèle, 69003 Lyon",
        "45, boulevard Jean Exemple\n13001 Marseille",
        "8 place de la Maquette, 31000 Toulouse",
        "110 chemin des Échantillons, 06000 Nice",
        "7 rue du Spécimen, 42000 Saint-Étienne",
    ),
    "CA": ("410 Specimen Crescent Unit 8\nSampleton, ON K1A 0B1", "12 Invented Bay, Exampleville, BC V0N 1X0"),
    "NL": ("Voorbeeldstraat 12, 1012 AB Amsterdam", "Lange Modelgracht 7b\n3511 XX Utrecht"),
    "ES": ("Calle del Ejemplo 47, 28013 Madrid", "Avenida de la Muestra, 5\n46001 Valencia"),
    "IT": ("Via del Campione 12, 00184 Roma (RM)", "Piazza Esempio, 3\n20121 Milano"),
}

# By language: what stands around a value. "{}" is the value.
AROUND = {
    "email": (
        "Write to {} for details.",
        "Contact: {}",
        "Schreiben Sie an {}, wir antworten.",
        "Envoyez un message à {}.",
        "Escríbenos a {} o visítanos.",
        "Scrivete a {}; grazie.",
        "Mail naar <{}>.",
        "ईमेल: {}",
        "联系邮箱{}谢谢",
        "See mailto:{}?subject=hello",
        "“{}” is what she gave",
    ),
    "ssn": ("SSN: {}", "His social security number is {}.", "Employee {} (SSN)", "Social Security No. {}, issued here"),
    "card": (
        "Card: {}",
        "Charged to Visa {} on Monday.",
        "Kreditkarte {} gültig bis 12/30",
        "Carte bancaire n° {}.",
        "Paid with {}, thanks",
        "tarjeta {}",
    ),
    "iban": (
        "IBAN: {}",
        "Bitte überweisen auf {} bei der Musterbank.",
        "Compte {}.",
        "Rekening {}, t.n.v. Jan",
        "({})",
    ),
    "ip": (
        "Login from {} refused.",
        "client {} - GET /index.html",
        "The IP address {} was banned.",
        "IP: {}",
        "Edited by {} at noon",
        "http://{}/status",
    ),
    "address": {
        "US": ("She lives at {}.", "Ship to: {}", "Our office, {}, is open.", "Mailing address\n{}\nThank you"),
        "GB": ("Our address: {}.", "Send it to {}", "Visit us at {} any day."),
        "DE": ("Anschrift: {}", "Er wohnt in der {}.", "Muster GmbH, {}"),
        "FR": ("Adresse : {}", "Elle habite {}.", "Société Exemple, {}"),
        "CA": ("Ship to {}.", "The office: {}"),
        "NL": ("Adres: {}", "Kom langs: {}."),
        "ES": ("Dirección: {}", "Vive en {}."),
        "IT": ("Indirizzo: {}", "Sede: {}."),
    },
    "phone": {
        "US": ("Call {} today.", "Phone: {}", "Reach the office at {} or by mail.", "Fax {}", "{} (mobile)"),
        "CA": ("Tel. {}", "Please call {}.", "Contact {} for tickets"),
        "GB": ("Tel: {}", "Ring us on {} before noon.", "Telephone {}, weekdays", "Call {}"),
        "DE": ("Tel.: {}", "Telefon {}", "Rufen Sie uns an: {}", "Telefax {}, Mo-Fr"),
        "FR": ("Tél. : {}", "Téléphone {}", "Appelez le {} dès demain."),
        "ES": ("Teléfono: {}", "Llame al {} ahora.", "Móvil {}"),
        "IT": ("Tel. {}", "Telefono: {}", "Chiamate il {} oggi."),
        "NL": ("Telefoon: {}", "Bel {} voor een afspraak.", "Tel {}"),
        "IN": ("Phone: {}", "Contact no. {}", "मोबाइल: {}", "Call or WhatsApp {}"),
        "BR": ("Telefone: {}", "Ligue para {} hoje.", "WhatsApp {}"),
        "other": ("Call {}.", "Phone {}", "{}"),
    },
}
BARE = {
    "US": ("(415)~555-01## 415-555-01## +1~212-555-01##", "The shop ({}) is open.", "Anna Roe {} Springfield"),
    "GB": ("020~7946~0### +44~20~7946~0###", "The desk is {} on weekdays."),
    "DE": ("+49~30~23125~### (030)~23125-###", "Praxis Muster, {}, Montag"),
    "FR": ("01~99~00~##~## 02.61.91.##.##", "Cabinet Exemple {} sur rendez-vous"),
    "BR": ("(11)~98765-4321", "Loja Exemplo {} aberta"),
}
"""Numbers without any label beside them."""

RARE: dict[str, tuple[str, ...]] = {
    "email": (
        "Reach «o'hara@example.org» soon",
        "E-Mail:«max@müller.example»",
        "«anna.k.@example.com»",
        "write «jo (at) example (dot) org»",
        '«"jo doe"@example.com» is valid',
        "Jo<«jo@[198.41.0.4]»>",
        "josé: «josé@example.com», thanks",
        "<«JO@EXAMPLE.COM»>,<«eve@example.net»>",
        "user=«jo@example.com»&id=7",
        "«jo@example.com».Please reply",
    ),
    "phone": (
        "Call 1-«800-FLOWERS» now",
        "Call «555-0123»",
        "Phone «(415) 555-0123» ext. 12",
        "Tel «+49 (30) 23125-123»",
        "T: «020 7946 0123»",
        "M «+44 20 7946 0123»",
        "Tel. «030–23125123»",
        "Tel. «+33.1.99.00.12.34»",
        "Tél «+33(0)199001234»",
        "Text «415 555 0123» to win",
        "«415 555 0123» is the number",
        "Rufen Sie «0 30 / 2 31 25 - 123» an",
        "WhatsApp: wa.me/«14155550123»",
        "Phone\n«(212) 555-0199»",
        "Tel «+1 415\n555 0123»",
        "tel:«+1-415-555-0123»",
        "Cellulare: «347 12 34 567»",
        "Mob: «+91-98765 43210» / «+91-98765 43211»",
    ),
    "ip": (
        "Blocked «198.41.0.4»:53 twice",
        "[«2606:4700:4700::1111»]:443",
        "from «2606:4700:4700:0:0:0:0:1111» port 22",
        "X-Forwarded-For: «199.7.91.13», 10.0.0.1",
        "src=«198.97.190.53» dst=10.1.1.1",
        "ip-«192-33-4-12».example.net",
        "IP «9.9.9.9» answered",
    ),
    "ssn": ("SSN «123.45.6789»", "ssn=«123-45-6789»;", "SSN:«123456789»", "her social: «123-45-6789»"),
    "card": (
        "«4111-1111 1111 1111» oddly typed",
        "cc=«4111111111111111»&cvv=123",
        "Card «4111.1111.1111.1111»",
        "PAN«5555555555554444»",
        "Card ending 4444; full: «5555  5555  5555  4444»",
    ),
    "iban": (
        "iban «de89370400440532013000»",
        "IBAN:«GB29NWBK60161331926819».",
        "IBAN «DE89-3704-0044-0532-0130-00»",
        "Konto: «AT61 1904 3002 3457 3201», BIC XXXXATWW",
    ),
    "address": (
        "Jo Doe, «123 Elm Street, Springfield 62704»",
        "Address: «77 Massachusetts Avenue»",
        "«P.O. Box 123, Sampleville, IL 62704»",
        "«One Sample Plaza, Sampleville, IL 62704»",
        "Anschrift: «Beispielstr. 5»",
        "«Musterstraße 12 | 12345 Musterstadt»",
        "Wohnhaft «Straße des 17. Juni 135, 10623 Berlin»",
        "«12, RUE DE L'EXEMPLE 75002 PARIS»",
        "«The Old Mill, Sample Lane, Exeter EX1 2AB»",
        "c/o Muster, «Hauptstrasse 3, 8001 Zürich»",
    ),
}
"""Forms outside the common ones, « » around the personal data: written down before they were first tried."""
