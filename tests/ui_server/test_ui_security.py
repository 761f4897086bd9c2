"""Who is let in, and what browsers may do with the answers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from roots import many_trials
from ui_clients import LiveServer

Serve = Callable[..., LiveServer]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_all: Serve) -> LiveServer:
    return serve_all(many_trials(tmp_path_factory.mktemp("security") / "exp", 3).path)


def test_nothing_is_answered_without_the_token(server: LiveServer) -> None:
    path = server.only()
    for address in ("/", "/index.html", "/nosuch", "/api/experiments", path, f"{path}/trials", f"{path}/events"):
        for token in (None, "wrong", server.token[:-1], f"{server.token}x", "\xe9"):
            reply = server.request(address, token=token)
            assert reply.status == 401, (address, token)
            assert server.token.encode() not in reply.body
        assert server.request(f"{address}?token=wrong", token=None).status == 401
        assert server.request(address, token=None, Cookie=f"holdfast-{server.port}=wrong").status == 401
    assert server.request(f"{path}/stop", method="POST", token=None).status == 401
    assert server.request("/api/experiments", token=None, Authorization=f"Basic {server.token}").status == 401


def test_a_browser_without_the_token_reads_what_to_do(server: LiveServer) -> None:
    reply = server.request("/", token=None, Accept="text/html")
    assert reply.status == 401
    assert reply.headers["Content-Type"].startswith("text/plain")
    assert b"`holdfast ui` printed" in reply.body


def test_the_address_becomes_a_cookie_and_loses_the_token(server: LiveServer) -> None:
    reply = server.request(f"/?x=1&token={server.token}", token=None)
    assert (reply.status, reply.headers["Location"]) == (303, "/?x=1")
    cookie = reply.headers["Set-Cookie"]
    assert {part.strip().lower() for part in cookie.split(";")[1:]} == {"httponly", "path=/", "samesite=strict"}
    assert reply.headers["Cache-Control"] == "no-store"
    named = cookie.partition(";")[0]
    assert server.request("/", token=None, Cookie=f"other=1; {named}; more=2").status == 200
    assert server.request("/api/experiments", token=None, Cookie=named).status == 200
    odd = f'{{"x": [1]}}=2; a b; =; ;;é=\x01; {named}'.encode().decode("latin-1")
    assert server.request("/", token=None, Cookie=odd).status == 200, "cookies of other servers on this host"


def test_a_link_from_another_site_works(server: LiveServer) -> None:
    """Browsers do not send the new cookie along a redirect that began elsewhere, so the page leads on by itself."""
    reply = server.request(f"/?token={server.token}", token=None, Sec_Fetch_Site="cross-site")
    assert reply.status == 200
    assert reply.headers["Refresh"] == "0; url=/"
    assert "Set-Cookie" in reply.headers
    assert server.token.encode() not in reply.body


def test_the_way_out_of_an_address_stays_on_this_server(server: LiveServer) -> None:
    reply = server.request(f"//evil.example/?token={server.token}", token=None)
    assert reply.headers["Location"] == "/evil.example/"


def test_two_servers_do_not_share_a_cookie(server: LiveServer, serve: Serve, tmp_path: Path) -> None:
    other = serve(many_trials(tmp_path / "exp", 1).path)
    mine = server.request(f"/?token={server.token}", token=None).headers["Set-Cookie"].partition(";")[0]
    theirs = other.request(f"/?token={other.token}", token=None).headers["Set-Cookie"].partition(";")[0]
    for each in (server, other):
        assert each.request("/", token=None, Cookie=f"{mine}; {theirs}").status == 200


def test_a_token_of_the_users_own(tmp_path: Path, serve: Serve) -> None:
    server = serve(many_trials(tmp_path / "exp", 1).path, "--token", "my-own_token.1~")
    assert server.token == "my-own_token.1~"
    assert server.request("/").status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "10.0.0.1"])
def test_a_foreign_host_is_refused(server: LiveServer, host: str) -> None:
    reply = server.request("/api/experiments", Host=host)
    assert reply.status == 400
    assert "Host" in reply.error


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9999", "127.0.0.1:1", "[::1]:5", "[::1]"])
def test_a_forwarded_port_is_no_foreign_host(server: LiveServer, host: str) -> None:
    assert server.request("/api/experiments", Host=host).status == 200


def test_a_request_without_a_host_is_refused(server: LiveServer) -> None:
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        connection.sendall(b"GET /api/experiments HTTP/1.0\r\n\r\n")
        assert connection.recv(100).split()[1] == b"400"


def test_a_post_from_another_origin_is_refused(server: LiveServer) -> None:
    path = f"{server.only()}/stop"
    own = f"http://{server.host}:{server.port}"
    for origin in (
        "http://evil.example",
        "null",
        f"http://{server.host}:1",
        f"https://evil.example/{own}",
        "",
        own[:-1],
    ):
        assert server.post(path, {}, Origin=origin).status == 403, origin
    assert server.post(path, {}, Sec_Fetch_Site="cross-site").status == 403
    assert server.post(path, {}, Sec_Fetch_Site="same-site").status == 403
    assert server.post(path, {}, Origin=own, Sec_Fetch_Site="same-origin").status == 409
    assert server.post(path, {}).status == 409


def test_a_post_must_be_small_json(server: LiveServer) -> None:
    path = f"{server.only()}/note"
    assert server.post(path, {}, Content_Type="text/plain").status == 400
    assert server.post(path, {}, Content_Type="application/x-www-form-urlencoded").status == 400
    assert server.post(path, [1]).status == 400
    assert server.post(path, {"text": "x" * 100_000}).status == 400
    broken = server.request(path, method="POST", body=b"{", Content_Type="application/json")
    assert broken.status == 400
    deep = b"[" * 60_000
    assert server.request(path, method="POST", body=deep, Content_Type="application/json").status == 400


def test_every_response_says_what_browsers_may_do(server: LiveServer) -> None:
    path = server.only()
    for reply in (
        server.request("/"),
        server.request("/api/experiments"),
        server.request(f"{path}/columns"),
        server.request("/nosuch"),
        server.request("/", token=None),
        server.request("/", Host="evil.example"),
        server.request(f"/?token={server.token}", token=None),
        server.post(f"{path}/stop", {}),
    ):
        headers = reply.headers
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "http" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers
    for address in ("/api/experiments", path, f"{path}/columns", f"{path}/trials?limit=x"):
        assert server.request(address).headers["Cache-Control"] == "no-store"


def test_a_long_query_is_refused(server: LiveServer) -> None:
    assert server.request(f"/api/experiments?x={'y' * 20_000}").status == 400


def test_only_this_machine_can_connect_by_default(server: LiveServer) -> None:
    listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{server.port:04X} 00000000:0000 0A" in listening


def test_an_open_server_goes_by_its_own_names(tmp_path: Path, serve: Serve) -> None:
    server = serve(many_trials(tmp_path / "exp", 1).path, "--host", "0.0.0.0")
    assert server.host == "127.0.0.1"
    for host in (f"{socket.gethostname()}:{server.port}", "10.1.2.3:80", "localhost"):
        assert server.request("/api/experiments", Host=host).status == 200
    assert server.request("/api/experiments", Host="evil.example").status == 400
