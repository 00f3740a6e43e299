"""Formats the explanation of `why` as text."""

import json
from datetime import datetime
from typing import Any

from tasks.stages.crawl.why import time_of

Found = dict[str, Any]

_DAY_S = 86400
_LEFT = 12


def render(found: Found) -> str:
    """Returns the text of what `tasks.stages.crawl.why.why` returned."""
    lines = [found["url"] or found["asked"], _line("verdict", found["verdict"])]
    if found["url"] is None:
        return "\n".join(lines)
    lines += [_line("", f"also: {one['by']}: {one['says']}") for one in found["obstacles"][1:]]
    place = f"{found['partition']}, host {found['host']}, domain {found['domain']}"
    lines += ["", _line("partition", place), *_origin(found), *_known(found["known"]), *_tried(found), *_listed(found)]
    lines += ["", *_rules(found["rules"]), *_policy(found["policy"]), *_pace(found["pace"])]
    read = ", ".join(found["artifacts"].values()) or "no artifact: nothing was crawled yet"
    return "\n".join([*lines, "", f"read from: {read}"])


def verdict(found: Found) -> str:
    """Returns the URL and its verdict in one line, with a tab between."""
    return f"{found['url'] or found['asked']}\t{found['verdict']}"


def _line(name: str, says: str) -> str:
    return f"  {name:<{_LEFT}}{says}".rstrip()


def _origin(found: Found) -> list[str]:
    lines = [_line("seed", "yes")] if found["seed"] else []
    if aside := found["set_aside"]:
        lines.append(_line("set aside", f"{aside['file']}, line {aside['line']}: it {aside['why']}"))
    if found["found_on"]:
        lines.append(_line("found on", ", ".join(found["found_on"])))
    return lines


def _known(known: Found | None) -> list[str]:
    if known is None:
        return [_line("crawl DB", "does not hold it")]
    why = f" ({known['reason']})" if known["reason"] else ""
    seen = f"depth {known['depth']}, first seen {time_of(known['first_seen'])}"
    lines = [_line("crawl DB", f"{known['status']}{why}, {known['kind']}, {seen}")]
    if known["last_fetch"]:
        lines.append(_line("last try", f"{time_of(known['last_fetch'])}, failures in a row: {known['fails']}"))
    every = f", every {known['interval_s'] / _DAY_S:.3g} days" if known["interval_s"] else ""
    lines.append(_line("due", f"{time_of(known['due'])}{every}"))
    if known["warc_path"]:
        when = f"{time_of(known['captured_at'])}, {known['record_id']}"
        lines.append(_line("capture", f"{known['warc_path']} at byte {known['warc_offset']:,}, {when}"))
    if known["canonical"]:
        lines.append(_line("canonical", f"the page names {known['canonical']} as its own address"))
    if known["takedown"]:
        lines.append(_line("takedown", f"the capture may no longer be kept: {known['takedown']}"))
    if known["terms"]:
        lines.append(_line("terms", _pairs(json.loads(known["terms"]))))
    return lines


def _tried(found: Found) -> list[str]:
    tried = found["tried"]
    if tried is None:
        return []
    status = f" {tried['http_status']}" if tried["http_status"] and not tried["reason"].startswith("http_") else ""
    not_requested = "" if tried["requested"] else ", its host was not asked"
    error = f": {tried['error']}" if tried["error"] else ""
    redirect = f" to {tried['redirect']}" if tried["redirect"] else ""
    says = (
        f"{tried['reason'] or tried['status']}{status}{redirect}{not_requested}, {time_of(tried['fetched_at'])}{error}"
    )
    return [_line("last cycle", f"{found['artifacts']['segment']}: {says}")]


def _listed(found: Found) -> list[str]:
    listed = found["listed"]
    if listed is None:
        return []
    where = found["artifacts"]["fetchlist"]
    return [_line("listed", f"{where}: place {listed['place']:,} of {listed['of']:,}, score {listed['score']:.3g}")]


def _rules(rules: Found | None) -> list[str]:
    if rules is None:
        return [_line("robots.txt", "of its site is not in the crawl DB")]
    decision = rules["decision"]
    verb = "allowed" if decision["allowed"] else "forbidden"
    where = f" by line {decision['line']}, for {decision['group']}: {decision['rule']}" if decision["line"] else ""
    if rules["robots_txt"] != "ok":
        where = " (there is none)"
    stale = "" if rules["holds"] else "; older than a day, so it is fetched anew before the next page"
    lines = [_line("robots.txt", f"{verb}{where}, read {time_of(rules['fetched_at'])}{stale}")]
    stated = {f"{place}.{name}": value for place, terms in rules["terms"].items() for name, value in terms}
    return [*lines, _line("states", _pairs(stated))] if stated else lines


def _policy(policy: Found | None) -> list[str]:
    if policy is None:
        return []
    denied = f"denied by {policy['denied_by']}; " if policy["denied_by"] else ""
    sent = f", sent: {', '.join(policy['headers'])}" if policy["headers"] else ""
    every = f", every {policy['interval_s'] / _DAY_S:.3g} days" if policy["interval_s"] else ""
    says = f"{denied}pause {policy['delay_s']:g} s, at most {policy['max_pages']:,} pages a cycle{every}{sent}"
    return [_line("hosts file", f"{says} ({policy['from']})")]


def _pace(pace: Found) -> list[str]:
    learned = [
        f"{name} {pace[field]:.3g} s"
        for name, field in (("Crawl-delay", "crawl_delay_s"), ("answers in", "latency_s"))
        if pace[field]
    ]
    until: datetime | None = pace["backoff_until"]
    away = f", to be left alone until {time_of(until)}" if until else ""
    failed = f", failures in a row: {pace['failures']}" if pace["failures"] else ""
    lines = [_line("host", f"pause {pace['delay_s']:.3g} s{''.join(f', {one}' for one in learned)}{failed}{away}")]
    if pace["reasons"]:
        counts = ", ".join(f"{reason} {count:,}" for reason, count in pace["reasons"].items())
        lines.append(_line("", f"last cycle: {pace['requests']:,} of {pace['cap']:,} requests ({counts})"))
    return lines


def _pairs(values: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())
