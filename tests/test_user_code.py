from paceline.user_code import user_traceback


def test_the_frames_of_a_cause_are_trimmed_too():
    def inner():
        raise KeyError("inner")

    try:
        try:
            inner()
        except KeyError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        text = user_traceback(error)
    assert text.index("KeyError") < text.index("direct cause") < text.index("ValueError: outer")
