"""Text in pieces up to a stop sequence, however it is cut."""

from hypothesis import given
from hypothesis import strategies as st

from serving.frontends.openai.completion import StopSequences

TEXT = st.text("ab", max_size=30)


@given(st.lists(TEXT, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_pieces_join_to_the_text_before_the_first_stop_sequence(pieces: list[str], stops: list[str]) -> None:
    stopper = StopSequences(tuple(stops))
    found = "".join(stopper.feed(piece, last) for piece, last in zip(pieces, [False] * len(pieces), strict=True))
    found += stopper.feed("", True)
    whole = "".join(pieces)
    places = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    assert found == (whole[: min(places)[1]] if places else whole)
    assert stopper.found == bool(places)


def test_only_text_that_may_begin_a_stop_sequence_is_held_back() -> None:
    stopper = StopSequences(("\n\nUser:", "###"))
    assert stopper.feed("hello\n") == "hello"
    assert stopper.feed("there#") == "\nthere"
    assert stopper.feed("1") == "#1"
