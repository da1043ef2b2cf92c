"""Places in the memory that the core and a worker share: given out, viewed, and free again without views."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from serving.workers.link.shared_area import KEPT, PAGE, AreaReader, AreaWriter, create_area


@pytest.fixture
def area() -> Iterator[tuple[AreaWriter, AreaReader, int]]:
    descriptor = create_area(8 * PAGE)
    yield AreaWriter(descriptor), AreaReader(descriptor), descriptor
    os.close(descriptor)


def test_places_do_not_overlap_and_run_out(area: tuple[AreaWriter, AreaReader, int]) -> None:
    writer, _, _ = area
    places = [writer.place(size) for size in (1, PAGE, PAGE + 1, 4 * PAGE)]
    assert places == [0, PAGE, 2 * PAGE, 4 * PAGE]
    assert writer.place(1) == -1


def test_neighbours_that_come_back_in_any_order_are_one_place_again(area: tuple[AreaWriter, AreaReader, int]) -> None:
    writer, _, _ = area
    places = [writer.place(PAGE) for _ in range(8)]
    for place in (places[3], places[0], places[7], places[1], places[2], places[6], places[4], places[5]):
        writer.give_back(place)
    assert writer.place(8 * PAGE) == 0


def test_a_place_is_free_when_the_last_view_of_it_has_gone(area: tuple[AreaWriter, AreaReader, int]) -> None:
    writer, reader, _ = area
    place = writer.place(4 * PAGE)
    writer.array(place, (PAGE,), np.dtype(np.float32))[:] = 3
    tensor = np.ndarray((PAGE,), np.float32, reader.view(place, 4 * PAGE))
    part = tensor.reshape(2, -1)[1:]
    del tensor
    assert reader.take_freed() == []
    assert (part == 3).all()
    raw = memoryview(part).cast("B")
    del part
    assert reader.take_freed() == []
    del raw
    assert reader.take_freed() == [place]
    assert reader.take_freed() == []


def test_memory_that_was_needed_once_goes_back_to_the_system() -> None:
    descriptor = create_area(4 * KEPT)
    writer = AreaWriter(descriptor)
    place = writer.place(3 * KEPT)
    writer.write(place, bytes(3 * KEPT))
    assert os.fstat(descriptor).st_blocks * 512 >= 3 * KEPT
    writer.give_back(place)
    assert os.fstat(descriptor).st_blocks * 512 <= KEPT
    os.close(descriptor)
