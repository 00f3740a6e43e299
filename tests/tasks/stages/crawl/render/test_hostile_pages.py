"""Pages that try to reach a private network, other windows, or the disk. With real Chromium.

The test site is the only loopback server that the guard allows; `inside` acts as the private network. The soak tests
remove a protection and see a leak: run them after a change of a page here.
"""

import shutil
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tasks.stages.crawl.http.address import Grants
from tasks.stages.crawl.render.proxy import AddressGuard
from tests.soak import soak_but
from tests.tasks.stages.crawl.render.test_guard import Names
from tests.tasks.stages.crawl.site import PrivateServer, Site


class Open(AddressGuard):
    """No guard: verifies that a test would detect a leak."""

    def __init__(self, port):
        super().__init__(Names(), Grants(allow_loopback=True))

    def for_page(self, host):
        return self

    async def addresses(self, scheme, authority):
        return [("127.0.0.1", int(authority.rpartition(":")[2]))]


# Each of them tries to send its name to the private network.
WAYS = """<!doctype html><html><head>
<link rel="preconnect" href="http://127.0.0.1:PORT/"><link rel="dns-prefetch" href="http://127.0.0.1:PORT/">
<link rel="prefetch" href="http://127.0.0.1:PORT/prefetch"><link rel="stylesheet" href="http://127.0.0.1:PORT/style">
<link rel="preload" as="script" href="http://127.0.0.1:PORT/preload">
<link rel="icon" href="http://127.0.0.1:PORT/icon"><link rel="manifest" href="http://127.0.0.1:PORT/manifest">
<script type="speculationrules">{"prerender": [{"source": "list", "urls": ["http://127.0.0.1:PORT/prerender"]}],
 "prefetch": [{"source": "list", "urls": ["http://127.0.0.1:PORT/speculation"]}]}</script>
<meta http-equiv="refresh" content="0.2; url=http://127.0.0.1:PORT/refresh">
</head><body><p id="said">waiting</p>
<img src="http://127.0.0.1:PORT/image"><video src="http://127.0.0.1:PORT/video"></video>
<iframe src="http://127.0.0.1:PORT/iframe"></iframe><object data="http://127.0.0.1:PORT/object"></object>
<embed src="http://127.0.0.1:PORT/embed"><script src="http://127.0.0.1:PORT/script"></script>
<iframe srcdoc="<script>fetch('http://127.0.0.1:PORT/srcdoc', {mode: 'no-cors'})</script>"></iframe>
<form id="form" method="post" action="http://127.0.0.1:PORT/form"></form>
<a id="ping" href="#x" ping="http://127.0.0.1:PORT/ping">x</a>
<script>
const to = path => "http://127.0.0.1:PORT/" + path;
const plain = {mode: "no-cors"};
const tries = [
  () => fetch(to("fetch"), plain), () => fetch(to("post"), {method: "POST", body: "x", mode: "no-cors"}),
  () => fetch("/to-inside", plain), () => fetch("http://localhost:PORT/name", plain),
  () => fetch("http://2130706433:PORT/number", plain), () => fetch("http://0x7f.1:PORT/hex", plain),
  () => fetch("http://[::ffff:127.0.0.1]:PORT/mapped", plain), () => fetch("http://[::1]:PORT/v6", plain),
  () => fetch("http://0.0.0.0:PORT/zero", plain), () => fetch("http://169.254.169.254/latest/meta-data/", plain),
  () => fetch("http://trick.example:PORT/trick", plain), () => fetch("http://trick.example/trick", plain),
  () => fetch("https://trick.example/tls", plain), () => fetch("https://127.0.0.1:PORT/tls", plain),
  () => { const x = new XMLHttpRequest(); x.open("GET", to("xhr")); x.send(); },
  () => { new WebSocket("ws://127.0.0.1:PORT/socket"); }, () => { new WebSocket("wss://127.0.0.1:PORT/socket"); },
  () => { new EventSource(to("events")); }, () => { navigator.sendBeacon(to("beacon"), "x"); },
  () => { new Worker(URL.createObjectURL(new Blob([`fetch("${to("worker")}", {mode: "no-cors"})`]))); },
  () => { new SharedWorker(URL.createObjectURL(new Blob([`fetch("${to("shared")}", {mode: "no-cors"})`]))); },
  () => import(to("module")), () => { window.open(to("popup")); },
  () => { document.getElementById("form").submit(); }, () => { document.getElementById("ping").click(); },
];
Promise.allSettled(tries.map(one => Promise.resolve().then(one)))
  .then(() => { document.getElementById("said").textContent = "all tried"; });
setTimeout(() => { location.href = to("location"); }, 100);
</script></body></html>"""


def to_inside(inside):
    return lambda _: web.Response(status=302, headers={"Location": f"http://127.0.0.1:{inside.port}/redirected"})


def test_no_page_reaches_a_private_network(render, inside):
    with Site({"/to-inside": to_inside(inside)}) as site:
        rendered = render(site, WAYS.replace("PORT", str(inside.port)), settle_ms=1000)
        assert inside.requests == []
        assert b'<p id="said">all tried</p>' in rendered.document.html
        assert "/to-inside" in site.paths()
    for server in (f"127.0.0.1:{inside.port}", "169.254.169.254", "trick.example", "trick.example:443"):
        assert server in rendered.refused


@pytest.mark.soak
def test_without_the_guard_the_page_reaches_the_private_network(render, inside):
    with Site({"/to-inside": to_inside(inside)}) as site:
        render(site, WAYS.replace("PORT", str(inside.port)), guard=Open, settle_ms=1000)
    ways = {"fetch", "redirected", "name", "trick", "xhr", "socket", "events", "worker", "script", "style", "module"}
    assert {f"/{way}" for way in ways} <= set(inside.requests)
    # Always refused: other windows and frames, other URLs of this host, methods other than GET.
    never = {"popup", "iframe", "object", "embed", "form", "post", "beacon", "ping", "refresh", "location", "image"}
    assert not {f"/{way}" for way in never} & set(inside.requests)


DATAGRAMS = """<p id="said">waiting</p><script>
const frame = document.createElement("iframe");
document.body.append(frame);
const other = window.open("about:blank");
const found = [self, frame.contentWindow, other || self].filter(one => one.RTCPeerConnection);
for (const one of found) {
  const peer = new one.RTCPeerConnection({iceServers: [
    {urls: "stun:127.0.0.1:PORT"}, {urls: "turn:127.0.0.1:PORT", username: "a", credential: "b"},
    {urls: "turn:127.0.0.1:PORT?transport=tcp", username: "a", credential: "b"}]});
  peer.createDataChannel("x");
  peer.createOffer().then(offer => peer.setLocalDescription(offer));
  const direct = new one.RTCPeerConnection();
  direct.createDataChannel("x");
  direct.createOffer().then(async offer => {
    await direct.setLocalDescription(offer);
    const sdp = offer.sdp.replace(/a=setup:actpass/g, "a=setup:active");
    await direct.setRemoteDescription({type: "answer", sdp});
    for (const [kind, more] of [["udp", ""], ["tcp", " tcptype passive"]]) {
      const candidate = `candidate:1 1 ${kind} 2130706431 127.0.0.1 PORT typ host${more}`;
      await direct.addIceCandidate({candidate, sdpMid: "0", sdpMLineIndex: 0});
    }
  });
}
try { new WebTransport("https://127.0.0.1:PORT/transport").ready.catch(() => {}); } catch (error) {}
setTimeout(() => { said.textContent = "tried " + found.length; }, 1500);
</script>"""


@pytest.fixture
def send(render, inside, monkeypatch):
    def run(*, flags=True, script=True):
        from tasks.stages.crawl.render import browser

        if not flags:
            monkeypatch.setattr(browser, "FLAGS", ("--disable-gpu", "--disable-dev-shm-usage"))
        if not script:
            monkeypatch.setattr(browser, "_REMOVE_APIS", "")
        with Site({}) as site:
            rendered = render(site, DATAGRAMS.replace("PORT", str(inside.port)), settle_ms=2500)
        return rendered.document.html.partition(b'<p id="said">')[2].partition(b"</p>")[0], inside.requests

    return run


def test_no_datagram_leaves_the_browser_because_the_page_apis_are_removed(send):
    assert send(flags=False) == (b"tried 0", [])


def test_no_datagram_leaves_the_browser_because_its_flags_forbid_it(send):
    tried, requests = send(script=False)
    assert tried != b"tried 0"
    assert requests == []


@pytest.mark.soak
def test_without_both_protections_datagrams_leave_the_browser(send):
    assert "udp" in send(flags=False, script=False)[1]


class Shop(AddressGuard):
    """Resolves one https site to this machine."""

    def __init__(self, port):
        super().__init__(Names(), Grants())
        self.port = port

    def for_page(self, host):
        return self

    async def addresses(self, scheme, authority):
        assert (scheme, authority) == ("https", "shop.example:443")
        return [("127.0.0.1", self.port)]


@pytest.mark.parametrize("trusted", soak_but({0}, [False, True]))
def test_an_https_site_needs_a_valid_certificate(render, tmp_path, monkeypatch, trusted):
    from tasks.stages.crawl.render import browser

    if trusted:
        monkeypatch.setattr(browser, "FLAGS", (*browser.FLAGS, "--ignore-certificate-errors"))
    page = """<p id="said"></p><script>
    fetch("/data").then(one => one.text()).then(text => { said.textContent = text; })</script>"""
    server = PrivateServer(self_signed(tmp_path, "shop.example"))
    try:
        rendered = render(server, page, url="https://shop.example/", guard=Shop)
    finally:
        server.close()
    assert set(server.requests) == {"/data" if trusted else "tcp"}
    assert (b'<p id="said">hi</p>' in rendered.document.html) is trusted


def self_signed(folder, name):
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file = folder / "server.pem"
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def test_popups_dialogs_downloads_and_file_choosers_are_blocked(render, monkeypatch):
    # Not pytest's folder, where the path of Chromium's socket would be too long.
    folder = tempfile.mkdtemp()
    monkeypatch.setenv("TMPDIR", folder)
    page = """<p id="said">text</p><input type="file" id="file"><a id="save" download="x.bin" href="/file">x</a>
    <a id="blob" download="blob.bin">x</a><script>
    alert("a"); confirm("b"); prompt("c"); window.onbeforeunload = () => "stay";
    window.open("/popup"); (window.open("about:blank") || {}).location = "/popup2";
    blob.href = URL.createObjectURL(new Blob(["secret of the page"]));
    for (const one of [file, save, blob]) one.click();
    file.showPicker && setTimeout(() => { try { file.showPicker(); } catch (error) {} }, 50);
    window.print(); said.textContent = "went on";
    </script><iframe src="/attachment"></iframe>"""
    attachment = web.Response(body=b"x", headers={"Content-Disposition": "attachment; filename=x.bin"})
    with Site({"/file": lambda _: attachment, "/attachment": lambda _: attachment}) as site:
        rendered = render(site, page)
        # A link with the attribute download is requested before the browser refuses to save it.
        assert set(site.paths()) <= {"/file"}
    assert b'<p id="said">went on</p>' in rendered.document.html
    left = [path for path in Path(folder).rglob("*") if path.is_file()]
    saved = [path for path in left if path.suffix == ".bin" or b"secret of the page" in path.read_bytes()]
    shutil.rmtree(folder)
    assert saved == []


def test_a_page_has_no_service_workers_no_permissions_and_no_devices(render):
    page = """<p id="workers"></p><p id="said">waiting</p><script>
    const frame = document.createElement("iframe");
    document.body.append(frame);
    workers.textContent = "serviceWorker" in navigator || "serviceWorker" in frame.contentWindow.navigator;
    const names = ["geolocation", "notifications", "camera", "microphone", "clipboard-read", "midi"];
    Promise.all(names.map(name => navigator.permissions.query({name}).then(one => one.state, () => "denied")))
      .then(states => { said.textContent = states.includes("granted") ? "some" : "none"; });
    </script><script>navigator.serviceWorker.register("/worker.js")</script>"""
    with Site({"/worker.js": "fetch('/from-the-worker')"}) as site:
        html = render(site, page).document.html
        assert b'<p id="workers">false</p><p id="said">none</p>' in html
        assert site.paths() == []


def test_the_browser_makes_no_request_of_its_own(render):
    with Site({}) as site:
        rendered = render(site, "<p>text</p>", settle_ms=4000)
    assert rendered.refused == ()
    assert rendered.received == 0


def test_two_pages_of_a_site_share_no_state(render):
    page = """<p id="said"></p><script>
    said.textContent = document.cookie + localStorage.getItem("x") + "|";
    document.cookie = "seen=1; max-age=9999"; localStorage.setItem("x", "seen");</script>"""
    with Site({}) as site:
        for _ in range(2):
            assert b'<p id="said">null|</p>' in render(site, page).document.html


def test_the_browser_sees_nothing_of_our_environment(render, browsers, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a key of the store")
    seen = []

    async def look(_):
        for one in browsers():
            seen.append(Path(f"/proc/{one.pid}/environ").read_bytes())
        return web.Response()

    with Site({"/look": look}) as site:
        render(site, "<script>fetch('/look')</script>")
    assert seen
    assert not any(b"a key of the store" in environment for environment in seen)
