"""Text of many scripts is whole in every extractor: single letters in inline elements, ruby, joiners, logical order."""

from importlib.util import find_spec

import pytest

from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import main_text, parsed, read_page, show

STORY = "The harbor was quiet that morning, and the boats lay still until the wind came up from the south."
EXTRACTORS = ("blocks", "resiliparse", "trafilatura", "visible")
MARKUP = {
    "Chinese": ("<span>我</span>爱<b>你</b>中国，<font>好</font>！", "我爱你中国，好！"),
    "hiragana": ("<b>あ</b>い<i>う</i><span>え</span>お", "あいうえお"),
    "ruby": ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby><ruby>字<rt>じ</rt></ruby>は難しい", "漢字は難しい"),
    "Thai": ("<span>ก</span>า<b>ร</b>ทำ<i>ง</i>าน", "การทำงาน"),
    "Hebrew": ("<b>ש</b>ל<i>ו</i>ם <span dir=ltr>to all</span> ע", "שלום to all ע"),
    "Hindi": ("<b>न</b>म<i>स्ते</i> <span>क</span>", "नमस्ते क"),
    "Korean": ("<b>한</b>국<i>어</i> <span>글</span>", "한국어 글"),
    "line breaks": ("日本語<b>の\n</b>文は\n   続く", "日本語の文は続く"),
    "soft hyphens": ("Schiff&shy;fahrts&shy;gesellschaft", "Schifffahrtsgesellschaft"),
    "Persian": ("می\u200cخواهم کتاب&zwnj;ها", "می\u200cخواهم کتاب\u200cها"),
    "joiners": ("क्&#x200d;ष र्\u200dय", "क्\u200dष र्\u200dय"),
    "direction": ("אחת &rlm;12&lrm; <bdo dir=rtl>abc</bdo> <bdi>د</bdi>", "אחת 12 abc د"),
}


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize("name", MARKUP)
def test_a_sentence_of_any_script_is_whole_in_logical_order(name: str, extractor: str) -> None:
    if extractor == "trafilatura" and not find_spec("trafilatura"):
        pytest.skip("trafilatura, an extra, is not installed")
    markup, text = MARKUP[name]
    config = ExtractConfig.model_validate({"extractor": extractor})
    assert f"They wrote {text} on it" in read_page(page_of(markup), config).text


@pytest.mark.parametrize("name", MARKUP)
def test_the_text_that_blocks_falls_back_to_is_whole_too(name: str) -> None:
    markup, text = MARKUP[name]
    tree, source = parsed(page_of(markup))
    show(tree, source)
    found = main_text(tree)
    # Soft hyphens and the like are left to `clean`.
    assert f"They wrote {text} on it" in found.replace("\u00ad", "").replace("\u200e", "").replace("\u200f", "")


def page_of(markup: str) -> str:
    """Returns a page with some markup in a sentence of its story."""
    sentence = f"<p>{STORY} They wrote {markup} on it, and all of them came back when the wind had turned.</p>"
    return f"<html><body><article><h1>The harbor</h1><p>{STORY}</p>{sentence}<p>{STORY}</p></article></body></html>"
