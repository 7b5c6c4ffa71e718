"""Access to a manager: addresses, tokens, and TLS."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from evenstep.errors import EvenstepError, InvalidSetting, Refused

DEFAULT_PORT = 7411
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
DEFAULT_HTTP_PORT = 7412
DEFAULT_HTTP_ADDRESS = f"127.0.0.1:{DEFAULT_HTTP_PORT}"
SHORTEST_TOKEN = 16
_JOB_TOKEN = "evenstep-job:"


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Read HOST:PORT, HOST, or [IPV6]:PORT.

    >>> parse_address("[::1]:80"), parse_address("node7")
    (('::1', 80), ('node7', 7411))
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or (":" in host and not text.startswith("[")):
        raise InvalidSetting(f"an address must be HOST:PORT or [IPV6]:PORT, got {text!r}")
    if not (port.isdecimal() and int(port) < 65536):
        raise InvalidSetting(f"a port must be a number from 0 to 65535, got {port!r}")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Return HOST:PORT, or [IPV6]:PORT.

    >>> format_address("::1", 80), format_address("node7", 7411)
    ('[::1]:80', 'node7:7411')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(
    address: tuple[str, int], error: OSError, option: str, holder: str
) -> EvenstepError:
    """Return the error of an address that cannot be listened on, with what to do.

    `option` sets the address, and `holder` is the program that usually has its port.

    >>> busy = OSError(errno.EADDRINUSE, "in use")
    >>> print(cannot_listen(("127.0.0.1", 7411), busy, "--listen", "another manager"))
    cannot listen on 127.0.0.1:7411: Address already in use, perhaps by another manager; stop that
    program, or choose another port with --listen 127.0.0.1:PORT (0: any free one)
    """
    host = format_address(*address).rpartition(":")[0]
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    what_to_do = {
        errno.EADDRINUSE: f", perhaps by {holder}; stop that program, or choose another port with "
        f"{option} {host}:PORT (0: any free one)",
        errno.EADDRNOTAVAIL: f"; {option} must be an address of this machine",
        errno.EACCES: f"; choose a port of 1024 or more with {option} {host}:PORT",
    }.get(error.errno or 0, f"; choose another address with {option} HOST:PORT")
    return EvenstepError(f"cannot listen on {format_address(*address)}: {reason}{what_to_do}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(
    host: str,
    has_token: bool,
    has_tls: bool,
    insecure: bool,
    harm: str = "change batch sizes",
    who: str = "a manager",
) -> str | None:
    """Return a warning if other machines could use or overhear a service; refuse it by default."""
    missing = [name for name, there in (("token", has_token), ("TLS", has_tls)) if not there]
    if is_loopback(host) or not missing:
        return None
    what = f"without {' and '.join(missing)}, address {host} that others can reach"
    if not insecure:
        raise InvalidSetting(f"{who} must listen on loopback, or have a token and TLS; got, {what}")
    return f"{what}: anybody there can {harm}"


def is_token(given: str, token: str | None) -> bool:
    """Whether a client gave the right token, if there is one; compares in constant time.

    >>> is_token("anything", None), is_token("", "correct-horse-battery")
    (True, False)
    """
    return token is None or hmac.compare_digest(given.encode(), token.encode())


def job_token(token: str, job: str) -> str:
    """Return the token for one job, which is derived from the manager's.

    >>> job_token("correct-horse-battery", "resnet")[:30]
    'evenstep-job:resnet:e3c4442e9b'
    """
    digest = hmac.digest(token.encode(), f"evenstep job {job}".encode(), "sha256")
    return f"{_JOB_TOKEN}{job}:{digest.hex()}"


def job_of(token: str) -> str | None:
    """Return the job that a token says it is for; None for the token of a manager.

    >>> job_of("evenstep-job:a:b:0123"), job_of("correct-horse-battery")
    ('a:b', None)
    """
    if not token.startswith(_JOB_TOKEN):
        return None
    # A job's name may have colons, and the digest has none.
    return token.removeprefix(_JOB_TOKEN).rpartition(":")[0]


def admitted_job(given: str, token: str | None) -> str | None:
    """Return the only job that a client with the given token may use; None if it may use all.

    Raises Refused if the token is neither the manager's nor that of one of its jobs.
    """
    if token is None:
        return None
    job = job_of(given)
    if not is_token(given, token if job is None else job_token(token, job)):
        # The message must not contain the token, nor its job, which may be the rest of a misspelt
        # token.
        raise Refused("TOKEN", "the token is not that of this manager, nor of a job of it")
    return job


def bearer(header: str) -> str:
    """Return the token in an Authorization header, as HTTP decodes it; empty without one.

    >>> bearer("Bearer correct-horse"), bearer("Basic dXNlcg==")
    ('correct-horse', '')
    """
    scheme, _, given = header.partition(" ")
    text = given.strip().encode("latin-1").decode("utf-8", "replace")
    return text if scheme.lower() == "bearer" else ""


def names_this_machine(host: str) -> bool:
    """Whether a Host header, with or without a port, names a loopback address.

    >>> names_this_machine("localhost:80"), names_this_machine("[::1]"), names_this_machine("[::")
    (True, True, False)
    """
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def read_token(path: str | Path) -> str:
    """Return the token in a file, without the white space around it."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise InvalidSetting(f"a token must be text in UTF-8, got other bytes in {path}") from None
    if not token.isprintable():
        # No HTTP header can carry it, and an error about the header would quote it.
        raise InvalidSetting(f"a token must be one line of printable letters, got more in {path}")
    if len(token) < SHORTEST_TOKEN:
        # The message must not contain the token, even a wrong one.
        raise InvalidSetting(
            f"a token must have at least {SHORTEST_TOKEN} characters, got {len(token)} in {path}"
        )
    return token


def read_own_token(path: str | Path) -> str:
    """Return the token of a manager in a file, which must not be that of a job."""
    token = read_token(path)
    if job_of(token) is not None:
        raise InvalidSetting(f"a token must be that of a manager, got that of a job in {path}")
    return token


def listening_context(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """Return the TLS context of a manager."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidSetting(
            f"{certificate} and {key} must be a certificate and its key, got {error}"
        ) from error
    return context


def client_context(authority: str | Path) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts certificates of this authority."""
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise InvalidSetting(f"{authority} must hold certificates, got {error}") from error
