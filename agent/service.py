"""The service as the agent sees it: five calls, each of which fails in one of two ways."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import httpx

from shardwise.errors import ShardwiseError

CONNECT_S = 10.0


class Unreachable(ShardwiseError):
    """No answer, or one to try again (5xx, 408, 429); `retry_after_s` if the service sent it."""

    exit_code = 3

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Refusal(ShardwiseError):
    """An answer that will be the same next time (4xx)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def of_the_agent(self) -> bool:
        """Whether it is the agent that is refused (its key, its existence), not the request."""
        return self.status in (401, 403, 404)


class Service:
    """A connection to the service; threads each take their own."""

    def __init__(self, url: str, key: str = "", agent: str = "") -> None:
        self._agent = agent
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, follow_redirects=False)

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._http.close()

    def enrol(self, token: str, name: str, inventory: dict[str, Any], once: str) -> dict[str, Any]:
        """Enrols an agent. Returns id, key, lease_s, heartbeat_s.

        `once` is the same for every try: a token whose answer was cut off is not used up.
        """
        document = {"token": token, "name": name, "inventory": inventory}
        # The header is checked before the body; services of earlier releases read the body
        # alone.
        headers = {"Idempotency-Key": once, "Authorization": f"Bearer {token}"}
        return self._ask("POST", "/v1/agents", document, timeout_s=30.0, headers=headers)

    def heartbeat(self, document: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Renews the leases. Returns lease_s, stop, inventory_wanted."""
        return self._ask("POST", self._path("heartbeat"), document, timeout_s=timeout_s)

    def next_assignment(self, wait_s: float) -> Any:
        """Returns the next assignment's document, None when there is none within `wait_s`."""
        path = f"{self._path('assignments')}?wait_s={wait_s:g}"
        return self._ask("GET", path, None, timeout_s=wait_s + CONNECT_S).get("assignment")

    def report(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """Hands in reports. Returns accepted and refused."""
        return self._ask("POST", self._path("reports"), {"reports": reports}, timeout_s=60.0)

    def _path(self, call: str) -> str:
        return f"/v1/agents/{self._agent}/{call}"

    def _ask(
        self,
        method: str,
        path: str,
        document: dict[str, Any] | None,
        timeout_s: float,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        content = None if document is None else json.dumps(document).encode()
        headers = {} if headers is None else headers
        if content is not None:
            headers["Content-Type"] = "application/json"
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            response = self._http.request(
                method, path, content=content, headers=headers, timeout=timeout
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"{self._http.base_url}: {error or type(error).__name__}") from None
        if response.status_code == 204:
            return {}
        if response.is_success:
            return _object(response)
        text = f"{method} {path.partition('?')[0]}: {response.status_code} {_detail(response)}"
        if response.status_code >= 500 or response.status_code in (408, 425, 429):
            raise Unreachable(text, _retry_after(response))
        raise Refusal(response.status_code, text)


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Unreachable(f"{response.request.url.path}: the answer is not a JSON object")
    return document


def _detail(response: httpx.Response) -> str:
    try:
        document = response.json()
    except ValueError:
        return response.reason_phrase
    detail = document.get("detail") if isinstance(document, dict) else None
    return str(detail or response.reason_phrase)[:500]


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), 60.0) if text.isdecimal() else 0.0
