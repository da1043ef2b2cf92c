"""Sends inference requests at a steady rate, each by a new connection, and counts what fails by its reason. No second tries.

python3 load.py http://HOST:PORT MODEL BODY RATE stop-file: until the file exists. It needs no package.
"""

import collections
import http.client
import sys
import threading
import time
import urllib.parse
from pathlib import Path


def main(address: str, model: str, body: str, rate: str, stop: str) -> None:
    url, step = urllib.parse.urlsplit(address), 1 / float(rate)
    counted: collections.Counter[str] = collections.Counter()
    lock = threading.Lock()

    def ask() -> None:
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20)
        try:
            connection.request("POST", f"/v2/models/{model}/infer", body)
            response = connection.getresponse()
            said = response.read().decode(errors="replace")
            what = "answered" if response.status == 200 else f"{response.status} {said[:150]}"
        except (OSError, http.client.HTTPException) as error:
            what = f"{type(error).__name__} {error}"
        finally:
            connection.close()
        with lock:
            counted[what] += 1

    threads, began = [], time.monotonic()
    for number in range(sys.maxsize):
        if Path(stop).exists():
            break
        time.sleep(max(0.0, began + number * step - time.monotonic()))
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    for thread in threads:
        thread.join()
    print(f"    {sum(counted.values())} requests in {time.monotonic() - began:.0f} s")
    for what, times in counted.most_common():
        print(f"    {times:6} {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
