from xml.etree import ElementTree

from paceline.checking.cut_facts import Facts, StageFacts
from paceline.checking.cut_picture import bars, draw


def facts(*seconds):
    stages = [
        StageFacts(
            number=n,
            first=f"blocks.{n}",
            last=f"blocks.{n}",
            parameters=1000,
            share=1 / len(seconds),
            seconds=each,
            bytes_out=2048 if n + 1 < len(seconds) else 0,
        )
        for n, each in enumerate(seconds)
    ]
    return Facts(stages, 8, 12)


def test_the_drawing_names_each_stage_and_what_crosses_each_cut():
    picture = ElementTree.fromstring(draw(facts(0.01, 0.02, 0.005), "a < b"))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [f"blocks.{n}" in texts for n in range(3)] == [True] * 3
    assert sum("the same amount back" in text for text in texts) == 2


def test_bars_are_as_long_as_stages_are_slow():
    lines = [line for line in bars(facts(0.01, 0.02)) if line.startswith("stage")]
    assert [line.count("█") for line in lines] == [20, 40]


def test_the_slowest_stage_is_named():
    assert "Stage 1 is the slowest" in facts(0.01, 0.02).words()
    assert "75%" in facts(0.01, 0.02).words()
