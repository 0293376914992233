from xml.etree import ElementTree

from paceline.show import svg


def test_a_document_is_xml_with_its_title_and_paper():
    root = ElementTree.fromstring(
        svg.document(30, 20, "a < b & c", [svg.text(1, 2, "<x>"), svg.rule(0, 0, 1, 1)])
    )
    names = [child.tag.partition("}")[2] for child in root]
    assert names == ["title", "style", "rect", "text", "path"]
    assert root[0].text == "a < b & c"
    assert root[3].text == "<x>"


def test_every_colour_but_one_that_suits_both_has_a_partner_on_dark_paper():
    style = ElementTree.fromstring(svg.document(1, 1, "", []))[1].text
    assert "prefers-color-scheme: dark" in style
    for colour in {svg.INK, svg.MUTED, svg.FAINT, svg.PAPER, *svg.COLOURS} - {"#cc79a7"}:
        assert f'[fill="{colour}"]' in style
        assert f'[stroke="{colour}"]' in style
