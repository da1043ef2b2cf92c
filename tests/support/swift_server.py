"""OpenStack Swift with its S3 interface in one process: /usr/bin/python3 swift_server.py FOLDER PORT

Debian's python3-swift brings it. FOLDER is new, or one in which it was stopped. The key is `test:tester`, the secret `testing`.
Source: Swift, doc/source/development_saio.rst.
"""
# ruff: noqa: E402  the first lines change what the others import

import os

os.environ["EVENTLET_NO_GREENDNS"] = "yes"

import eventlet

eventlet.monkey_patch()

import socket
import sys
from pathlib import Path

from eventlet import wsgi
from swift.common.http_protocol import SwiftHttpProtocol
from swift.common.ring import RingBuilder
from swift.common.utils import NullLogger, set_swift_dir
from swift.common.wsgi import loadapp

HOW = {"protocol": SwiftHttpProtocol, "capitalize_response_headers": False}  # as Swift itself runs them
SWIFT = "[swift-hash]\nswift_hash_path_suffix = any\n[storage-policy:0]\nname = only\ndefault = yes\n"
NODE = "[DEFAULT]\nswift_dir = {0}\ndevices = {0}/node\nmount_check = false\n[app:main]\nuse = egg:swift#{1}\n"
PROXY = """
[DEFAULT]
swift_dir = {0}
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
"""
FILTER = "[filter:{0}]\nuse = egg:swift#{0}\n"


def main(folder: Path, port: int) -> None:
    (folder / "node" / "disk").mkdir(parents=True, exist_ok=True)
    (folder / "swift.conf").write_text(SWIFT)
    set_swift_dir(str(folder))
    sockets = {kind: eventlet.listen(("127.0.0.1", 0)) for kind in ("account", "container", "object")}
    for kind, listening in sockets.items():
        _ring(folder / f"{kind}.ring.gz", listening)
        (folder / f"{kind}.conf").write_text(NODE.format(folder, kind))
    filters = "".join(map(FILTER.format, ("catch_errors", "listing_formats", "slo")))
    (folder / "proxy.conf").write_text(PROXY.format(folder) + filters)
    sockets["proxy"] = eventlet.listen(("127.0.0.1", port))
    for kind, listening in sockets.items():
        application = loadapp(str(folder / f"{kind}.conf"), global_conf={"log_level": "CRITICAL"})
        eventlet.spawn(wsgi.server, listening, _with_length(application), NullLogger(), **HOW)
    eventlet.Event().wait()


def _with_length(application):
    """Return the application with a length in each answer to HEAD.

    Without one, Debian's eventlet sends the end of a chunked body, which a client takes for the next answer.
    """

    def answer(environ, start_response):
        def start(status, headers, *more):
            missing = not any(name.lower() == "content-length" for name, _ in headers)
            added = [("Content-Length", "0")] if missing and environ["REQUEST_METHOD"] == "HEAD" else []
            return start_response(status, headers + added, *more)

        return application(environ, start)

    return answer


def _ring(path: Path, listening: socket.socket) -> None:
    builder = RingBuilder(4, 1, 0)
    place = {"region": 1, "zone": 1, "weight": 1, "device": "disk", "ip": "127.0.0.1"}
    builder.add_dev(place | {"port": listening.getsockname()[1]})
    builder.rebalance()
    builder.get_ring().save(str(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
