from __future__ import annotations

import contextlib
import gzip
import json
import math
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard
from live import Answer, Live, forecast, head, read_answer, running, until
from mock_engine import POISON, MockEngine

from serving import bodies
from serving.schemas import ErrorAnswer, ForecastAnswer, ModelsAnswer

WAVE = [10 + math.sin(i / 5) for i in range(512)]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running() as service:
        yield service


def is_error(answer: Answer, status: int) -> bool:
    ErrorAnswer.model_validate_json(answer.raw)
    return answer.status == status and answer.headers["content-type"] == "application/json"


# ---- answers


def test_a_forecast_has_nine_quantiles_of_each_variate(live: Live) -> None:
    answer = live.ask(forecast([WAVE, WAVE], 5))
    assert answer.status == 200
    got = ForecastAnswer.model_validate_json(answer.raw)
    assert (got.n_variates, got.prediction_length, got.model) == (2, 5, "mock")
    assert got.context_length == 512
    assert got.latency_ms > 0


def test_one_dimension_is_one_variate(live: Live) -> None:
    one, two = (live.ask(forecast(series)).json for series in (WAVE, [WAVE]))
    assert one["quantiles"] == two["quantiles"]


def test_a_long_context_is_cut_and_the_answer_says_so(live: Live) -> None:
    answer = live.ask(forecast([1.0] * 40_000)).json
    assert (answer["truncated"], answer["context_length"]) == (True, 32768)
    assert not live.ask(forecast([1.0] * 32_768)).json["truncated"]


def test_stages_are_timed_on_each_answer(live: Live) -> None:
    timing = live.ask(forecast(WAVE)).headers["server-timing"]
    assert re.findall(r"(\w+);dur=[\d.]+", timing) == ["parse", "queue", "compute", "serialise", "total"]
    assert "total;dur=" in live.get("/nowhere").headers["server-timing"]


@pytest.mark.parametrize("given", ["a", "req-1_2.3:4/5", "0" * 128, "user@host+1="])
def test_a_sane_request_id_comes_back(live: Live, given: str) -> None:
    assert live.ask(forecast(WAVE), headers={"x-request-id": given}).headers["x-request-id"] == given
    assert live.ask("", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "0" * 129, "a b", "a;b", "<script>", "\xe9"])
def test_another_request_id_is_replaced(live: Live, given: str) -> None:
    found = live.get("/health", {"x-request-id": given.encode("latin-1").decode("latin-1")}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", found)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_compressed_bodies_are_taken(live: Live, encoding: str, compress: object) -> None:
    raw = compress(json.dumps(forecast(WAVE)).encode())  # type: ignore[operator]
    assert live.ask(raw, headers={"content-encoding": encoding}).status == 200


def test_chunked_bodies_are_taken(live: Live) -> None:
    assert live.ask(forecast(WAVE), chunked=True).status == 200


def test_one_connection_carries_many_requests(live: Live) -> None:
    body = json.dumps(forecast(WAVE)).encode()
    with live.send(head(len(body)) + body) as connection:
        assert read_answer(connection).status == 200
        connection.sendall(head(2) + b"{}")
        assert read_answer(connection).status == 422
        connection.sendall((head(len(body)) + body) * 2)
        assert read_answer(connection).status == 200


# ---- errors


def test_every_status_of_the_router_is_json(live: Live) -> None:
    assert is_error(live.get("/nowhere"), 404)
    assert is_error(live.get("/v1/forecast/"), 404)
    assert is_error(live.get("/v1/forecast"), 405)
    assert live.get("/v1/forecast").headers["allow"] == "POST"
    assert is_error(live.ask(b"", "DELETE", "/health"), 405)
    assert is_error(live.get("/%00%ff%2e%2e/etc"), 404)


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("method", ["POST", "OPTIONS", "DELETE"])
def test_what_a_state_may_be_asked_with_is_told(live: Live, path: str, method: str) -> None:
    answer = live.ask(b"", method, path)
    assert is_error(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD"
    assert "GET, HEAD" in answer.text


def test_head_works_where_get_tells_a_state(live: Live) -> None:
    for path in ("/health", "/ready"):
        answer = live.ask(b"", "HEAD", path)
        assert (answer.status, answer.raw) == (200, b"")
    assert live.ask(b"", "HEAD", "/nowhere").status == 404


@pytest.mark.parametrize(
    "raw",
    [
        *(
            b"nonsense\r\n\r\n",
            b"GET /health HTTP/9.9\r\n\r\n",
            b"POST /v1/forecast HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        ),
        *(b"GET /h\xffealth HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"0" * 40),
        b"POST /v1/forecast HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"v" * 1000) for i in range(80)) + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/forecast HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_a_400_in_json(live: Live, raw: bytes) -> None:
    with live.send(raw) as connection:
        assert is_error(read_answer(connection), 400)


def test_a_body_over_the_limit_is_refused_before_it_comes() -> None:
    with running(max_body_bytes=1000) as live:
        with live.send(head(1001)) as connection:
            answer = read_answer(connection)
        assert is_error(answer, 413)
        assert "1000" in answer.text
        assert "1001" in answer.text


def test_a_chunked_body_over_the_limit_is_refused_while_it_comes() -> None:
    with running(max_body_bytes=1000) as live:
        start = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        with live.send(start + b"3e9\r\n" + b" " * 1001) as connection:
            assert is_error(read_answer(connection), 413)


def test_a_small_body_that_expands_over_the_limit_is_refused() -> None:
    with running(max_body_bytes=1000) as live:
        answer = live.ask(gzip.compress(b" " * 1001), headers={"content-encoding": "gzip"})
        assert is_error(answer, 413)


def test_more_work_than_the_limit_is_a_413_with_both_figures() -> None:
    with running(max_request_tokens=100) as live:
        answer = live.ask(forecast([WAVE] * 6, 32))
        assert is_error(answer, 413)
        assert "100 tokens" in answer.text
        assert "found 102" in answer.text


def test_a_body_that_stops_coming_is_a_408() -> None:
    with running(request_timeout_s=0.05) as live, live.send(head(100) + b'{"series":') as connection:
        assert is_error(read_answer(connection), 408)


def test_large_bodies_that_stall_do_not_lock_small_ones_out_and_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1024 * 1024
    with running(max_body_bytes=most) as live, contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(live.send(head(most) + b" " * (most - 1))) for _ in range(4)]
        until(lambda: live.service._space.held == 4 * (most - 1))
        assert live.ask(forecast(WAVE)).status == 200
        monkeypatch.setattr(bodies, "STALL_SECONDS", 0.05)
        with live.send(head(most) + b" " * 1000) as slow:
            answer = read_answer(slow)
        assert is_error(answer, 408)
        assert "65536 bytes" in answer.text
        stalled[0].sendall(b" ")
        assert is_error(read_answer(stalled[0]), 400)
        until(lambda: live.service._space.held == 3 * (most - 1))


def test_an_upgrade_to_http_2_is_ignored(live: Live) -> None:
    body = json.dumps(forecast(WAVE)).encode()
    more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    with live.send(head(len(body), more) + body) as connection:
        assert read_answer(connection).status == 200


def test_a_client_that_asks_to_go_on_is_told_to(live: Live) -> None:
    body = json.dumps(forecast(WAVE)).encode()
    with live.send(head(len(body), "Expect: 100-continue\r\n")) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert read_answer(connection).status == 200


def test_a_client_that_asks_to_go_on_with_too_much_is_refused_at_once() -> None:
    with running(max_body_bytes=10) as live, live.send(head(11, "Expect: 100-continue\r\n")) as connection:
        assert read_answer(connection).status == 413


@pytest.mark.parametrize("given", ["0", "-1", "x", "nan", "inf", "1e999", "", "1_0", "1e", "."])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(live: Live, given: str) -> None:
    assert is_error(live.ask(forecast(WAVE), headers={"x-request-timeout": given}), 422)


def test_a_fault_of_the_engine_is_a_500_without_the_reason_and_spares_the_others() -> None:
    with running() as live:
        live.engine.open.clear()
        live.engine.running.clear()
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(live.ask, forecast(WAVE))
            assert live.engine.running.wait(10)
            bad = pool.submit(live.ask, forecast([POISON, 1.0]))
            good = [pool.submit(live.ask, forecast([float(i), 1.0])) for i in range(5)]
            until(lambda: live.service.queue.waiting()[0] == 6)
            live.engine.open.set()
            assert first.result().status == 200
            assert is_error(bad.result(), 500)
            assert "fault of the engine" not in bad.result().text
            assert [answer.result().status for answer in good] == [200] * 5
        assert max(live.engine.batches) == 6


def test_what_does_not_fit_the_device_fails_alone() -> None:
    with running(MockEngine(most_tokens=60)) as live:
        live.engine.open.clear()
        live.engine.running.clear()
        with ThreadPoolExecutor(8) as pool:
            small = [pool.submit(live.ask, forecast([WAVE], 32))]
            assert live.engine.running.wait(10)
            small += [pool.submit(live.ask, forecast([WAVE], 32)) for _ in range(5)]
            until(lambda: live.service.queue.waiting()[0] == 5)
            large = pool.submit(live.ask, forecast([WAVE] * 4, 32))
            until(lambda: live.service.queue.waiting()[0] == 6)
            live.engine.open.set()
            assert [answer.result().status for answer in small] == [200] * 6
            assert is_error(large.result(), 413)
        assert live.metric("toto_out_of_memory_total") >= 2
        assert live.ask(forecast(WAVE)).status == 200


# ---- the queue


def test_requests_share_a_batch_while_one_runs() -> None:
    with running() as live:
        live.engine.batches.clear()
        live.engine.open.clear()
        live.engine.running.clear()
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(live.ask, forecast(WAVE))
            assert live.engine.running.wait(10)
            others = [pool.submit(live.ask, forecast(WAVE)) for _ in range(7)]
            until(lambda: live.service.queue.waiting()[0] == 7)
            assert live.get("/health").status == 200
            live.engine.open.set()
            assert {answer.result().status for answer in [first, *others]} == {200}
        assert live.engine.batches == [1, 7]
        assert live.metric("toto_batch_requests_count") == 2
        assert live.metric("toto_tokens_useful_total") == live.metric("toto_tokens_computed_total") == 8 * 17


def test_batching_can_be_turned_off() -> None:
    with running(batching=False) as live:
        live.engine.batches.clear()
        live.engine.open.clear()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(live.ask, forecast(WAVE)) for _ in range(4)]
            until(lambda: live.service.queue.waiting()[0] == 3)
            live.engine.open.set()
            assert {answer.result().status for answer in asked} == {200}
        assert live.engine.batches == [1] * 4


def test_a_full_queue_is_a_429_with_a_wait_and_serves_again_after() -> None:
    with running(max_concurrent_requests=2) as live:
        live.engine.open.clear()
        with ThreadPoolExecutor(2) as pool:
            admitted = [pool.submit(live.ask, forecast(WAVE)) for _ in range(2)]
            until(lambda: live.service.admission.requests == 2)
            with live.send(head(500)) as connection:  # answered before the body comes
                refused = read_answer(connection)
            assert is_error(refused, 429)
            assert 1 <= int(refused.headers["retry-after"]) <= 3600
            live.engine.open.set()
            assert {answer.result().status for answer in admitted} == {200}
        assert live.ask(forecast(WAVE)).status == 200


def test_two_hundred_callers_get_an_answer_or_a_429() -> None:
    with running(max_concurrent_requests=16) as live:
        start = threading.Barrier(200)

        def ask(_: int) -> Answer:
            start.wait(20)
            return live.ask(forecast(WAVE))

        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(ask, range(200)))
        assert {answer.status for answer in answers} <= {200, 429}
        assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status == 429)
        assert (live.service.admission.requests, live.service.admission.tokens) == (0, 0)


def test_a_deadline_that_passes_in_the_queue_is_a_504_and_the_request_never_runs() -> None:
    with running() as live:
        live.engine.batches.clear()
        live.engine.open.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(live.ask, forecast(WAVE))
            until(lambda: live.service.admission.requests == 1 and live.service.queue.waiting()[0] == 0)
            late = live.ask(forecast(WAVE), headers={"x-request-timeout": "0.02"})
            assert is_error(late, 504)
            live.engine.open.set()
            assert first.result().status == 200
        assert live.engine.batches == [1]
        assert live.metric('toto_dropped_total{reason="deadline"}') == 1


def test_a_request_that_runs_when_its_deadline_passes_is_answered() -> None:
    with running() as live:
        live.engine.open.clear()
        live.engine.running.clear()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(live.ask, forecast(WAVE), headers={"x-request-timeout": "0.1"})
            assert live.engine.running.wait(10)
            assert is_error(live.ask(forecast(WAVE), headers={"x-request-timeout": "0.2"}), 504)
            live.engine.open.set()
            assert answer.result().status == 200


def test_a_caller_who_has_gone_is_dropped_before_it_runs() -> None:
    with running() as live:
        live.engine.batches.clear()
        live.engine.open.clear()
        body = json.dumps(forecast(WAVE)).encode()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(live.ask, forecast(WAVE))
            until(lambda: live.service.admission.requests == 1 and live.service.queue.waiting()[0] == 0)
            gone = live.send(head(len(body)) + body)
            until(lambda: live.service.queue.waiting()[0] == 1)
            gone.close()
            until(lambda: live.service.queue.waiting()[0] == 0)
            live.engine.open.set()
            assert first.result().status == 200
        assert live.engine.batches == [1]
        assert live.metric('toto_dropped_total{reason="gone"}') == 1
        assert live.metric('toto_requests_total{route="/v1/forecast",status="499"}') == 1


def test_a_caller_who_leaves_while_sending_leaves_nothing_behind() -> None:
    with running() as live:
        live.send(head(100) + b"{").close()
        until(lambda: live.service.lifecycle.in_flight == 0)
        assert live.service.admission.requests == 0
        assert live.service._space.held == 0


# ---- other places


def test_ready_and_forecasts_wait_for_the_model_while_health_does_not() -> None:
    may_load = threading.Event()

    def load() -> MockEngine:
        assert may_load.wait(20)
        return MockEngine()

    with running(load=load, ready=False) as live:
        try:
            assert live.get("/health").status == 200
            assert (live.get("/ready").status, live.get("/ready").json) == (503, {"status": "loading"})
            refused = live.ask(forecast(WAVE))
            assert is_error(refused, 503)
            assert int(refused.headers["retry-after"]) >= 1
            assert is_error(live.get("/v1/models"), 503)
        finally:
            may_load.set()
        until(lambda: live.get("/ready").status == 200)
        assert live.ask(forecast(WAVE)).status == 200


def test_health_tells_a_device_that_makes_no_progress() -> None:
    with running(stall_timeout_s=0.05) as live:
        live.engine.open.clear()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(live.ask, forecast(WAVE))
            until(lambda: live.get("/health").status == 503)
            live.engine.open.set()
            assert asked.result().status == 200
        assert live.get("/health").status == 200


def test_the_warm_up_runs_before_ready() -> None:
    with running() as live:
        assert len(live.engine.batches) >= 2


def test_models_tells_what_is_loaded_and_every_limit(live: Live) -> None:
    card = ModelsAnswer.model_validate_json(live.get("/v1/models").raw).data[0]
    assert (card.id, card.device, card.sha256) == ("mock", "mock:0", "0" * 64)
    assert card.limits.max_prediction_length == 4096
    assert card.limits.max_batch_tokens == 32768


def test_a_cpu_takes_smaller_batches() -> None:
    with running(MockEngine(device="cpu")) as live:
        assert live.get("/v1/models").json["data"][0]["limits"]["max_batch_tokens"] == 2048


def test_the_documentation_needs_no_other_server(live: Live) -> None:
    page = live.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(r"(?:src|href)=\"https?:", page.text)
    api = live.get("/openapi.json").json
    assert set(api["paths"]) == {"/v1/forecast", "/v1/models", "/health", "/ready", "/metrics"}
    responses = api["paths"]["/v1/forecast"]["post"]["responses"]
    assert set(responses) == {"200", *["400", "401", "408", "413", "415", "422", "429", "500", "503", "504"]}
    for example in api["components"]["schemas"]["ForecastBody"]["examples"]:
        assert live.ask(example).status == 200


def test_the_schema_has_the_keys_and_the_headers_of_a_request(live: Live, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("name a-key-of-sixteen-or-more")
    with running(api_keys_file=tmp_path / "keys") as guarded:
        schemas = [service.get("/openapi.json").json for service in (live, guarded)]
    everyone: list[dict[str, object]] = [{}]
    for schema, without in zip(schemas, (everyone, []), strict=True):
        schemes = schema["components"]["securitySchemes"]
        assert {scheme.get("scheme") or scheme.get("name") for scheme in schemes.values()} == {"bearer", "X-API-Key"}
        forecasts, models = (schema["paths"][path] for path in ("/v1/forecast", "/v1/models"))
        for operation in (forecasts["post"], models["get"]):
            assert operation["security"] == [*({name: []} for name in schemes), *without]
        assert "security" not in schema["paths"]["/health"]["get"]
        names = {(parameter["in"], parameter["name"]) for parameter in forecasts["post"]["parameters"]}
        assert names == {("header", "X-Request-Timeout"), ("header", "X-Request-ID")}
        assert list(schema["paths"]["/ready"]) == ["get"]


def test_metrics_have_bounded_labels(live: Live) -> None:
    for index in range(30):
        live.get(f"/made/up/{index}")
        live.ask(b"", f"VERB{index}", "/health")
    text = live.get("/metrics").text
    assert "made" not in text
    assert "VERB" not in text
    assert live.metric('toto_requests_total{route="other",status="404"}') >= 30
    for name in ("toto_queue_requests", "toto_queue_tokens", "toto_device_memory_bytes{kind=\"total\"}",
                 "toto_model_load_seconds", "toto_ready", 'toto_stage_seconds_count{stage="parse"}'):  # fmt: skip
        assert live.metric(name) >= 0


def test_keys_are_asked_for_where_they_are_configured(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("me a-key\n", encoding="utf-8")
    with running(api_keys_file=path) as live:
        assert is_error(live.ask(forecast(WAVE)), 401)
        assert live.ask(forecast(WAVE), headers={"authorization": "Bearer a-key"}).status == 200
        assert live.ask(forecast(WAVE), headers={"x-api-key": "a-key"}).status == 200
        assert is_error(live.get("/v1/models"), 401)
        assert is_error(live.get("/v1/nowhere"), 401)
        assert {live.get(path).status for path in ("/health", "/ready", "/metrics", "/docs", "/openapi.json")} == {200}
