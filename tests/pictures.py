"""The content of an SVG: words, marks by colour, and values as positions on a scale. The markup does not matter."""

import math
import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

__all__ = ["SVG", "content_of", "is_scale", "marks", "paths_of", "points_of", "read", "texts"]

SVG = "{http://www.w3.org/2000/svg}"


def read(picture):
    """Parse a picture. Raises an error if it is not a well-formed SVG document."""
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    return root


def texts(root):
    return [each.text for each in root.iter(f"{SVG}text")]


def marks(root, tag, **attributes):
    """Elements of a kind, such as "rect", with these attributes (such as a colour)."""
    found = root.iter(f"{SVG}{tag}")
    return [each for each in found if all(each.get(name) == value for name, value in attributes.items())]


def paths_of(path):
    """The separate lines or shapes of a path element: their start points."""
    return re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path.get("d"))


def points_of(path):
    """The corners of a path element of straight lines."""
    places = path.get("d").removeprefix("M").removesuffix("z").split("L")
    return [tuple(map(float, place.split())) for place in places]


def is_scale(values, places, *, within=0.1):
    """Return whether the positions are the values on a linear scale, with a tolerance of `within`."""
    low, high = (
        min(range(len(values)), key=values.__getitem__),
        max(range(len(values)), key=values.__getitem__),
    )
    if values[low] == values[high]:
        return all(math.isclose(a, b, abs_tol=within) for a, b in pairwise(places))
    slope = (places[high] - places[low]) / (values[high] - values[low])
    expected = [places[low] + slope * (value - values[low]) for value in values]
    return slope != 0 and all(
        math.isclose(a, b, abs_tol=2 * within) for a, b in zip(places, expected, strict=True)
    )


def content_of(root):
    """Return the words in order, and the number of marks of each kind and colour."""
    colours = Counter((each.tag, each.get("fill"), each.get("stroke")) for each in root.iter())
    return [root.find(f"{SVG}title").text, *texts(root)], colours
