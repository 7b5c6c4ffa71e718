"""Self-contained pages: one HTML file, without network, scripts or other files."""

from __future__ import annotations

import base64
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --pale: #666; --rule: #ddd; --back: #fff;
  --tile: #f3f5f7; --accent: #0072b2 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --pale: #a5a5a5; --rule: #444;
  --back: #161819; --tile: #23272a; --accent: #56b4e9 } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--back);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: 0 0 .25rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
.source { color: var(--accent); font-weight: 600; margin: 0 }
.pale { color: var(--pale); font-size: .875rem; margin: 0 }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 }
.tile { background: var(--tile); border-radius: .5rem; padding: .75rem 1rem; flex: 1 1 9rem }
.tile b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums }
img { width: 100%; height: auto; background: #fff; border-radius: .5rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .75rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child { text-align: left }
.events td, .events th { text-align: left; white-space: normal }
th[colspan] { text-align: center } .wide + .pale { margin-top: .75rem }
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, body: str, style: str = "") -> str:
    """Return a whole page; the title is escaped, `body` and `style` must be HTML and CSS.

    >>> "<title>a &lt; b - Evenstep</title>" in document("a < b", "<p>hello</p>")
    True
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - Evenstep</title><style>{_STYLE}{style}</style></head>\n<body>"
        f"{body}</body></html>\n"
    )


def embedded(svg: bytes, words: str) -> str:
    """Return a picture as a part of a page; `words` describe it."""
    data = base64.b64encode(svg).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{data}">'
