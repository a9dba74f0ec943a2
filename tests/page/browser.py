#!/usr/bin/env python3
"""browser.py [--pictures DIR]: tries the status page in a headless Chromium, light and dark, wide and as a phone.

The page and its guards are those that the controller answers with, the answers behind it the golden ones that tests/it
holds to the code (tests/golden/page), and `many`, which has the clusters of one of these again and again. With --pictures it also writes the pictures of docs/images.
"""
import base64, http.server, json, os, pathlib, re, subprocess, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/page"
PAGE = (ROOT / "src/controller/page/page.html").read_bytes()
GUARDS = [line.split(": ", 1) for line in (GOLDEN / "headers.txt").read_text().split("\n\n")[0].splitlines()[1:]]
WIDE, PHONE = (1200, 800), (360, 740)
PATIENCE = 60


def answer(name):
    """The golden answer of that name; `many` is made of `everyday`, 300 clusters in the same order of urgency."""
    if name != "many":
        return json.loads((GOLDEN / f"{name}.json").read_text())
    told = answer("everyday")
    found = told["clusters"]
    told["clusters"] = [found[number * len(found) // 300] | {"name": f"cluster-{number}"} for number in range(300)]
    return told


class Handler(http.server.BaseHTTPRequestHandler):
    """`/NAME/` is the page, and `/NAME/status.json` the answer of that name."""
    asked, gone = [], set()

    def do_GET(self):
        self.asked.append(self.path)
        found = re.fullmatch(r"/(\w+)/(status\.json)?", self.path)
        if not found or found[1] in self.gone:
            self.send_error(404)
            return
        body = json.dumps(answer(found[1])).encode() if found[2] else PAGE
        self.send_response(200)
        for name, value in GUARDS:
            if name not in ("content-type", "content-length"):
                self.send_header(name, value)
        self.send_header("content-type", "application/json" if found[2] else "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Chromium:
    """A browser with one tab, spoken to by the DevTools protocol over two pipes."""

    def __init__(self, folder):
        ours, theirs = os.pipe(), os.pipe()  # what we say, what it says
        read, write = os.dup(ours[0]), os.dup(theirs[1])
        for end in (ours[0], theirs[1]):
            os.close(end)

        def begin():  # it reads 3 and writes 4
            a, b = os.dup(read), os.dup(write)
            os.dup2(a, 3), os.dup2(b, 4)

        self.log = open(pathlib.Path(folder) / "log", "wb")
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--force-color-profile=srgb", f"--user-data-dir={folder}/profile", "about:blank"],
            preexec_fn=begin, close_fds=False, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        os.close(read), os.close(write)
        self.say, self.hear = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb", 0)
        self.number, self.buffer, self.events = 0, b"", []
        # The browser answers before it has opened its tab.
        end = time.monotonic() + PATIENCE
        while not (tabs := [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]):
            assert time.monotonic() < end, f"the browser has no tab after {PATIENCE} s"
            time.sleep(0.05)
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=tabs[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        self.say.write(json.dumps(message).encode() + b"\0")
        while True:
            heard = self.next()
            if heard.get("id") == self.number:
                if "error" in heard:
                    raise AssertionError(f"{method}: {heard['error']}")
                return heard["result"]
            self.events.append(heard)

    def next(self):
        while b"\0" not in self.buffer:
            chunk = self.hear.read(1 << 16)
            assert chunk, "the browser is gone"
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(line)

    def value(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    def until(self, what, script):
        end = time.monotonic() + PATIENCE
        while not self.value(script):
            assert time.monotonic() < end, f"waited {PATIENCE} s for {what}; the page says: {self.value('document.body.innerText')[:2000]}"
            time.sleep(0.05)

    def show(self, url, size, scheme, state="shown"):
        # An empty page comes between, so that no part of the former page is taken for the new one.
        self.call("Page.navigate", url="about:blank")
        self.until("an empty page", "location.href === 'about:blank'")
        self.events.clear()
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if size == PHONE else 1, mobile=size == PHONE)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.until(f"{url} in state {state}", f"location.href === {json.dumps(url)} && document.body && document.body.dataset.state === '{state}'")

    def complaints(self):
        """What scripts threw, dialogs that opened, and what the page's policy refused."""
        self.value("1")
        told = {"Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [event for event in self.events if event.get("method") in told]

    def picture(self, path, most):
        height = self.value("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        height = min(height, most)
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def end(self):
        self.say.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


# Relative luminance of WCAG, of the ground that text stands on and of the text.
CONTRAST = """(() => {
  const part = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number); return .2126 * part(r) + .7152 * part(g) + .0722 * part(b); };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)|transparent/.test(c)) return c; } return 'rgb(255,255,255)'; };
  const weak = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('[hidden]') || e.matches('script, style, noscript, meter') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const pair = [light(getComputedStyle(e).color), light(ground(e))].sort((a, b) => b - a);
    if ((pair[0] + .05) / (pair[1] + .05) < 4.5) weak.push(e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40));
  }
  return weak.slice(0, 5);
})()"""
TOO_WIDE = """(() => [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)).slice(0, 5))()"""


def check(browser, base, name, size, scheme):
    browser.show(f"{base}/{name}/", size, scheme)
    told = answer(name)
    where = f"{name}, {size[0]} wide, {scheme}"
    if name != "many":
        browser.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        browser.until("all that was opened", "[...document.querySelectorAll('details')].every(d => d.querySelector('.body').children.length)")
        rows = browser.value("[...document.querySelectorAll('tbody tr:not(.more)')].map(e => e.cells[0].textContent)")
        wanted = [node["name"] for cluster in told["clusters"] for node in cluster["nodes"]] + [node["name"] for node in told["loose"]]
        assert len(rows) == len(wanted) and all(name in row for name, row in zip(wanted, rows)), (where, rows)
    assert browser.value("document.documentElement.scrollWidth <= innerWidth"), f"{where}: it scrolls sideways: {browser.value(TOO_WIDE)}"
    assert browser.value("document.querySelectorAll('#clusters > details').length") == len(told["clusters"]), where
    shown = browser.value("[...document.querySelectorAll('#clusters > details .name')].map(e => e.textContent)")
    for cluster, text in zip(told["clusters"], shown):
        assert cluster["name"] in text and cluster["namespace"] in text, (where, cluster["name"], text)
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 3 * 64) == (scheme == "dark"), (where, ground)
    assert browser.value(CONTRAST) == [], (where, browser.value(CONTRAST))
    assert browser.value("document.scripts.length") == 1 and not browser.value("document.querySelector('img, svg, iframe, object')"), where
    assert browser.complaints() == [], (where, browser.complaints())


def hostile(browser, base):
    """Names and messages stay text, whatever stands in them."""
    browser.show(f"{base}/hostile/", WIDE, "light")
    browser.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.until("the nodes", "document.querySelectorAll('td').length")
    text = browser.value("document.body.innerText")
    for part in ("<script>document.body.innerHTML=\"pwned\"</script>", "<img src=x onerror=alert(1)>", "{{7*7}} ${alert(4)} &lt;b&gt;", "__proto__"):
        assert part in text, f"{part!r} is not shown as it is:\n{text}"


def used(browser, base):
    """What a person does: filter, search, open; and what stays so when new answers come."""
    browser.show(f"{base}/everyday/", WIDE, "light")
    runs = browser.value("document.getElementById('runs').innerText")
    for part in ("to-1-34", "3/7", "RangesKeepQuorum", "machine-4, shop/CassandraCluster/orders", "machine-2 did not boot within 600 s"):
        assert part in runs, f"{part!r} is not told of the machines:\n{runs}"
    visible = "[...document.querySelectorAll('#clusters > details')].filter(d => d.offsetParent).length"
    everything = browser.value(visible)
    browser.value("document.querySelector('button[data-level=critical]').click()")
    assert browser.value(visible) == 1
    browser.value("document.querySelector('button[data-level=critical]').click()")
    find = "(text => { const i = document.querySelector('input'); i.value = text; i.dispatchEvent(new Event('input')); })"
    browser.value(find + "('MACHINE-6')")
    assert browser.value(visible) == 1, "the cluster that has a node on machine-6"
    browser.value(find + "('')")
    assert browser.value(visible) == everything
    assert browser.value("document.querySelector('h1').textContent") == "1 cluster needs you"
    assert browser.value("document.title").startswith("✕ 1")
    browser.value("document.querySelector('#clusters > details summary').click()")
    assert not browser.value("document.querySelector('#clusters > details').open")
    before = len(Handler.asked)
    end = time.monotonic() + PATIENCE
    while len(Handler.asked) < before + 2:
        assert time.monotonic() < end, "it does not ask again"
        browser.value("1")
        time.sleep(0.1)
    assert not browser.value("document.querySelector('#clusters > details').open"), "it stays closed"
    Handler.gone.add("everyday")
    browser.until("what it says of a controller that is gone", "!document.getElementById('lost').hidden")
    assert browser.value(visible) == everything, "what was known stays"
    Handler.gone.clear()
    browser.until("the controller's return", "document.getElementById('lost').hidden")


def main():
    pictures = pathlib.Path(sys.argv[2]) if sys.argv[1:2] == ["--pictures"] else None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as folder:
        browser = Chromium(folder)
        try:
            begun = time.monotonic()
            for name in ("everyday", "fine", "many", "hostile", "empty", "waiting"):
                for size in (WIDE, PHONE):
                    for scheme in ("light", "dark"):
                        check(browser, base, name, size, scheme)
            hostile(browser, base)
            used(browser, base)
            if pictures:
                for name, size, scheme, file in (("everyday", WIDE, "light", "status-light"), ("everyday", WIDE, "dark", "status-dark"),
                                                 ("everyday", PHONE, "light", "status-phone"), ("fine", WIDE, "light", "status-fine")):
                    browser.show(f"{base}/{name}/", size, scheme)
                    browser.picture(pictures / f"{file}.png", 1500)
            print(f"the status page: 24 views and what a person does in {time.monotonic() - begun:.0f} s")
        finally:
            browser.end()
            server.shutdown()


main()
