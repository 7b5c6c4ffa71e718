"""What the page is made of: a few files in this package, read once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""By the ends of their names; a browser that may not guess must be told."""


class Asset(NamedTuple):
    """A file, and what kind of file it is."""

    content: bytes
    kind: str


def load() -> Mapping[str, Asset]:
    """Return the files by their names.

    >>> load()["index.html"].kind
    'text/html; charset=utf-8'
    """
    folder = files("evenstep.dashboard") / "assets"
    return {
        file.name: Asset(file.read_bytes(), TYPES[file.name.rpartition(".")[2]])
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in TYPES
    }
