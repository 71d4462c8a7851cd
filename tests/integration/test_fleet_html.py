"""The fleet page in a real browser: what kills the jobs is on its first screen, and nothing foreign loads or runs."""

from __future__ import annotations

import re
import time

import fleets
import pytest

pytest.importorskip("selenium", reason="selenium drives the browser: pip install -e '.[test]'")
from test_html_report import OWNED, SIZE, browser, foreign, opened, pytestmark  # noqa: F401

from roundk.analyze.batch import fleet, topology
from roundk.analyze.output import fleethtml


def written(table, path, placed=None):
    path.write_text(fleethtml.render(fleet.fleet(table, placed)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    placed = topology.read(fleets.topology(folder / "t.csv", [f"node-{n:03d}" for n in range(120)]))
    return written(fleets.mixed(), folder / "fleet #1 & more.html", placed)


@pytest.mark.parametrize("dark", [False, True])
def test_first_screen_says_what_kills_the_jobs(opened, page, dark):  # noqa: F811
    browser = opened(page, dark=dark)  # noqa: F811
    for ident in ("headline", "causes", "back", "costs"):
        box = browser.execute_script(
            f"const b = document.getElementById('{ident}').getBoundingClientRect(); return [b.top, b.bottom, b.right]"
        )
        assert 0 <= box[0] < box[1] <= SIZE[1], ident
        assert box[2] <= SIZE[0]
    # As the plan of `fleets.mixed` says.
    assert "most by the network (75, 33.3 %, LINK_FLAP " in browser.find_element("id", "headline").text
    causes = browser.find_element("id", "causes").text
    for name, count in (("network", 75), ("host", 45), ("undetermined", 45), ("code", 30), ("GPU", 30)):
        assert re.search(rf"^{name}\n{count}\n", causes, re.MULTILINE), name
    back = browser.find_element("id", "back").text
    assert "port node-017:mlx5_3:1" in back
    assert "host node-042" in back
    assert "GPU-hours lost" in browser.find_element("id", "costs").text
    assert browser.get_log("browser") == []
    assert foreign(browser) == []


@pytest.mark.parametrize("size", [(390, 844), SIZE, (1920, 1080)])
def test_page_is_no_wider_than_the_screen(opened, page, size):  # noqa: F811
    browser = opened(page, size=size)  # noqa: F811
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]


def test_bars_are_as_long_as_their_counts(opened, page):  # noqa: F811
    browser = opened(page)  # noqa: F811
    wide = browser.execute_script(
        "return [...document.querySelectorAll('.bar.category')].map("
        "(bar) => [...bar.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0))"
    )
    assert [round(one / wide[0], 2) for one in wide] == [1, 0.6, 0.6, 0.4, 0.4]


def test_runs_are_filtered_and_sorted(opened, page):  # noqa: F811
    browser = opened(page)  # noqa: F811
    browser.find_element("id", "filter").send_keys("node-042 oom")
    shown = browser.find_element("id", "shown").text
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#all tbody tr')]"
        ".filter((row) => !row.hidden).map((row) => row.innerText)"
    )
    assert shown == f"{len(rows)} of 300 runs"
    assert rows
    assert all("node-042" in row and "OOM_KILLED" in row for row in rows)
    browser.find_element("id", "filter").clear()
    lost = "return [...document.querySelectorAll('#all tbody tr')].map((row) => row.cells[8].textContent)"
    for falling in (False, True):
        browser.execute_script("document.querySelectorAll('#all th')[8].click()")
        cells = browser.execute_script(lost)
        numbers = [float(cell.replace(",", "")) for cell in cells if cell]
        assert numbers == sorted(numbers, reverse=falling)
        assert cells[len(numbers) :] == [""] * (300 - len(numbers))


@pytest.mark.parametrize("policy", [True, False])
def test_names_that_are_markup_are_shown_and_do_not_run(opened, tmp_path, policy):  # noqa: F811
    told = {"culprit_hosts": [OWNED], "cause": "HOST_STALL", "group": OWNED, "op": OWNED, "onset_at": fleets.START}
    rows = [
        fleets.run(f"{OWNED}{n}", [OWNED, "a", "b", "c", "d", "e"], job=f"{OWNED}{n % 8}", **told) for n in range(16)
    ]
    rows.append(fleets.run("x", status="error", problem=OWNED))
    file = tmp_path / "t.csv"
    file.write_text(f'host,rack,rail\n"{OWNED}",{OWNED},{OWNED}\na,1,1\n')
    path = written(fleets.table(rows), tmp_path / "page.html", topology.read(file))
    # Without the page's own policy too: escaping alone has to do.
    bare, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
    assert count == 1
    path.write_text(path.read_text() if policy else bare)
    browser = opened(path)  # noqa: F811
    browser.find_element("id", "filter").send_keys("img")
    browser.execute_script("document.querySelectorAll('#all th')[0].click()")
    time.sleep(0.3)
    text = browser.execute_script("return document.body.innerText")
    assert text.count(OWNED) > 20
    assert f"host {OWNED}" in text
    assert browser.execute_script("return window.owned") is None
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.execute_script("return document.scripts.length") == 1
    assert foreign(browser) == []
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("rows", [[], [fleets.run("a", status="healthy")], [fleets.run("a", status="error")]])
def test_pages_of_nothing_are_quiet(opened, tmp_path, rows):  # noqa: F811
    browser = opened(written(fleets.table(rows), tmp_path / "page.html"))  # noqa: F811
    assert browser.find_element("id", "headline").text
    assert browser.get_log("browser") == []
