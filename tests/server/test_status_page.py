"""The files of the live page: well formed, of this server alone, and found behind any prefix."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources
from urllib.parse import urljoin

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from kinfolk.server.app import create_app
from kinfolk.server.status_page import PUBLIC_FILES

FILES = sorted(PUBLIC_FILES - {"/status", "/status/"})
VOID = {"meta", "link", "input", "br", "hr", "img"}


@pytest.fixture
def client(make_client, make_engine):
    return make_client(make_engine("x"), api_keys=("k",))


class Page(HTMLParser):
    """Elements with their attributes; every one that is opened must be closed in its place."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attributes), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def values(self, *names):
        return [found[n] for _, found, _ in self.elements for n in names if n in found]


@pytest.fixture
def page(client):
    return Page(client.get("/status").text)


def test_the_page_is_well_formed(client, page):
    text = client.get("/status").text
    assert text.startswith("<!doctype html>")
    assert [tag for tag, _, _ in page.elements][:2] == ["html", "head"]
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for reference in page.values("for", "aria-labelledby"):
        assert reference in ids
    headings = [tag for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings.count("h1") == 1
    assert set(headings) == {"h1", "h2"}
    assert next(found for tag, found, _ in page.elements if tag == "html")["lang"] == "en"


def test_what_scrolls_can_be_reached_with_the_keyboard_and_has_a_name(page):
    scrolling = [found for _, found, _ in page.elements if "scroll" in found.get("class", "")]
    assert len(scrolling) == 4
    for found in scrolling:
        assert found["tabindex"] == "0"
        assert found["aria-labelledby"]


def test_every_file_that_the_page_names_is_served_without_a_key(client, page):
    named = [urljoin("/status", each) for each in page.values("src", "href") if ":" not in each]
    modules = [path for path in FILES if path.endswith(".js")]
    imported = set()
    for path in modules:
        text = client.get(path).text
        imported |= {urljoin(path, name) for name in re.findall(r' from "(\./[^"]+)"', text)}
    # What is linked for those without JavaScript needs the key.
    assert {*named, *imported} - {"/status/json"} == set(FILES)
    for path in FILES:
        response = client.get(path)
        assert response.status_code == 200
        kind = {"css": "text/css", "js": "text/javascript"}[path.rpartition(".")[2]]
        assert response.headers["content-type"].startswith(kind)


def test_nothing_comes_from_anywhere_else(client):
    for path in ["/status", *FILES]:
        text = client.get(path).text
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*|@import|url\(", text))
        assert found - {"http://www.w3.org/2000/svg"} == set(), path


def test_the_page_forbids_scripts_and_connections_of_others(client):
    policy = client.get("/status").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    text = client.get("/status").text
    assert "<style" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", text), "the policy blocks it"


def test_scripts_never_make_elements_of_texts(client):
    for path in FILES:
        text = client.get(path).text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_the_key_is_kept_in_the_session_only(client):
    scripts = "".join(client.get(path).text for path in FILES if path.endswith(".js"))
    assert "sessionStorage" in scripts
    assert not re.search(r"localStorage|document\.cookie|indexedDB", scripts)


def test_browsers_get_the_page_at_the_root_and_programs_what_they_got(client):
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    response = client.get("/", headers=html, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "status")
    assert client.get("/").json()["name"] == "kinfolk"
    assert "/status" in client.get("/").json()["endpoints"]


@pytest.mark.parametrize("path", ["/kin/folk/", "/kin/folk/status/", "/kin/folk/status"])
def test_behind_a_prefix_every_way_leads_to_the_page(make_service, make_engine, path):
    app = create_app(make_service(make_engine("x")))
    client = TestClient(Starlette(routes=[Mount("/kin/folk", app)]))
    response = client.get(path, headers={"Accept": "text/html"})
    assert str(response.url) == "http://testserver/kin/folk/status"
    for name in Page(response.text).values("src", "href"):
        if ":" not in name:
            assert client.get(urljoin("/kin/folk/status", name)).status_code == 200


def test_all_files_of_the_page_are_in_the_package():
    folder = resources.files("kinfolk.server") / "page"
    named = {path.rpartition("/")[2] for path in FILES}
    assert {each.name for each in folder.iterdir()} == named | {"index.html"}
