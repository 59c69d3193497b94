"""API keys, origins, body sizes, and the routes that need none of them."""

from __future__ import annotations

import pytest

CHAT = "/v1/chat/completions"


@pytest.fixture
def guarded(make_client, make_engine):
    return make_client(make_engine("x"), api_keys=("first", "second"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer first"}, 200),
        ({"Authorization": "bearer first"}, 200),
        ({"X-Api-Key": "first"}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Basic first"}, 401),
        ({"Authorization": "first"}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"X-Api-Key": "firs"}, 401),
        ({"X-Api-Key": "first", "Authorization": "Bearer wrong"}, 200),
    ],
)
def test_only_a_known_key_gets_in(guarded, user, headers, status):
    response = guarded.post(CHAT, json=user(), headers=headers)
    assert response.status_code == status
    if status == 401:
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize("path", ["/health", "/healthz", "/v1/health", "/"])
def test_health_needs_no_key(guarded, path):
    assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/nothing"])
def test_everything_else_does(guarded, path):
    assert guarded.get(path).status_code == 401


def test_metrics_can_be_made_public(make_client, make_engine):
    client = make_client(make_engine("x"), api_keys=("k",), public_metrics=True)
    assert client.get("/metrics").status_code == 200
    assert client.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    ("cors", "origin", "allowed"),
    [
        ("localhost", "http://localhost:3000", "http://localhost:3000"),
        ("localhost", "http://127.0.0.1", "http://127.0.0.1"),
        ("localhost", "https://[::1]:8443", "https://[::1]:8443"),
        ("localhost", "http://localhost.evil.example", None),
        ("localhost", "https://evil.example", None),
        ("*", "https://evil.example", "*"),
        ("off", "http://localhost:3000", None),
        ("https://a.example, https://b.example", "https://b.example", "https://b.example"),
        ("https://a.example", "https://b.example", None),
    ],
)
def test_pages_of_allowed_origins_may_read_answers(
    make_client, make_engine, user, cors, origin, allowed
):
    client = make_client(make_engine("x"), cors=cors)
    headers = client.post(CHAT, json=user(), headers={"Origin": origin}).headers
    assert headers.get("access-control-allow-origin") == allowed
    assert "access-control-allow-credentials" not in headers


def test_a_preflight_needs_no_key(guarded):
    headers = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    response = guarded.options(CHAT, headers=headers)
    assert response.status_code == 200
    assert "POST" in response.headers["access-control-allow-methods"]


def test_a_refusal_can_be_read_by_the_page_it_is_meant_for(guarded, user):
    response = guarded.post(CHAT, json=user(), headers={"Origin": "http://localhost:3000"})
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_a_body_above_the_limit_is_refused(make_client, make_engine, user):
    client = make_client(make_engine("x"), max_body=500)
    assert client.post(CHAT, json=user()).status_code == 200
    assert client.post(CHAT, json=user(user="x" * 500)).status_code == 413


def test_a_body_that_hides_its_size_is_refused_too(make_client, make_engine):
    client = make_client(make_engine("x"), max_body=500)
    response = client.post(CHAT, content=(b"x" * 100 for _ in range(10)))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-123", True), ("x" * 128, True), ("x" * 129, False), ("", False), ("tab\there", False)],
)
def test_every_answer_has_an_id_and_a_decent_one_is_kept(make_client, make_engine, sent, kept):
    client = make_client(make_engine("x"))
    for path in ("/health", "/v1/nothing"):
        got = client.get(path, headers={"X-Request-Id": sent}).headers["x-request-id"]
        assert (got == sent) == kept
        assert got
