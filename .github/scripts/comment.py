"""Write a text as the one marked comment of the pull request whose head was measured.

    python .github/scripts/comment.py TEXT_FILE

It holds a token that may write, and the text comes from a run of the pull request's own code. So
the text is data: read up to a limit, defused, never executed; and which pull request it belongs to
is looked up by the commit that ran, as GitHub reports it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

MARKER = "<!-- tdheads benchmarks: CPU -->"
AUTHOR = "github-actions[bot]"
LONGEST_COMMENT = 65_536  # characters; GitHub refuses more
PER_PAGE = 100  # GitHub's largest page
ATTEMPTS = 5

HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# Entities could spell an @ again; of the tags only those of a folded table are kept.
MARKUP = re.compile(r"&|<(?!/?(?:details|summary)>)")
# Mentions, links, images and references to issues. A colour of the table, {#35bf28}, is none.
ACTIVE = re.compile(r"@|//|\]\(|\]:|www\.|GH-|#(?=\d)(?![0-9a-f]{6}\})", re.IGNORECASE)


class NoAnswerError(Exception):
    """GitHub did not answer, or asked to come back later."""


class Api:
    """The few calls of GitHub's REST API that are needed."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "User-Agent": "tdheads-comment",
            "X-GitHub-Api-Version": "2022-11-28",
        }

    def call(self, method: str, path: str, data: Mapping[str, str] | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = Request(self.url + path, body, self.headers, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code >= 500 or error.code == 429:
                raise NoAnswerError(f"{method} {path}: {error}") from error
            said = error.read(1000).decode(errors="replace")
            raise SystemExit(f"{method} {path}: {error}: {said}") from error
        except (OSError, HTTPException, ValueError) as error:  # no connection, half an answer
            raise NoAnswerError(f"{method} {path}: {error}") from error

    def pages(self, path: str) -> Iterator[Any]:
        """Every item of a list, page after page."""
        page, full = 1, True
        while full:
            items = self.call("GET", f"{path}per_page={PER_PAGE}&page={page}")
            yield from items
            page, full = page + 1, len(items) == PER_PAGE


def read_text(path: str) -> str:
    """The text of a regular file; a link could point at this process's own environment."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SystemExit(f"{path}: expected a regular file")
        content = file.read(4 * LONGEST_COMMENT + 1)
    if len(content) > 4 * LONGEST_COMMENT:
        raise SystemExit(f"{path}: longer than a comment can be")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path}: not UTF-8: {error}") from error


def defuse(text: str) -> str:
    """The text with tables, folding and formulas intact, and nothing that notifies or links."""
    text = "".join(c for c in text if c == "\n" or c.isprintable())
    text = HTML_COMMENT.sub("", text)
    text = MARKUP.sub(lambda match: "&amp;" if match[0] == "&" else "&lt;", text)
    return ACTIVE.sub(lambda match: f"{match[0][0]}\u200b{match[0][1:]}", text).strip()


def comment_body(text: str, head_sha: str, run_url: str) -> str:
    """The comment: marker, where the text comes from, and the text, which cannot hide that."""
    source = f"<sub>{head_sha}, measured by its own code in [this run]({run_url}).</sub>"
    body = f"{MARKER}\n{source}\n\n{defuse(text)}\n"
    if len(body) > LONGEST_COMMENT:
        raise SystemExit(f"the comment has {len(body)} characters, of {LONGEST_COMMENT} at most")
    return body


def find_pull(api: Api, repository: str, head_sha: str, head_repository: str) -> int | None:
    """The open pull request with this head, to whatever base; None if it has moved on.

    GitHub's list of the pull requests of a commit leaves out those from forks, hence the search.
    """
    pulls = [
        pull["number"]
        for pull in api.pages(f"/repos/{repository}/pulls?state=open&")
        if pull["head"]["sha"] == head_sha
        # null when the fork is gone
        and (pull["head"]["repo"] or {}).get("full_name") == head_repository
    ]
    if len(pulls) > 1:
        raise SystemExit(f"{head_sha} is the head of several pull requests, {pulls}: none is told")
    return pulls[0] if pulls else None


def find_comment(api: Api, repository: str, pull: int) -> int | None:
    """The comment that an earlier run wrote; anyone can write the marker, one account is ours."""
    for comment in api.pages(f"/repos/{repository}/issues/{pull}/comments?"):
        ours = (comment["user"] or {}).get("login") == AUTHOR
        if ours and (comment["body"] or "").startswith(MARKER):
            return int(comment["id"])
    return None


def publish(api: Api, env: Mapping[str, str], body: str) -> str:
    """Write the comment, in place of the earlier one if there is one; say what was done."""
    repository, sha = env["GITHUB_REPOSITORY"], env["HEAD_SHA"]
    pull = find_pull(api, repository, sha, env["HEAD_REPOSITORY"])
    if pull is None:
        return f"no open pull request has the head {sha} any more: nothing written"
    comment = find_comment(api, repository, pull)
    if comment is None:
        api.call("POST", f"/repos/{repository}/issues/{pull}/comments", {"body": body})
        return f"#{pull}: comment created"
    api.call("PATCH", f"/repos/{repository}/issues/comments/{comment}", {"body": body})
    return f"#{pull}: comment updated"


def try_to_publish(api: Api, env: Mapping[str, str], body: str) -> bool:
    """Publish, and say whether GitHub answered."""
    try:
        print(publish(api, env, body))
    except NoAnswerError as error:
        print(error, file=sys.stderr)
        return False
    return True


def main(path: str, env: Mapping[str, str], sleep: Callable[[float], None] = time.sleep) -> None:
    """Publish, and again from the start when GitHub fails: a second look finds what was created."""
    body = comment_body(read_text(path), env["HEAD_SHA"], env["RUN_URL"])
    api = Api(env["GITHUB_API_URL"], env["GITHUB_TOKEN"])
    for attempt in range(ATTEMPTS):
        if try_to_publish(api, env, body):
            return
        sleep(2.0**attempt)
    raise SystemExit(f"GitHub did not answer in {ATTEMPTS} attempts")


if __name__ == "__main__":
    main(sys.argv[1], os.environ)
