"""The routes that describe the server and its model."""

from __future__ import annotations


def test_the_one_model_is_listed_with_its_context(make_client, make_engine):
    client = make_client(make_engine("x"), runtime={"context": 99})
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"]) == ("tiny", "model")
    assert model["context_length"] == model["max_model_len"] == 99
    assert client.get("/v1/models/tiny").json() == model


def test_a_model_that_is_not_served_is_not_found(make_client, make_engine):
    response = make_client(make_engine("x")).get("/v1/models/other/name")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_health_tells_when_the_server_is_leaving(make_service, make_engine):
    from starlette.testclient import TestClient

    from kinfolk.server.app import create_app

    service = make_service(make_engine("x"))
    client = TestClient(create_app(service))
    assert client.get("/health").json() == {"status": "ok"}
    service.draining = True
    response = client.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "draining"})


def test_metrics_count_what_was_answered(make_client, make_engine, user):
    client = make_client(make_engine("Hello"))
    for _ in range(3):
        client.post("/v1/chat/completions", json=user())
    client.post("/v1/chat/completions", json=user(max_tokens=1))
    text = client.get("/metrics").text
    lines = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    assert lines['kinfolk_answers_total{reason="stop"}'] == "3.0"
    assert lines['kinfolk_answers_total{reason="length"}'] == "1.0"
    assert lines["kinfolk_cached_tokens_total"] == "12.0"
    assert lines["kinfolk_accepted_tokens_total"] == "24.0"
    assert lines["kinfolk_in_flight"] == "0.0"
    assert lines["kinfolk_engine_steps"] == "7.0"


def test_two_servers_in_a_process_count_apart(make_client, make_engine, user):
    one, other = make_client(make_engine("x")), make_client(make_engine("x"))
    one.post("/v1/chat/completions", json=user())
    assert "kinfolk_answers_total{" in one.get("/metrics").text
    assert "kinfolk_answers_total{" not in other.get("/metrics").text
