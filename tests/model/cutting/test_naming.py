from paceline.model.cutting.naming import Names

MODEL = Names(
    [
        "embed",
        "blocks.0.norm",
        "blocks.0.attention",
        "blocks.0",  # the sum of a residual
        "blocks.0.up",
        "blocks.0.down",
        "blocks.0",
        "blocks.1.norm",
        "blocks.1.attention",
        "blocks.1",
        "blocks.1.up",
        "blocks.1",
        "head",
    ]
)


def test_a_block_that_is_here_as_a_whole_is_named_as_a_block():
    assert MODEL.between(1, 7) == ("blocks.0", "blocks.0")
    assert MODEL.between(1, 12) == ("blocks", "blocks")
    assert MODEL.between(7, 13) == ("blocks.1", "head")


def test_of_a_block_that_is_cut_the_layers_next_to_the_cut_are_named():
    assert MODEL.between(0, 4) == ("embed", "blocks.0.attention")
    assert MODEL.between(4, 10) == ("blocks.0.up", "blocks.1.attention")
    assert MODEL.between(9, 13) == ("blocks.1.up", "head")


def test_an_operation_alone_has_the_name_of_its_block():
    assert MODEL.between(3, 4) == ("blocks.0", "blocks.0")
