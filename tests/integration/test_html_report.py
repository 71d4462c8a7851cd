"""The page in a real browser: the sentence is on the first screen, nothing is loaded, nothing foreign runs."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import dumps
import pytest
import wide

selenium = pytest.importorskip("selenium", reason="selenium drives the browser: pip install -e '.[test]'")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402

from roundk.analyze import diagnose  # noqa: E402
from roundk.analyze.case import build  # noqa: E402
from roundk.analyze.output import html  # noqa: E402
from roundk.analyze.picture import pictures  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no browser here: apt-get install chromium chromium-driver"
)

SAMPLE = pathlib.Path(__file__).parents[2] / "sample_traces" / "never_entered"
SIZE = (1280, 800)
OWNED = "<img src=x onerror=window.owned=1><script>window.owned=1</script>"

HITS = """
const box = document.getElementById("verdict").getBoundingClientRect();
const inside = (x, y) => document.elementFromPoint(x, y)?.closest("#verdict") !== null;
return {
  top: box.top, left: box.left, bottom: box.bottom, right: box.right, wide: innerWidth, high: innerHeight,
  uncovered: [0.02, 0.5].every((share) => inside(box.left + box.width * share, box.top + 12)),
};
"""
"""Where the sentence is, and whether it, and not something over it, is what a click there meets."""


@contextlib.contextmanager
def started(*arguments):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *arguments):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def browser():
    # No name is resolved: what a page asked for anyway would be an error on its console.
    with started("--host-resolver-rules=MAP * ~NOTFOUND") as driver:
        yield driver


@pytest.fixture
def opened(browser):
    def opened(path, *, dark=False, size=SIZE):
        wide_, high = size
        metrics = {"width": wide_, "height": high, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.get("about:blank")
        for log in ("browser", "performance"):
            browser.get_log(log)
        browser.get(path.as_uri())
        return browser

    return opened


def requests(browser):
    """What the browser asked for since the page was opened, the page itself left out."""
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert sent, "the browser does not tell what it asks for"
    return [one["request"]["url"] for one in sent if one["request"]["url"] != browser.current_url]


def foreign(browser):
    """The same without what stands in the page itself."""
    return [url for url in requests(browser) if not url.startswith("data:")]


def analyzed(folder, page):
    """The page that the command makes of a folder."""
    args = [sys.executable, "-m", "roundk", "analyze", ".", "-o", str(page)]
    done = subprocess.run(args, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (1, 3), done.stderr
    return page


def written(trace, page):
    case = build(trace, now_ns=2 * 10**18, stall_ns=diagnose.STALL_NS)
    report = diagnose.report(case)
    page.write_text(html.render(case, report, pictures(case, report)), encoding="utf-8")
    return page


@pytest.fixture(scope="module", params=["8 ranks", "4,096 ranks", "a run directory"])
def page(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report #1 & more.html"
    if request.param == "a run directory":
        return analyzed(SAMPLE, path), "Rank 2 never entered all_reduce #19"
    world = 8 if request.param == "8 ranks" else 4096
    return written(wide.hung(world, world // 2 + 3), path), f"Rank {world // 2 + 3} never entered all_reduce #6"


@pytest.mark.parametrize("size", [SIZE, (1920, 1080), (390, 844)])
@pytest.mark.parametrize("dark", [False, True])
def test_sentence_is_on_the_first_screen_and_nothing_is_over_it(opened, page, size, dark):
    path, sentence = page
    browser = opened(path, dark=dark, size=size)
    assert browser.find_element("id", "verdict").text.startswith(sentence)
    seen = browser.execute_script(HITS)
    assert seen["uncovered"]
    assert (seen["wide"], seen["high"]) == size
    assert 0 <= seen["top"] < seen["bottom"] <= seen["high"] / 2
    assert 0 <= seen["left"] < seen["right"] <= seen["wide"]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]


def test_what_to_do_and_the_cause_are_on_the_first_screen(opened, page):
    browser = opened(page[0])
    for selector in ("#next", "dd.cause", "dd.culprit", "dd.where", "dd.onset", "dd.waiting"):
        box = browser.execute_script(
            "const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.top, b.bottom]", selector
        )
        assert 0 <= box[0] < box[1] <= SIZE[1]


def test_nothing_is_asked_of_a_network_and_the_console_is_quiet(opened, page):
    browser = opened(page[0])
    browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    time.sleep(0.3)
    assert foreign(browser) == []
    assert browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    assert browser.get_log("browser") == []


def test_the_watch_on_requests_sees_one(opened, tmp_path):
    page = tmp_path / "leaky.html"
    page.write_text('<img src="http://127.0.0.1:9/pixel.png"><link rel="icon" href="data:,">')
    browser = opened(page)
    time.sleep(0.3)
    assert foreign(browser) == ["http://127.0.0.1:9/pixel.png"]
    assert browser.get_log("browser")


def test_mouse_on_the_map_tells_the_rank(opened, page):
    browser = opened(page[0])
    tips = browser.find_elements("css selector", ".map .tip")
    ring = browser.find_element("css selector", "svg .ring")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", ring)
    ActionChains(browser).move_to_element(ring).perform()
    rank = re.match(r"Rank (\d+)", page[1])[1]
    assert re.fullmatch(rf"rank {rank} on node-\w+: to blame", tips[0].text)
    ActionChains(browser).move_to_element(browser.find_element("id", "verdict")).perform()
    assert tips[0].text == ""


def test_dark_pages_are_dark(opened, page):
    shades = []
    for dark in (False, True):
        browser = opened(page[0], dark=dark)
        colours = browser.execute_script(
            "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        )
        ground, ink = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
        assert abs(ground - ink) > 400
        shades.append(ground)
    assert shades[0] > 600
    assert shades[1] < 150


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The page of dumps and files whose every name is markup that would run."""
    folder = tmp_path_factory.mktemp("hostile")
    frames = [{"name": OWNED, "filename": f"/opt/{OWNED}.py", "line": 7}]
    for rank in range(4):
        entries = [dumps.entry(n, frames=frames, process_group=("0", OWNED)) for n in range(4)]
        if rank != 2:
            entries.append(dumps.scheduled(4, frames=frames, process_group=("0", OWNED)))
        whole = dumps.dump(entries, 4, groups={"0": dumps.group("0", range(4), OWNED)})
        (folder / f"<img src=x onerror=window.owned=1>_{rank}").write_bytes(dumps.pickled(whole))
    (folder / "<img src=x onerror=window.owned=1>_9").write_bytes(dumps.pickled(whole)[:200])
    return analyzed(folder, folder.parent / "hostile.html")


@pytest.mark.parametrize("policy", [True, False])
def test_names_that_are_markup_are_shown_and_do_not_run(opened, hostile, tmp_path, policy):
    told = hostile.read_text()
    page = tmp_path / "page.html"
    # Without the page's own policy too: escaping alone has to do.
    bare, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", told)
    assert count == 1
    page.write_text(told if policy else bare)
    browser = opened(page)
    time.sleep(0.3)
    assert browser.find_element("id", "verdict").text.startswith(
        "Rank 2 never entered all_reduce #5 of group <img src=x"
    )
    text = browser.execute_script("return document.body.innerText")
    assert OWNED in text
    assert "<img src=x onerror=window.owned=1>_2" in text
    assert browser.execute_script("return window.owned") is None
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.execute_script("return document.scripts.length") == 1
    assert foreign(browser) == []
    assert browser.get_log("browser") == []


def test_policy_stops_what_escaping_would_have_missed(opened, hostile, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(hostile.read_text().replace("<footer>", f"{OWNED}<footer>"))
    browser = opened(page)
    time.sleep(0.3)
    assert browser.execute_script("return document.querySelectorAll('img').length") == 1
    assert browser.execute_script("return window.owned") is None
