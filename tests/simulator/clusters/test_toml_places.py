"""The scanner that finds the line of every key in a TOML text."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ClusterFileError
from evenstep.simulator.clusters.file.toml_places import find_places, parse_toml

TRICKY = r'''# [[comment]]
a = 1
"b.c" = "x # [no] = \" y"
d.e.f = 1.5e3
when = 1979-05-27 07:32:00 # note
rows = [ [1, 2], # comment ]
  [3,
   4], {x = 1, "y z"={q=[1,2]}},

  5]
empty = []
also_empty = {}
text = """
[[workers]]
k = 1 """"
literal = QQQit's ''fine''QQQ
none = ''
[ table . sub ]
x=1
[[workers]]
name = 'w'
[workers.noise]
sigma = 1
[[workers.deep]]
a = 1
[[workers.deep]]
a = 2
[[workers]]
1.2 = true
[table]
z = """a\"""b"""
[last]'''.replace("QQQ", "'''")


def paths(value, path=()):
    """All keys and positions in what a text means."""
    found = {path} if path else set()
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= paths(inner, (*path, key))
    return found


def test_every_key_and_element_has_a_place_and_nothing_else():
    assert set(find_places(TRICKY)) == paths(parse_toml("file", TRICKY))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 2),
        (("b.c",), 3),
        (("d", "e", "f"), 4),
        (("rows",), 6),
        (("rows", 0), 6),
        (("rows", 1), 7),
        (("rows", 1, 1), 8),
        (("rows", 2, "y z", "q"), 8),
        (("rows", 3), 10),
        (("text",), 13),
        (("none",), 17),
        (("table", "sub", "x"), 19),
        (("workers", 0), 20),
        (("workers", 0, "name"), 21),
        (("workers", 0, "noise", "sigma"), 23),
        (("workers", 0, "deep", 1, "a"), 27),
        (("workers", 1), 28),
        (("workers", 1, "1", "2"), 29),
        (("table", "z"), 31),
        (("last",), 32),
    ],
)
def test_a_place_is_the_line_of_the_key(path, line):
    assert find_places(TRICKY)[path] == line


def test_windows_line_ends_change_nothing():
    assert find_places(TRICKY.replace("\n", "\r\n")) == find_places(TRICKY)


keys = st.text("ab-1_", min_size=1, max_size=3)
scalars = st.sampled_from(["1", "-2.5", "true", '"a]}"', "'#'", '"\\""', '""', "[]", "{}", "nan"])
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(inner, max_size=3).map(lambda items: "[ # ]\n" + " ,\n".join(items) + "\n]"),
        st.dictionaries(keys, inner, max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{k} = {v}" for k, v in pairs.items()) + "}"
        ),
    ),
    max_leaves=6,
)
pairs = st.dictionaries(keys, values, max_size=4).map(
    lambda pairs: "".join(f"{key} = {value}\n" for key, value in pairs.items())
)


@given(top=pairs, tables=st.lists(pairs, max_size=4))
def test_places_are_complete_in_any_text(top, tables):
    text = top + "".join(f"[[tables]]\n{table}" for table in tables)
    assert set(find_places(text)) == paths(parse_toml("file", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = \n", "f.toml:2: must be valid TOML: Invalid value (at line 2, column 5)"),
        (
            "a = 1\na = 2\n",
            "f.toml:2: must be valid TOML: Cannot overwrite a value (at line 2, column 6)",
        ),
        ("a = 1\nb = [", "f.toml:2: must be valid TOML: Invalid value (at end of document)"),
    ],
)
def test_a_syntax_error_has_its_line(text, message):
    with pytest.raises(ClusterFileError) as caught:
        parse_toml("f.toml", text)
    assert str(caught.value) == message


def test_a_number_of_thousands_of_digits_is_a_mistake():
    if not hasattr(sys, "set_int_max_str_digits"):
        pytest.skip("this Python reads it")
    with pytest.raises(ClusterFileError, match=r"^f.toml:1: must be valid TOML: "):
        parse_toml("f.toml", "a = " + "9" * 10_000)
