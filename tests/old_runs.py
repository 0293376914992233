"""Saved runs as they were before they had checksums: what is in their files has to be looked at all the more."""

import json


def without_checksums(content):
    """The run.json of format 1."""
    values = json.loads(content) | {"format": 1}
    return json.dumps(
        {key: value for key, value in values.items() if key not in ("sha256", "files")}
    ).encode()


def make_old(folder):
    path = folder / "run.json"
    path.write_bytes(without_checksums(path.read_bytes()))
