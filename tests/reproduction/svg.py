"""Looking at pictures."""

from xml.etree import ElementTree


def texts(picture):
    """Return all text of a picture."""
    return [
        element.text or ""
        for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    ]
