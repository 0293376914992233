"""Saved runs of older formats without checksums. The content of their files must be checked with more care."""

import json

import numpy as np

from paceline.trace.spans import SPAN_WITHOUT_MESSAGE


def without_checksums(content):
    """The run.json of format 1."""
    values = json.loads(content) | {"format": 1}
    return json.dumps(
        {key: value for key, value in values.items() if key not in ("sha256", "files")}
    ).encode()


def make_old(folder):
    path = folder / "run.json"
    path.write_bytes(without_checksums(path.read_bytes()))


def without_message_ids(arrays):
    """The arrays of a trace of formats 1 and 2."""
    old = arrays["spans"][list(SPAN_WITHOUT_MESSAGE.names)].astype(SPAN_WITHOUT_MESSAGE)
    return dict(arrays) | {"spans": old}


def remove_message_ids(folder):
    """Make a saved run one of format 1."""
    make_old(folder)
    with np.load(folder / "spans.npz") as arrays:
        old = without_message_ids(arrays)
    np.savez_compressed(folder / "spans.npz", **old)
