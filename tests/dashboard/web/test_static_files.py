"""Static files are kept for good at addresses that change with them; they are compressed, and so is every other text."""

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

import pytest
from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.templatetags.static import static
from django.test import Client, RequestFactory

from dashboard.models import Version
from dashboard.web.compression import CompressText
from dashboard.web.static_files import ASK_EACH_TIME, FOR_GOOD, static_files

TAKES_GZIP = {"Accept-Encoding": "gzip, deflate"}


def source(name: str) -> bytes:
    return (settings.BASE_DIR / "static" / name).read_bytes()


@pytest.mark.parametrize("name", ["js/app.js", "css/base.css", "img/icons.svg"])
def test_a_file_is_compressed_and_kept_for_good_at_the_address_that_pages_have(name: str) -> None:
    answer = Client().get(static(name), headers=TAKES_GZIP)
    assert (answer.status_code, answer["Cache-Control"], answer["Content-Encoding"]) == (200, FOR_GOOD, "gzip")
    assert gzip.decompress(answer.content) == source(name)
    assert answer["Vary"] == "Accept-Encoding"
    assert int(answer["Content-Length"]) == len(answer.content)
    for refusing in ({}, {"Accept-Encoding": "gzip;q=0, br"}):
        plain = Client().get(static(name), headers=refusing)
        assert plain.content == source(name)
        assert not plain.has_header("Content-Encoding")


def imports(name: str) -> Iterator[str]:
    """What a module or style sheet takes of others, relative to itself."""
    yield from re.findall(r'(?:from |import\()"(\.[^"]+)"|url\("?(\.[^")]+)', source(name).decode())


def test_modules_and_styles_find_what_they_import_kept_for_good_as_well() -> None:
    names = [str(path.relative_to(settings.BASE_DIR / "static")) for path in settings.BASE_DIR.glob("static/*/**/*.*s")]
    assert len(names) > 30
    wanted = {normpath(join(dirname(static(name)), *found)) for name in names for found in imports(name)}
    assert len(wanted) > 20
    for address in wanted:
        answer = Client().get(address)
        assert (answer.status_code, answer["Cache-Control"]) == (200, FOR_GOOD), address


@pytest.fixture
def site(settings: Any, tmp_path: Path) -> Iterator[Path]:
    """A folder of static files of the test's own; after_update() starts another process on it."""
    (tmp_path / "js").mkdir()
    (tmp_path / "js" / "app.js").write_text("first")
    settings.STATICFILES_DIRS = [tmp_path, *settings.STATICFILES_DIRS[1:]]
    static_files.cache_clear()
    yield tmp_path
    static_files.cache_clear()


def test_a_changed_file_is_never_served_stale(site: Path) -> None:
    before, package = static("js/app.js"), static("plotly/plotly.min.js")
    (site / "js" / "app.js").write_text("second")
    assert Client().get(before).content == b"first", "a process that runs goes on with what fits its pages"
    static_files.cache_clear()  # it was started again
    after = static("js/app.js")
    assert after != before
    assert static("plotly/plotly.min.js") == package, "what did not change need not be fetched again"
    assert (Client().get(after).content, Client().get(after)["Cache-Control"]) == (b"second", FOR_GOOD)
    for address in (before, "/static/js/app.js"):
        answer = Client().get(address)
        assert (answer.content, answer["Cache-Control"]) == (b"second", ASK_EACH_TIME)
        again = Client().get(address, headers={"If-None-Match": answer["ETag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_while_somebody_develops_a_change_shows_at_once(site: Path, settings: Any) -> None:
    settings.DEBUG = True
    before = static("js/app.js")
    (site / "js" / "app.js").write_text("second, and longer")
    assert static("js/app.js") != before
    assert Client().get(static("js/app.js")).content == b"second, and longer"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "0123/",
        "js/none.js",
        "../manage.py",
        "%2e%2e/manage.py",
        "plotly/datasets/iris.csv.gz",
        "rest_framework/css/default.css",
    ],
)
def test_nothing_else_is_served(path: str) -> None:
    assert Client().get(f"/static/{path}").status_code == 404


def test_files_are_only_read() -> None:
    assert Client().post(static("js/app.js")).status_code == 405
    assert Client().head(static("js/app.js")).content == b""


def test_a_template_that_names_no_file_fails() -> None:
    with pytest.raises(ValueError, match="no static file"):
        static("js/none.js")


def test_pages_and_json_are_compressed_where_the_client_takes_it(
    relu: Version, as_person: Callable[..., Client]
) -> None:
    viewer = as_person()
    for path in ("/", "/models/relu/", "/api/v1/models", "/metrics?start=1&end=2"):
        plain, packed = viewer.get(path), viewer.get(path, headers=TAKES_GZIP)
        assert not plain.has_header("Content-Encoding"), path
        assert packed["Content-Encoding"] == "gzip" or len(plain.content) < 200, path
        assert len(packed.content) < len(plain.content), path


def test_the_length_of_a_page_tells_nothing_of_its_secrets(relu: Version, as_person: Callable[..., Client]) -> None:
    viewer = as_person("operate")
    lengths = {len(viewer.get("/models/relu/", headers=TAKES_GZIP).content) for _ in range(12)}
    assert len(lengths) > 3
    tokens = {re.findall(b'data-csrf="([^"]+)"', viewer.get("/").content)[0] for _ in range(3)}
    assert len(tokens) == 3


@pytest.mark.parametrize(
    "response",
    [
        HttpResponse(b"\0" * 5000, content_type="application/zip"),
        HttpResponse(b"\0" * 5000, content_type="application/octet-stream"),
        HttpResponse(b"x" * 5000, content_type="text/html", headers={"Content-Encoding": "gzip"}),
        StreamingHttpResponse([b"x" * 5000], content_type="text/html"),
    ],
    ids=["archive", "bytes", "compressed before", "piece by piece"],
)
def test_what_is_packed_or_sent_in_pieces_stays_as_it_is(response: HttpResponse) -> None:
    before = dict(response.headers)
    request = RequestFactory().get("/", headers=TAKES_GZIP)
    assert CompressText(lambda _: response)(request) is response
    assert dict(response.headers) == before
