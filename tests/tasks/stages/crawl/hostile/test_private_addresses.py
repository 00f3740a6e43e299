"""Groups 1, 2 and 3: a crawl of public hosts reaches no private address by any way.

The crawl runs with the rules for the public web in a separate network namespace, with real servers at public and at
private addresses (see `private_net`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

APART = ["unshare", "--user", "--map-root-user", "--net"]


def run_in_private_network(store, module="private_net"):
    """Runs the crawl of a module of this folder; skips if this machine does not allow a network namespace."""
    try:
        ready = subprocess.run([*APART, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        pytest.skip(f"a network of its own needs {missing.filename}")
    if ready.returncode:
        pytest.skip(f"this machine gives no network namespace: {ready.stderr.strip()}")
    done = subprocess.run(
        [*APART, sys.executable, "-m", f"tests.tasks.stages.crawl.hostile.{module}", str(store)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_no_request_reaches_a_private_address(tmp_path):
    (tmp_path / "store").mkdir()
    result = run_in_private_network(tmp_path / "store")
    assert result["servers"] == 17 * 3 + 5
    assert result["reached"] == []
    reasons = {row["url"]: row["reason"] for row in result["rows"]}

    captured = {url for url, reason in reasons.items() if not reason}
    assert captured == {f"http://{name}.example/" for name in ("public", "many", "rebind")}
    ports = {url for url in reasons if url.startswith("http://public.example:")}
    assert {reasons.pop(url) for url in ports} == {"port"}
    assert len(ports) == 5
    # Pages that redirect to private addresses are only redirects; hosts whose robots.txt does are skipped.
    redirects = {url for url, reason in reasons.items() if reason == "redirect"}
    assert len(redirects) >= 45
    assert all(url.startswith("http://r") for url in redirects)
    robots = {url for url, reason in reasons.items() if reason == "robots_unavailable"}
    assert len([url for url in robots if url.startswith("http://q")]) >= 45
    assert {f"http://{name}.example/" for name in ("circle", "silent", "broken", "none")} <= robots
    inside = {url for url, reason in reasons.items() if reason == "private_address"}
    assert {f"http://{name}.example/" for name in ("private", "loop", "mixed", "mixed6", "metadata", "alias")} <= inside
    assert {"http://127.0.0.1/secret", "http://10.0.0.1/secret", "http://169.254.169.254/secret"} <= inside
    assert {"http://[::ffff:7f00:1]/secret", "http://[64:ff9b::a00:1]/secret", "http://[fe80::1]/secret"} <= inside
    assert {"http://metadata.google.internal/secret", "http://metadata/secret", "http://localhost/secret"} <= inside
    assert len(inside) >= 30
    rest = set(reasons) - captured - ports - redirects - robots - inside
    assert {url: reasons[url] for url in rest if reasons[url] != "redirect_broken"} == {}


def test_a_granted_host_is_reachable_and_grants_nothing_to_others(tmp_path):
    (tmp_path / "store").mkdir()
    result = run_in_private_network(tmp_path / "store", "intranet_net")
    assert result["reached"] == sorted(result["granted"])
    reasons = {row["url"]: row["reason"] for row in result["rows"]}
    captured = {f"http://{place}/" for place in ("public.example", *result["places"])}
    assert {url for url, reason in reasons.items() if not reason} == captured
    refused = {url: reason for url, reason in reasons.items() if reason}
    ports = ("wiki.corp.internal:8081", "10.20.0.6:8080", "port.example:82", "public.example:8080")
    assert {refused.pop(f"http://{place}/") for place in ports} == {"port"}
    assert refused.pop("http://leads.example/") == "redirect"
    assert set(refused.values()) == {"private_address"}
    assert len(refused) == result["refused"]
