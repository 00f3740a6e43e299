"""Soft 404 detection: error pages with status 200.

Only a short page with such a title counts: an article about the error 404 is long, and a short page about a
Peugeot 404 has another title. Price: a short page whose title begins with "404" for another reason.
"""

import re

SOFT_404 = "soft_404"
# A page with more text than this has content, whatever its title.
MAX_TEXT = 1024
_PHRASES = (
    r"(?:page|file|document|url|site|content|article|product|post) (?:was |is |could |can ?)?not (?:be )?found",
    r"not found$",
    r"^not found",
    r"(?:page|file|article|product) (?:does not|doesn.t|no longer) exist",
    r"(?:error|http|status|fehler|erreur|ошибка|erro|errore|fout|błąd|エラー)[ :#-]{0,3}404\b",
    r"^404\b",
    r"\b404[ :|–-]{0,3}(?:error|not found|page|fehler|erreur|ошибка)",
    r"seite (?:wurde )?(?:leider )?nicht gefunden|nicht gefunden$",  # German
    r"page (?:introuvable|non trouvée|inexistante)|introuvable$",  # French
    r"página no (?:encontrada|existe)|no se (?:ha )?encontr(?:ó|ado) la página",  # Spanish
    r"página (?:não|nao) (?:foi )?(?:encontrada|existe)",  # Portuguese
    r"pagina (?:non|nu a fost|niet) (?:trovata|găsită|gevonden)",  # Italian, Romanian, Dutch
    r"nie (?:znaleziono|odnaleziono)|nie została (?:znaleziona|odnaleziona)|strona nie istnieje",  # Polish
    r"страниц[аы] не (?:найден|существует)|сторінк[ауи] не (?:знайден|існує)",  # Russian, Ukrainian
    r"страницата не е намерена|stranica nije pronađena|страница није пронађена",  # Bulgarian, Serbo-Croatian
    r"strán(?:ka|ku) (?:nebyla |nebola |sa )?(?:nenalezen|nenájden|nepodarilo)|nenalezena$",  # Czech, Slovak
    r"sidan (?:hittades inte|kunde inte hittas|finns inte)|siden (?:ble|blev|finnes|findes) ikke",  # Swedish, others
    r"sivua ei (?:löyd|löyt)|oldal nem található",  # Finnish, Hungarian
    r"sayfa bulunamadı|η σελίδα δεν βρέθηκε",  # Turkish, Greek
    r"halaman tidak (?:ditemukan|dijumpai)|không tìm thấy trang|trang không tồn tại",  # Indonesian, Malay, Vietnamese
    r"ページが見つかりません|ページは見つかりません|お探しのページ",  # Japanese
    r"页面(?:不存在|未找到|没有找到)|找不到(?:页面|網頁|网页|頁面)|頁面不存在|您访问的页面",  # Chinese
    r"페이지를 찾을 수 없|존재하지 않는 페이지",  # Korean
    r"الصفحة غير موجودة|لم يتم العثور على الصفحة",  # Arabic
    r"صفحه (?:مورد نظر )?(?:یافت|پیدا) نشد|הדף לא נמצא|העמוד לא נמצא",  # Persian, Hebrew
    r"पृष्ठ नहीं मिला|पेज नहीं मिला|ไม่พบหน้า|পৃষ্ঠা পাওয়া যায়নি",  # Hindi, Thai, Bengali
)
_SAYS_SO = re.compile("|".join(_PHRASES), re.I)


def is_soft_404(title: str, text_chars: int, status: int = 200) -> bool:
    """Returns whether the title of a response with status 200 is that of an error page.

    Args:
        title: of the page.
        text_chars: characters of visible text (`Page.text_chars`).
        status: of the HTTP answer; only 200 can be wrong in this way.

    >>> is_soft_404("404: page not found | Example", 300), is_soft_404("HTTP 404 - an encyclopedia", 1024)
    (True, False)
    """
    return status == 200 and text_chars < MAX_TEXT and _SAYS_SO.search(title.strip()) is not None
