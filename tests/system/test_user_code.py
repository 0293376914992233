from functools import partial

from paceline.system.user_code import name_of, user_traceback


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


def test_a_function_is_called_what_it_was_defined_as():
    def validation_error():
        pass

    class Metric:
        pass

    assert name_of(partial(partial(validation_error))) == "validation_error"
    assert [name_of(each) for each in ("loss", None, Metric())] == ["loss", "", "Metric"]
