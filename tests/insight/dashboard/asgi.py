"""A request to an ASGI application, without a server or a network."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def get(app: Any, target: str, host: str = "127.0.0.1:7413", **headers: str) -> Answer:
    """Return the answer to a GET; of a stream, what comes before it is left."""
    return asyncio.run(_get(app, "GET", target, host, headers))


def send(app: Any, method: str, target: str) -> Answer:
    """Return the answer to another method."""
    return asyncio.run(_get(app, method, target, "127.0.0.1:7413", {}))


async def ask(app: Any, target: str) -> Answer:
    """Return the answer to a GET, beside whatever else is going on."""
    return await _get(app, "GET", target, "127.0.0.1:7413", {})


async def _get(
    app: Any, method: str, target: str, host: str, headers: dict[str, str], enough: int = 100_000
) -> Answer:
    parts = urlsplit(target)
    names = {"host": host, **headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
        "method": method, "path": parts.path, "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(), "root_path": "", "scheme": "http",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in names.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 7413),
    }  # fmt: skip
    start: dict[str, Any] = {}
    body = bytearray()
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await done.wait()
        return {"type": "http.disconnect"}

    async def take(message: dict[str, Any]) -> None:
        # A server lets others go on while it sends.
        await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            body.extend(message.get("body", b""))
            if not message.get("more_body") or len(body) >= enough:
                done.set()

    await asyncio.wait_for(app(scope, receive, take), timeout=20)
    given = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], given, bytes(body))
