"""Who may look: the token, the Host on loopback, and what a browser may do with our answers."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evenstep.manager.access import bearer, is_token, names_this_machine

ANSWERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer: no script but ours, nothing from elsewhere, nothing into frames."""


class Guard:
    """Stands before the pages. The page itself is no secret; what it shows is, under `/api/`."""

    def __init__(self, app: ASGIApp, token: str | None, local: bool) -> None:
        self._app = app
        self._token = token
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(ANSWERS)
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, answer)

    def _refusal(self, path: str, headers: Headers) -> PlainTextResponse | None:
        if self._local and not names_this_machine(headers.get("host", "")):
            # A page of elsewhere, in a browser of here, under a name that leads here.
            return PlainTextResponse("the Host must be localhost or a loopback address\n", 403)
        given = bearer(headers.get("authorization", ""))
        if path.startswith("/api/") and not is_token(given, self._token):
            challenge = {"WWW-Authenticate": 'Bearer realm="evenstep dashboard"'}
            rule = "Authorization: Bearer must give the dashboard's token\n"
            return PlainTextResponse(rule, 401, challenge)
        return None
