"""The live page in a browser: what it shows, asks for and does without, by keyboard too."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from kinfolk.sched.request import Status
from kinfolk.sched.view import SequenceView

pytestmark = pytest.mark.browser

WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 320, "height": 700}


@pytest.fixture(scope="module")
def browser(browser_path):
    from playwright.sync_api import sync_playwright

    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", *quiet]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """``open_page(url)``: a page in a session of its own. Errors in it, and requests to other
    hosts, fail the test."""
    faults, contexts = [], []

    def start(url, **options):
        context = browser.new_context(viewport=WIDE, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request", lambda request: request.url.startswith(url) or faults.append(request.url)
        )
        page.goto(url + "/status")
        return page

    yield start
    for context in contexts:
        context.close()
    assert faults == []


def view(name, **fields):
    whole = SequenceView(
        *(name, Status.DECODE, 1, 1, 1200, 1300, None, 101, 99, 99, None, 5, 1024, 2.5)
    )
    return replace(whole, **fields)


@pytest.fixture
def served(make_service, make_engine, run_server):
    def start(**options):
        engine = make_engine("x")
        engine.views = (
            view("a", slot=2),
            view("b", slot=None, status=Status.WAITING, position=0, emitted=0, prompt=12345),
        )
        running = run_server(make_service(engine, **options))
        return engine, running.server.feed, running.url

    return start


def row(page, part, number=0):
    cells = page.locator(f"#{part} tbody tr").nth(number).locator("td")
    return cells.all_text_contents()


def figure(page, part, name):
    return page.locator(f"#{part} div", has=page.locator("dt", has_text=name)).locator("dd")


def test_slots_and_waiting_requests_are_shown_and_follow_what_happens(served, open_page):
    engine, _, url = served(runtime={"drafters": ("ngram",)})
    page = open_page(url)
    page.wait_for_selector("#slots tbody tr")
    assert row(page, "slots")[:8] == ["2", "decode", "1,300", "1,200", "1,024", "101", "200", "5"]
    assert row(page, "waiting")[:3] == ["waiting", "0", "12,345"]
    assert page.locator("h1").text_content() == "tiny"
    assert figure(page, "now", "running").text_content() == "1 of 8 slots"
    assert figure(page, "speculation", "drafts by").text_content() == "ngram"
    assert page.locator("#kvflash").is_hidden(), "it is off"
    engine.views = ()
    page.wait_for_selector("text=All 8 slots are free.")
    assert page.locator("#connection").text_content() == "live"


def test_what_is_kept_is_shown_by_place_with_units(served, open_page):
    engine, _, url = served(runtime={"host_bytes": 2**33, "disk_bytes": 10 * 2**30})
    counts = {"prefixes_host": 7, "host_bytes": 3 * 2**29, "prefix_hits_host": 1234, "saves": 2}
    paging = {"kvflash_tokens": 16384, "kvflash_resident_chunks": 3, "kvflash_away_chunks": 1}
    engine.stats = lambda: counts | paging | {"saved_bytes": 1536, "prefix_drops_room": 5}
    page = open_page(url)
    page.wait_for_selector("#cache tbody tr")
    assert row(page, "cache", 1) == [
        *("host", "7", "1.5 GiB of 8 GiB", "1,234", "0", "2 (1.5 KiB)", "0 (0 bytes)"),
    ]
    assert row(page, "cache", 2)[2] == "0 bytes of 10 GiB"
    assert figure(page, "cache-figures", "dropped").text_content() == "5 room"
    assert figure(page, "kvflash", "budget").text_content() == "16,384 tokens a request"
    assert figure(page, "kvflash", "on the device").text_content() == "192 tokens (75 %)"


def test_a_name_is_never_read_as_markup(served, open_page):
    name = "<img src=x onerror=alert(1)>"
    _, _, url = served(model_name=name)
    page = open_page(url)
    page.wait_for_selector("#slots tbody tr")
    assert page.locator("h1").text_content() == name
    assert page.locator("img").count() == 0


def test_the_key_is_asked_for_and_kept_for_the_session_only(served, open_page):
    _, _, url = served(api_keys=("s3cret",))
    page = open_page(url)
    page.wait_for_selector("#key-form:not([hidden])")
    assert page.locator("#status").is_hidden()
    page.wait_for_function("() => document.activeElement.id === 'key'")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=the server does not know this key")
    page.keyboard.type("s3cret")
    page.keyboard.press("Enter")
    page.wait_for_selector("#slots tbody tr")
    assert page.locator("#key-form").is_hidden()
    assert page.evaluate("[localStorage.length, document.cookie, sessionStorage.length]") == [
        *(0, "", 1),
    ]
    page.reload()
    page.wait_for_selector("#slots tbody tr")
    assert "s3cret" not in page.content() + page.url
    page.click("#forget")
    page.wait_for_selector("#key-form:not([hidden])")
    assert page.evaluate("sessionStorage.length") == 0
    other = open_page(url)
    other.wait_for_selector("#key-form:not([hidden])")


def test_without_a_key_nobody_is_asked_for_one(served, open_page):
    _, _, url = served()
    page = open_page(url)
    page.wait_for_selector("#slots tbody tr")
    assert page.locator("#key-form").is_hidden()
    assert page.locator("#forget").is_hidden()


def test_a_lost_server_is_said_and_a_new_one_is_found(served, open_page):
    engine, _, url = served()
    page = open_page(url)
    page.wait_for_selector("#slots tbody tr")
    engine.overview = None  # the status cannot be told any more: events end
    page.wait_for_selector("#connection.lost")
    assert "trying again" in page.locator("#connection").text_content()
    del engine.overview
    page.wait_for_selector("#connection.live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_texts_can_be_read_and_nothing_is_wider_than_the_window(served, open_page, scheme, size):
    _, _, url = served(runtime={"drafters": ("ngram",), "disk_bytes": 2**40})
    page = open_page(url, color_scheme=scheme)
    page.set_viewport_size(size)
    page.wait_for_selector("#slots tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    colours = page.evaluate(
        "[...document.querySelectorAll('h1, h2, dt, dd, td, th, figcaption, footer p, #about')]"
        ".map(each => getComputedStyle(each).color)"
    )
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(back) > 0.5) == (scheme == "light")
    for colour in set(colours):
        light, dark = sorted((luminance(colour), luminance(back)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (colour, back)  # WCAG 2, level AA


def luminance(colour):
    """The relative luminance of WCAG of an ``rgb(...)``."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_table_can_be_reached_and_scrolled_with_the_keyboard(served, open_page):
    _, _, url = served()
    page = open_page(url)
    page.set_viewport_size(NARROW)
    page.wait_for_selector("#slots tbody tr")
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached == ["slots", "waiting", "cache", "recent"]
    page.evaluate("document.getElementById('slots').focus()")
    page.keyboard.press("End")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.getElementById('slots').scrollLeft > 0")


def test_the_page_works_behind_a_prefix(make_service, make_engine, run_server, open_page):
    engine = make_engine("x")
    engine.views = (view("a"),)
    service = make_service(engine)
    running = run_server(service)
    inner = running.server.config.loaded_app
    running.server.config.loaded_app = Starlette(routes=[Mount("/a/b", inner)])
    page = open_page(running.url + "/a/b")
    page.wait_for_selector("#slots tbody tr")


def test_a_chart_has_a_line_and_says_its_speeds(served, open_page):
    _, feed, url = served()
    history = {"bin_seconds": 5, "generated": [None] * 57 + [12.34, 0.0, 250.0], "prompt": []}
    told = feed.status

    async def status():
        return {**await told(), "speeds": history}

    feed.status = status
    page = open_page(url)
    chart = page.locator("#speeds svg").first
    chart.wait_for()
    text = chart.get_attribute("aria-label")
    assert text == "generated: 250 tokens/s now, at most 250 tokens/s; a point is 5 s"
    assert chart.locator("path").get_attribute("d").count("L") == 2
    assert "nothing seen yet" in page.locator("#speeds svg").nth(1).get_attribute("aria-label")


# -- the pure functions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("bytes(0)", "0 bytes"),
        ("bytes(1023)", "1,023 bytes"),
        ("bytes(1024)", "1 KiB"),
        ("bytes(1536 * 1024)", "1.5 MiB"),
        ("bytes(5 * 2 ** 40)", "5 TiB"),
        ("bytes(2 ** 60)", "1,048,576 TiB"),
        ("bytes(null)", "–"),
        ("count(1234567)", "1,234,567"),
        ("short(0.256)", "0.26"),
        ("short(99.94)", "99.9"),
        ("short(1234.5)", "1,235"),
        ("short(0)", "0"),
        ("speed(undefined)", "–"),
        ("percent(1, 0)", "–"),
        ("percent(1, 8)", "12.5 %"),
        ("duration(59.4)", "59 s"),
        ("duration(3599)", "59 min 59 s"),
        ("duration(7260)", "2 h 1 min"),
        ("duration(90000)", "1 d 1 h"),
        ("duration(-3)", "0 s"),
    ],
)
def test_numbers_are_written_for_people(numbers_page, call, text):
    assert numbers_page.evaluate(f"import('/status/numbers.js').then(m => m.{call})") == text


@pytest.fixture(scope="module")
def numbers_page(browser):
    """A page that has the modules and no server: they are read from the package."""
    from importlib import resources

    folder = resources.files("kinfolk.server") / "page"
    page = browser.new_page()

    def answer(route):
        name = route.request.url.rpartition("/")[2]
        if name.endswith(".js"):
            route.fulfill(body=(folder / name).read_text(), content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    page.route("**/*", answer)
    page.goto("http://localhost/")
    yield page
    page.close()


def test_a_line_has_a_gap_where_nothing_was_seen(numbers_page):
    path = numbers_page.evaluate(
        "import('/status/numbers.js').then(m => m.line([0, 10, null, 5, null]))"
    )
    assert path == "M0.00 98.00h0.01L25.00 2.00M75.00 50.00h0.01"


def test_events_are_found_however_their_bytes_are_divided(numbers_page):
    """Comments and other fields are passed over; several rows of data are one text."""
    found = numbers_page.evaluate(
        """async () => {
          const { EventParser } = await import('/status/events.js');
          const blocks = [': ping', 'data: {"a": 1}', 'event: x\\ndata: b\\ndata:c', 'data: rest'];
          const text = blocks.join('\\n\\n');
          const results = [];
          for (let size = 1; size <= text.length; size++) {
            const got = [];
            const parser = new EventParser((data) => got.push(data));
            for (let at = 0; at < text.length; at += size) parser.feed(text.slice(at, at + size));
            results.push(JSON.stringify(got));
          }
          return [...new Set(results)];
        }"""
    )
    assert found == ['["{\\"a\\": 1}","b\\nc"]']
