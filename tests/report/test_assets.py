import base64
import hashlib
import re
from importlib.resources import files

import pytest

from paceline.report import assets


def names(ending):
    return {
        path.name for path in (files("paceline.report") / "assets").iterdir() if path.name.endswith(ending)
    }


def test_every_file_is_on_the_page_of_runs_or_of_plans_once():
    assert sorted(names(".js")) == sorted(assets._SCRIPTS)
    assert sorted(names(".css")) == sorted([*assets._STYLES, "plan.css"])


def test_the_policy_names_the_very_script_and_style():
    policy = assets.content_security_policy()
    for text in (assets.script(), assets.style()):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_no_script_makes_markup_of_text():
    """`innerHTML` and its like would turn a strategy's name into elements."""
    risky = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|srcdoc"
    assert not re.search(risky, assets.script())


@pytest.mark.parametrize("text", [assets.script, assets.style, assets.template])
def test_nothing_refers_to_another_place(text):
    found = re.findall(r"\w+://[^\s\"']+", text())
    assert set(found) <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_script_cannot_end_its_own_element():
    assert "</script" not in assets.script().lower()
    assert "<!--" not in assets.script()
