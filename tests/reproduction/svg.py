"""Looking at pictures."""

import re
from html import unescape


def texts(picture):
    """Return all text of a picture; its letters are shapes, with comments that say which."""
    comments = re.findall(r"<!-- (.*?) -->", picture.decode(), re.DOTALL)
    return [unescape(text) for text in comments]
