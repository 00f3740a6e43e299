import base64
import gc
import importlib
import json
import random
import time

import pyarrow as pa
import pytest

from tasks.formats.web.robots import AI_AGENTS, MAX_BYTES, Robots, deciding_rule


def cases(folder):
    return json.loads((folder / "robots" / "cases.json").read_text())


def test_every_case_of_the_test_suites_of_google_and_protego_passes(shared_data):
    wrong = [
        (case["test"], case["allowed"])
        for case in cases(shared_data)
        if Robots(case["robots"].encode(), case["agent"]).allows(case["url"]) != case["allowed"]
    ]
    # Google's parser forbids these cases of Protego: it does not end a list of names at an unknown field, and does not
    # escape "<" in rules, as URLs are.
    assert wrong == [("test_unescaped_url", True)] * 4 + [("test_grouping_unknown_keys", True)] * 3


def test_crawl_delays_and_sitemaps_are_read_as_protego_reads_them(shared_data):
    for case in json.loads((shared_data / "robots" / "crawl_delay_and_sitemaps.json").read_text()):
        robots = Robots(case["robots"].encode(), case.get("agent", "*"))
        if "sitemaps" in case:
            assert list(robots.sitemaps) == case["sitemaps"]
        else:
            assert robots.crawl_delay() == case["crawl_delay"]


def allows(robots, url="http://h/page", agent="sluice"):
    return Robots(robots if isinstance(robots, bytes) else robots.encode(), agent).allows(url)


def test_rules_after_512_kib_are_ignored():
    filler = b"#" * 99 + b"\n"
    body = b"User-agent: *\n" + filler * (MAX_BYTES // len(filler) + 1) + b"\nDisallow: /\n"
    assert allows(body)


def test_a_rule_cut_by_the_limit_is_ignored():
    rule = b"Disallow: /private/of/some/length\n"
    for shift in range(len(rule)):
        body = b"User-agent: *\n" + b"#" * shift + b"\n" + rule * (MAX_BYTES // len(rule) + 1)
        assert allows(body)
    assert not allows(b"User-agent: *\rDisallow: /p\r" + b"#" * MAX_BYTES)


@pytest.mark.parametrize(
    "body",
    [
        "\ufeffUser-agent: *\nDisallow: /page",
        "User-agent: *\nDisallow: /page".encode("utf-16"),
        b"User-agent: *\r\rDisallow: /page\r",
        b"\0\0User-agent: *\nDisallow: /page\0",
        "User-agent: *\nDisallow: /page".encode("utf-16-le"),
        b"\xef\xbbUser-agent: *\nDisallow: /page",
        b"<html>\n<body>\nUser-agent: *\nDisallow: /page",
    ],
    ids=["bom", "utf-16", "cr", "nul", "utf-16 without bom", "half a bom", "html around"],
)
def test_malformed_files_still_forbid(body):
    assert not allows(body)


def test_where_the_rfc_and_google_differ_the_stricter_one_applies():
    assert not allows("User-agent: *\nDisallow: /\nAllow: /%62%61%7A", "http://h/baz")
    assert not allows("User-agent: *\nDisallow: /%62%61%7A", "http://h/baz")
    assert not allows("User-agent: *\nDisallow: /k\u00e4se", "http://h/k%C3%A4se")
    assert allows("User-agent: *\nDisallow: /\nAllow: /k\u00e4se", "http://h/k%C3%A4se")
    assert not allows(b"User-agent: *\nDisallow: /k\xe4se", "http://h/k%E4se")


@pytest.mark.parametrize(
    ("body", "url"),
    [
        (b"User-agent: *\nNoindex: /q\nUser-agent: other\nDisallow: /", "http://h/page"),
        (b"User-agent: sluice\nDisalllow: /q\nUser-agent: other\nDisallow: /", "http://h/page"),
        (b"User-agent: sluice\nDisallow: /page\0/inside", "http://h/page"),
        (b"User-agent: sluice\nDisallow: /page\nAllow\0: /page", "http://h/page"),
        (b"User-agent: sluice\nDisallow: /q\n\0User-agent: other\nDisallow: /", "http://h/page"),
        (b"User-agent: *sluice\nAllow: /\nUser-agent: *\nDisallow: /", "http://h/page"),
        (b"User-agent: *\nDisallow: /\nAllow: /a b", "http://h/a%20b"),
        (b"User-agent: *\nDisallow: /\nAllow\v/page", "http://h/page"),
    ],
    ids=["unknown", "misspelt", "nul in a rule", "nul in a field", "nul before a field", "star name", "blank", "gap"],
)
def test_what_google_forbids_is_forbidden(body, url):
    assert not allows(body, url)
    assert not deciding_rule(body, "sluice", url).allowed


def test_a_group_for_a_name_after_a_star_applies_too():
    body = b"User-agent: *sluice\nDisallow: /page\nUser-agent: *\nAllow: /"
    assert not allows(body)
    assert deciding_rule(body, "sluice", "http://h/page").line == 2
    assert allows(body, agent="other")
    assert Robots(b"User-agent: *GPTBot\nDisallow: /", "sluice").ai_optout("http://h/page")


NAMES = ("*", "FooBot", "sluice", "BarBot", "sluice/1.0", "SLUICE", "* x", "foo*", "sluice bot", "slu", "*sluice")
FIELDS = ("User-agent", "user agent", "useragent", "disalow", "Disallaw", "Noindex", "Crawl-delay", "Sitemap", "Host")
FIELDS += ("Unknown", "Disallowed", "Allowed", "Dis allow", "Disalllow", "Content-Signal", "License", "User-agents")
PATHS = ("/", "/q", "/a", "/a/b", "/*", "*", "/a*b", "/a$", "$", "", "/%61", "/a%2fb", "/\u00e9", "q", "/index.html")
PATHS += ("/a/index.htm", "/a?b=1", "/*?", "/a b", "https://h/a", "/**", "/a//b", "/a;b", "/%zz", "/%2a", "/~x", "1")
BETWEEN = (":", " ", "\t", " : ", ":\t", "::", "=", ":\0", "\0:", "  ", "\v")
ENDS = ("\r\n", "\r", "\n\n", " # c\n", "\0\n", "#\n", "\t\n", "\v\n", "\f\n", "\x85\n", "\xa0\n")
STRAY = ("\0", " ", "\t", "\xff", "\ufeff", "#", "\v", "\x1c")
# With escapes in capitals, as the parser of Google expects them.
ASKED = (
    "",
    "q",
    "a",
    "a/b",
    "a/",
    "%61",
    "a%2Fb",
    "%C3%A9",
    "index.html",
    "a?b=1",
    "a%20b",
    "*",
    "$",
    "a//b",
    "a;b",
    "1",
)


def drawn_line(draw):
    kind = draw.random()
    field, value = draw.choice(FIELDS), draw.choice(PATHS + NAMES)
    if kind < 0.35:
        field, value = "User-agent", draw.choice(NAMES)
    elif kind < 0.75:
        field, value = draw.choice(("Allow", "Disallow", "Disallow")), draw.choice(PATHS)
    line = f"{field}{draw.choice(BETWEEN) if draw.random() < 0.2 else ': '}{value}"
    if draw.random() < 0.05:
        at = draw.randrange(len(line) + 1)
        line = line[:at] + draw.choice(STRAY) + line[at:]
    end = draw.choice(ENDS) if draw.random() < 0.25 else "\n"
    return (line + end).encode("utf-8" if draw.random() < 0.97 else "latin-1", "replace")


def drawn_file(draw):
    begin = draw.choice((b"\xef\xbb\xbf", b"\xef\xbb", b"\0")) if draw.random() < 0.04 else b""
    return begin + b"".join(drawn_line(draw) for _ in range(draw.randrange(1, 10)))


@pytest.mark.oracle("jwm")
@pytest.mark.parametrize("files", [10_000, pytest.param(60_000, marks=pytest.mark.soak)])
def test_for_random_files_nothing_is_allowed_that_googles_parser_forbids(files):
    google = importlib.import_module("jwm.robotstxt.googlebot")
    forbidden = looser = 0
    for number in range(files):
        draw = random.Random(number)
        body, agent, url = drawn_file(draw), draw.choice(("sluice", "FooBot")), f"http://h/{draw.choice(ASKED)}"
        if not google.RobotsMatcher().OneAgentAllowedByRobots(body, agent, url):
            forbidden += 1
            looser += Robots(body, agent).allows(url)
            assert not looser, (body, agent, url)
    assert forbidden > files / 50, "the draw is no test of that"


def test_a_crawl_delay_between_names_does_not_split_a_group():
    body = b"User-agent: sluice\nCrawl-delay: 3\nUser-agent: other\nDisallow: /page"
    ours, theirs = Robots(body, "sluice"), Robots(body, "other")
    assert not ours.allows("http://h/page")
    assert ours.crawl_delay() == 3.0
    assert theirs.crawl_delay() is None


@pytest.mark.parametrize(
    "body",
    [
        b"User-agent: *\nDisallow: /" + b"*a" * 200_000,
        b"User-agent: *\n" + b"Disallow: /*a*b*c*d$\n" * 25_000,
        b"".join(b"User-agent: bot%d\nDisallow: /\n" % number for number in range(16_000)),
        b"".join(b"User-agent: a%d\n" % number for number in range(18_000)) + b"Disallow: /ab\n" * 18_000,
        b"User-agent: s\nCrawl-delay: 1\nUser-agent: *\nCrawl-delay: 1\n" * 9_000,
        b"User-agent: *\nCrawl-delay: 1\n" * 17_000,
        b":" * MAX_BYTES,
        b"a" * MAX_BYTES,
        b"".join(b"User-agent: a%d\nCrawl-delay: 1\n" % number for number in range(17_000)),
        b"".join(b"User-agent: %s\n" % name.encode() for name in sorted(AI_AGENTS))
        + b"".join(b"Disallow: /%%62%d\n" % number for number in range(22_000))
        + b"".join(b"User-agent: %s\nDisallow: /%s\n" % (name.encode(), name.encode()) for name in sorted(AI_AGENTS)),
        b"User-agent: gptbot\nDisallow: /a\n" * 17_000,
        b"User-agent: *\n" + b"Content-Signal: ai-train=no\n" * 18_000,
        b"".join(
            b"User-agent: %s\n"
            % b"\nUser-agent: ".join(name.encode() for bit, name in enumerate(sorted(AI_AGENTS)) if number >> bit & 1)
            + b"Disallow: /%d\n" % number
            for number in range(1, 4_000)
        ),
    ],
    ids=[
        "star bomb",
        "many wildcards",
        "many groups",
        "names by rules",
        "names and delays",
        "many delays",
        "colons",
        "one line",
        "names each with a delay",
        "rules for every AI crawler",
        "AI groups",
        "signals",
        "other AI crawlers in each group",
    ],
)
def test_a_hostile_file_takes_seconds_at_most(body):
    gc.freeze()  # garbage of other tests is not collected with it
    begin = time.process_time()
    robots = Robots(body, "sluice")
    robots.allows("http://h/" + "a" * 2000)
    robots.ai_optout("http://h/" + "a" * 2000)
    took = time.process_time() - begin
    gc.unfreeze()
    assert took < 3.0


def real_files(folder):
    file = str(folder / "robots" / "real_sites.jsonl.zst")
    for line in pa.input_stream(file, compression="zstd").read().splitlines():
        row = json.loads(line)
        text = row.get("robots")
        yield row, base64.b64decode(row["robots_base64"]) if text is None else text.encode()


def test_every_real_file_is_read_quickly(shared_data):
    begin = time.process_time()
    count = 0
    for row, body in real_files(shared_data):
        robots = Robots(body, "sluice")
        robots.allows(f"https://{row['host']}/a/b?c=%20d")
        robots.ai_optout(f"https://{row['host']}/a/b")
        count += 1
    assert count == 1174
    assert time.process_time() - begin < 10


def test_real_files_get_the_decisions_of_protego_or_stricter_ones(shared_data):
    looser = stricter = 0
    for row, body in real_files(shared_data):
        if "robots" not in row:
            continue
        for agent, answers in row["protego"].items():
            robots = Robots(body, agent)
            for path, protego in answers.items():
                ours = robots.allows(f"https://{row['host']}{path}")
                looser += ours and not protego
                stricter += protego and not ours
    assert looser == 0
    assert stricter <= 5


EVERYONE = "User-agent: *\n"


@pytest.mark.parametrize("url", ["", "http://h", "http://h/", "http://h?q", "http://h;p", "//h/x", "/x", "h/x"])
def test_a_url_without_a_path_means_the_root(url):
    assert not allows(EVERYONE + "Disallow: /", url)
    assert allows("", url)
    assert allows("", url, agent="")
    assert allows("User-agent: sluice\nDisallow: /", url, agent="")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://h/a?b=http://other/x", False),
        ("http://h:8080/a?b", False),
        ("http://user@h/a?b", False),
        ("http://h/a", True),
        ("http://h/#/a?b", True),
        ("http://h/x#a?b", True),
        ("http://h//a?b", True),
    ],
)
def test_rules_are_about_path_and_query_only(url, allowed):
    assert allows(EVERYONE + "Disallow: /a?b", url) is allowed


@pytest.mark.parametrize(
    "name", ["sluice", "SLUICE", "Sluice/2.1", "sluice bot", "sluice (+http://h)", "sluice*", "sluice1", "sluice;x"]
)
def test_a_group_matches_by_its_name_up_to_the_first_other_character(name):
    body = f"User-agent: {name}\nDisallow: /\n\n{EVERYONE}Allow: /"
    assert not allows(body)


@pytest.mark.parametrize("name", ["slu", "ice", "sluice-images", "sluicebot", "s", "other sluice", "'sluice'", ""])
def test_a_group_with_another_name_does_not_match(name):
    assert not allows(f"User-agent: {name}\nAllow: /\n\n{EVERYONE}Disallow: /")


@pytest.mark.parametrize("star", ["*", "* ", "* all of you", "*\t"])
def test_a_star_matches_every_agent_whatever_follows_it(star):
    assert not allows(f"User-agent: {star}\nDisallow: /")


def test_a_star_at_the_start_of_a_word_matches_no_agent():
    assert allows("User-agent: *bot\nDisallow: /")


def test_groups_with_the_same_name_are_merged():
    body = "User-agent: sluice\nDisallow: /a\n\nUser-agent: other\nDisallow: /b\n\nUser-agent: Sluice\nDisallow: /c"
    assert [allows(body, f"http://h/{path}") for path in "abc"] == [False, True, False]


def test_a_named_agent_ignores_the_rules_for_all_agents():
    assert allows(f"{EVERYONE}Disallow: /\n\nUser-agent: sluice\nDisallow: /private")
    assert allows(f"{EVERYONE}Disallow: /\n\nUser-agent: sluice\nDisallow:")
    assert allows(f"{EVERYONE}Disallow: /\n\nUser-agent: sluice")


@pytest.mark.parametrize(
    "line", ["Sitemap: http://h/s", "Host: h", "Clean-param: a", "unknown", "Crawl-delay: 5", "", "# x"]
)
def test_other_lines_do_not_split_a_group(line):
    body = f"User-agent: sluice\n{line}\nUser-agent: other\nDisallow: /"
    assert not allows(body)
    assert not allows(body, agent="other")


def test_rules_before_the_first_group_are_ignored():
    assert allows("Disallow: /\nUser-agent: *\nAllow: /x")


@pytest.mark.parametrize(
    "line",
    [
        *("disallow: /", "DISALLOW : /", "  Disallow:/", "Disallow /", "Disallow\t/", "Disallowed: /", "Dissallow: /"),
        *("Dissalow: /", "Disalow: /", "Diasllow: /", "Disallaw: /", "Disallow: / # all", "Disallow: page"),
    ],
)
def test_misspelled_rule_names_are_recognized(line):
    assert not allows(f"{EVERYONE}{line}")


@pytest.mark.parametrize("name", ["user-agent", "User Agent", "useragent", "USER-AGENT ", "User-agents"])
def test_misspelled_user_agent_fields_start_a_group(name):
    assert not allows(f"{name}: sluice\nDisallow: /")


@pytest.mark.parametrize("line", ["Disallow", "Disallow:", "Disallow: # /", "Disallow / page", ": /", "Dis allow: /"])
def test_an_empty_rule_forbids_nothing(line):
    assert allows(f"{EVERYONE}{line}")


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ("Disallow: /\nAllow: /page", True),
        ("Allow: /\nDisallow: /page", False),
        ("Allow: /page\nDisallow: /page", True),
        ("Disallow: /page\nAllow: /page", True),
        ("Allow: /p\nDisallow: /*page", False),
        ("Disallow: /*\nAllow: /p", True),
        ("Disallow: /PAGE", True),
        ("Disallow: /page$", False),
        ("Disallow: /pag$", True),
        ("Disallow: *age", False),
        ("Disallow: /p**g*e$", False),
        ("Disallow: /p*e$x", True),
        ("Disallow: /*e*e", True),
        ("Disallow: /page*page$", True),
        ("Disallow: /page*", False),
        ("Disallow: $", True),
        ("Disallow: *", False),
    ],
)
def test_the_longest_rule_that_matches_decides_and_allow_wins_ties(rules, allowed):
    assert allows(EVERYONE + rules) is allowed


def test_allowing_the_index_page_allows_only_its_folder():
    body = EVERYONE + "Disallow: /\nAllow: /docs/index.html"
    assert allows(body, "http://h/docs/")
    assert allows(body, "http://h/docs/index.html")
    assert not allows(body, "http://h/docs/index.htm")
    assert not allows(body, "http://h/docs/other")
    assert not allows(EVERYONE + "Disallow: /docs/index.html\nDisallow: /d", "http://h/docs/")


def test_lines_are_truncated_as_by_google():
    path = "/x/" + "a" * (2083 * 8 - len("disallow: /x/") - 2)
    body = f"{EVERYONE}disallow: {path}/cut off"
    assert not allows(body, f"http://h{path}/other")
    assert allows(body, f"http://h{path}other")


@pytest.mark.parametrize("parameter", [";p", "?q", "/;", "//"])
def test_only_slashes_separate_paths_in_a_rule(parameter):
    assert not allows(f"{EVERYONE}Disallow: /a{parameter}", f"http://h/a{parameter}x")
    assert allows(f"{EVERYONE}Disallow: /a{parameter}", "http://h/ax")


def test_an_html_page_instead_of_robots_txt_forbids_nothing():
    page = "<!DOCTYPE html>\n<html><head><title>Disallow: /</title>\n<style>a:hover{color:red}</style></head></html>"
    assert allows(page)


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        ("5", 5.0),
        ("0.5", 0.5),
        ("0,5", 0.5),
        ("5 seconds", 5.0),
        ("1e9", 1e9),
        *((x, None) for x in ("nan", "-1", "inf", "x", "")),
    ],
)
def test_a_crawl_delay_is_a_number_of_seconds_or_nothing(value, delay):
    assert Robots(f"{EVERYONE}Crawl-delay: {value}".encode(), "sluice").crawl_delay() == delay


def test_the_longest_of_several_crawl_delays_applies():
    body = b"User-agent: sluice\nCrawl-delay: 2\nCrawl-delay: 7\n\nUser-agent: sluice\nCrawl-delay: 3"
    assert Robots(body, "sluice").crawl_delay() == 7.0


def test_sitemaps_are_listed_from_anywhere_without_duplicates():
    body = b"sitemap: http://h/a\nUser-agent: x\nSite-map: http://h/b\nDisallow: /\nSITEMAP:http://h/a"
    assert Robots(body, "sluice").sitemaps == ("http://h/a", "http://h/b")


def opted_out(body, url="http://h/page"):
    return Robots(body.encode(), "sluice").ai_optout(url)


@pytest.mark.parametrize(
    "agent", ["GPTBot", "ccbot", "Google-Extended", "ClaudeBot/1.0", "Applebot-Extended", "AI2Bot"]
)
def test_a_site_that_forbids_an_ai_crawler_by_name_has_opted_out(agent):
    body = f"User-agent: {agent}\nDisallow: /"
    assert opted_out(body)
    assert allows(body)


@pytest.mark.parametrize(
    "body",
    [
        "User-agent: *\nDisallow: /",
        "User-agent: GPTBot\nDisallow: /private",
        "User-agent: GPTBot\nDisallow:",
        "User-agent: GPTBot\nAllow: /\n\nUser-agent: *\nDisallow: /",
        "User-agent: Googlebot\nDisallow: /",
        "User-agent: *\nContent-Signal: search=yes, ai-input=no",
        "User-agent: *\nContent-Signal: ai-train=yes",
        "User-agent: other\nContent-Signal: ai-train=no",
        "",
    ],
)
def test_a_site_without_rules_for_ai_crawlers_has_not_opted_out(body):
    assert not opted_out(body)


def test_only_paths_forbidden_to_the_ai_crawler_are_opted_out():
    body = "User-agent: CCBot\nUser-agent: other\nDisallow: /art/\nAllow: /art/free\n\nUser-agent: GPTBot\nDisallow: /x"
    assert opted_out(body, "http://h/art/1")
    assert opted_out(body, "http://h/x")
    assert not opted_out(body, "http://h/art/free")
    assert not opted_out(body, "http://h/other")


@pytest.mark.parametrize(
    "body",
    [
        "User-Agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /",
        "User-Agent: *\nAllow: /\nContent-signal: ai-train = no",
        "Content-Signal: ai-train=no\nUser-agent: x\nDisallow: /",
        "User-agent: sluice\nContent-Signal: ai-train=no\n\nUser-agent: *\nContent-Signal: ai-train=yes",
        "User-agent: sluice\nDisallow: /x\n\nUser-agent: *\nContent-Signal: ai-train=no",
        "User-agent: *\nContent-Usage: train-ai=n",
        "User-agent: *\nContent-Signal: ai-train=yes, ai-train=no",
    ],
)
def test_a_content_signal_against_training_is_an_opt_out(body):
    assert opted_out(body)
    assert allows(body)


def test_the_signal_with_the_longest_path_applies():
    body = "User-agent: *\nContent-Usage: train-ai=n\nContent-Usage: /open/ train-ai=y"
    assert opted_out(body, "http://h/page")
    assert not opted_out(body, "http://h/open/page")


def test_a_signal_for_our_agent_overrides_the_one_for_all():
    ours = "User-agent: sluice\nContent-Signal: ai-train=yes\nAllow: /\n"
    assert not opted_out(f"{ours}\n{EVERYONE}Content-Signal: ai-train=no\nAllow: /")
