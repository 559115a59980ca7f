"""GitHub's pull requests and comments in memory, behind the part of its REST API that we call."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

REPOSITORY = "someone/tdheads"


class GitHub(ThreadingHTTPServer):
    """Pull requests and comments in memory, in pages, and failures when told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.pulls: list[dict[str, Any]] = []
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        #: one per request, in order: status, and whether the request is carried out all the same
        self.failures: list[tuple[int, bool]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def open_pull(self, number: int, sha: str, repository: str | None = REPOSITORY) -> None:
        base = f"gh/someone/{number}/base" if number % 2 else "main"
        repo = None if repository is None else {"full_name": repository}
        head = {"sha": sha, "repo": repo, "ref": f"gh/someone/{number}/head"}
        self.pulls.append({"number": number, "head": head, "base": {"ref": base}})
        self.comments[number] = []

    def add_comment(
        self, number: int, body: str, login: str | None = "github-actions[bot]"
    ) -> None:
        identity = 1 + sum(map(len, self.comments.values()))
        user = None if login is None else {"login": login}  # null when the account is gone
        written = {"id": identity, "body": body, "user": user}
        self.comments[number].append(written)

    def bodies(self, number: int) -> list[str]:
        return [written["body"] for written in self.comments[number]]

    def list_items(self, path: str, query: dict[str, list[str]]) -> list[Any]:
        if path == f"/repos/{REPOSITORY}/pulls":
            assert query["state"] == ["open"]
            items = self.pulls
        else:
            items = self.comments[int(path.split("/")[-2])]
        size, page = (int(query[name][0]) for name in ("per_page", "page"))
        return items[size * (page - 1) : size * page]

    def carry_out(self, method: str, url: str, data: Any) -> Any:
        parts = urlsplit(url)
        assert parts.path.startswith(f"/repos/{REPOSITORY}/")
        if method == "GET":
            return self.list_items(parts.path, parse_qs(parts.query))
        if method == "POST":
            return self.add_comment(int(parts.path.split("/")[-2]), data["body"])
        (found,) = (
            written
            for many in self.comments.values()
            for written in many
            if parts.path == f"/repos/{REPOSITORY}/issues/comments/{written['id']}"
        )
        return found.update(data)


class Answer(BaseHTTPRequestHandler):
    server: GitHub

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        data = json.loads(self.rfile.read(length)) if length else None
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.tokens.add(self.headers.get("Authorization"))
        failures = self.server.failures
        status, carried_out = failures.pop(0) if failures else (200, True)
        found = self.server.carry_out(self.command, self.path, data) if carried_out else None
        content = json.dumps(found if status == 200 else {"message": "so sorry"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = answer  # noqa: N815 (names that http.server calls)

    def log_message(self, *_: Any) -> None:
        """Keep the output of the tests clean."""


@contextmanager
def serve_github() -> Iterator[GitHub]:
    with GitHub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
