"""Self-contained pages: one HTML file, without network, scripts or other files."""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

from evenstep.insight.plots.palette import DARK, LIGHT

_STYLE = (
    f"""
:root {{ color-scheme: light dark; {LIGHT.css()} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK.css()} }} }}
"""
    + """
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--back);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
@media (max-width: 30rem) { body { padding: 1rem } }
h1 { font-size: 1.5rem; margin: 0 0 .25rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
.source { color: var(--run); font-weight: 600; margin: 0 }
.pale { color: var(--pale); font-size: .875rem; margin: 0 }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 }
.tile { background: var(--tile); border-radius: .5rem; padding: .6rem .8rem; flex: 1 1 9rem;
  box-sizing: border-box }
.tile b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums }
figure { margin: 0 0 1rem; overflow-x: auto }
svg { display: block; width: 100%; min-width: 46rem; fill: currentColor;
  stroke-linejoin: round; stroke-linecap: butt }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .5rem; overflow-wrap: normal; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child { text-align: left }
.events td, .events th { text-align: left }
.events td:last-child { white-space: normal; overflow-wrap: anywhere; min-width: 12rem }
th[colspan] { text-align: center } .wide + .pale { margin-top: .75rem }
"""
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


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


def inlined(svg: bytes, words: str) -> str:
    """Return an SVG picture of ours as a part of a page; `words` describe it.

    Its colours become the variables of the page, so that they are right on a dark page, too, and
    its text takes the font of the page. Names of definitions begin with the initials of the
    words, as they must differ from those of other pictures.
    """
    root = ElementTree.fromstring(svg)
    prefix = "".join(word[0] for word in re.findall(r"\w+", words.lower())) + "-"
    for parent in list(root.iter()):
        for child in [child for child in parent if _local(child.tag) in ("metadata", "style")]:
            parent.remove(child)
        parent.tag = _local(parent.tag)
        parent.attrib = _attributes(parent.attrib, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": words}
    picture = ElementTree.tostring(root, encoding="unicode")
    return f'<figure tabindex="0">{picture}</figure>'


_VARIABLES = {colour: f"var(--{name})" for name, colour in LIGHT.roles.items()}
_DEFINED = "[pmh](?=[0-9a-f]{10})"
"""How the names of definitions begin: clip paths, markers and hatches."""


def _local(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition("}")[2]


def _attributes(given: dict[str, str], prefix: str) -> dict[str, str]:
    """Return the attributes of an element as they are on a page."""
    named = {_local(name): value for name, value in given.items()}
    colours = [f"{name}: {named.pop(name)}" for name in ("fill", "stroke") if name in named]
    style = "; ".join(filter(None, [named.pop("style", ""), *colours]))
    if not re.match(_DEFINED, named.get("id", "")):
        named.pop("id", None)
    short = {
        name: re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", value)
        for name, value in named.items()
    }
    if style:
        style = re.sub("font-family:[^;]*(; )?", "", style)
        short["style"] = re.sub(
            "#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), style
        )
    if "id" in short:
        short["id"] = prefix + short["id"]
    return {
        name: re.sub(rf"((?:^|url\()#)(?={_DEFINED})", rf"\g<1>{prefix}", value)
        for name, value in short.items()
    }
