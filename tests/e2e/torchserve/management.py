"""The requests to the management API: the life of models, in this order."""

import re
from dataclasses import replace

from tests.e2e.torchserve.asking import Ask
from tests.e2e.torchserve.predictions import outline


def manage(title: str, method: str, target: str, body: bytes = b"", **headers: str) -> Ask:
    return Ask(
        title,
        target,
        body,
        {name.replace("_", "-"): value for name, value in headers.items()},
        method,
        "management",
        same,
    )


VARYING = [
    (r'("(?:id|startTime|memoryUsage|pid)": )[^,\n]+', r"\1..."),
    (r"model_store=\S+", "model_store=..."),
    (r'"gpuUsage": "[^"]*"', '"gpuUsage": "..."'),
]


def same(text: str) -> str:
    """Take away what is of one process or one machine."""
    for pattern, put in VARYING:
        text = re.sub(pattern, put, text)
    return text


LISTS = [
    manage("the list", "GET", "/models"),
    manage("the list with a slash", "GET", "/models/"),
    manage("the first page", "GET", "/models?limit=2"),
    manage("the second page", "GET", "/models?limit=2&next_page_token=2"),
    manage("a page that is exactly full", "GET", "/models?limit=6"),
    manage("a page of none", "GET", "/models?limit=0"),
    manage("a page of a negative size", "GET", "/models?limit=-1"),
    manage("a page of a word", "GET", "/models?limit=many"),
    manage("a page beyond the last", "GET", "/models?next_page_token=50"),
    manage("a page that begins at a word", "GET", "/models?next_page_token=here"),
    manage("a model described", "GET", "/models/service"),
    manage("a version described", "GET", "/models/service/1.0"),
    manage("all versions described", "GET", "/models/service/all"),
    manage("a model with its settings described", "GET", "/models/rows"),
    manage("a model described by its handler", "GET", "/models/rows?customized=true"),
    manage("a version described by its handler", "GET", "/models/rows/1.0?customized=true"),
    manage("a model whose handler says nothing of itself", "GET", "/models/acts?customized=true"),
    manage("an unknown model described", "GET", "/models/nobody"),
    manage("an unknown version described", "GET", "/models/acts/9.9"),
    manage("no such route", "GET", "/nothing"),
    manage("OPTIONS on the list of models", "OPTIONS", "/models"),
    manage("the root", "GET", "/"),
    manage("the inference API here", "POST", "/predictions/acts"),
    manage("ping here", "GET", "/ping"),
    manage("PATCH on models", "PATCH", "/models"),
    manage("POST on a model", "POST", "/models/acts"),
    manage("a token where tokens are off", "GET", "/token?type=inference"),
    replace(manage("the description of the management API", "OPTIONS", "/"), same=outline),
    replace(manage("the description of the management API by name", "GET", "/api-description"), same=outline),
]
REFUSED = [
    manage("registering nothing", "POST", "/models"),
    manage("registering an empty url", "POST", "/models?url="),
    manage("registering an unknown archive", "POST", "/models?url=nobody.mar"),
    manage("registering from outside the store", "POST", "/models?url=../acts.mar"),
    manage("registering an absolute path", "POST", "/models?url=/etc/passwd"),
    manage("registering from an address that is not allowed", "POST", "/models?url=http://127.0.0.2:1/acts.mar"),
    manage("registering from an address that nobody listens on", "POST", "/models?url=http://127.0.0.1:9/other.mar"),
    manage("registering a file that is no archive", "POST", "/models?url=broken.mar"),
    manage("registering twice", "POST", "/models?url=acts.mar"),
    manage("registering an unknown runtime", "POST", "/models?url=tarred.tar.gz&runtime=perl"),
    manage(
        "registering with a form",
        "POST",
        "/models",
        b"url=tarred.tar.gz",
        Content_Type="application/x-www-form-urlencoded",
    ),
    manage("registering with broken JSON", "POST", "/models", b'{"url": ', Content_Type="application/json"),
    manage("registering what cannot be imported", "POST", "/models?url=fails_to_import.mar&initial_workers=1"),
    manage("the model that could not be imported", "GET", "/models/fails_to_import"),
    manage("scaling an unknown model", "PUT", "/models/nobody?min_worker=1"),
    manage("scaling an unknown version", "PUT", "/models/acts/9.9?min_worker=1"),
    manage("scaling to a negative number", "PUT", "/models/eager?min_worker=-1"),
    manage("scaling to more than the most", "PUT", "/models/acts?min_worker=3&max_worker=2"),
    manage("an unknown default", "PUT", "/models/acts/9.9/set-default"),
    manage("a default of an unknown model", "PUT", "/models/nobody/1.0/set-default"),
    manage("unregistering an unknown model", "DELETE", "/models/nobody"),
    manage("unregistering an unknown version", "DELETE", "/models/acts/9.9"),
]
LIFE = [
    manage("registering without workers", "POST", "/models?url=tarred.tar.gz&initial_workers=0"),
    manage("described without workers", "GET", "/models/tarred"),
    Ask("predicted without workers", "/predictions/tarred", b"x"),
    manage("scaled up and waited for", "PUT", "/models/tarred?min_worker=1&synchronous=true"),
    Ask("predicted with a worker", "/predictions/tarred", b"x"),
    manage("scaled down and waited for", "PUT", "/models/tarred?min_worker=0&max_worker=0&synchronous=true"),
    Ask("predicted after the workers went", "/predictions/tarred", b"x"),
    manage("unregistered", "DELETE", "/models/tarred"),
    manage("described after it went", "GET", "/models/tarred"),
    Ask("predicted after it went", "/predictions/tarred", b"x"),
    manage("registered from a folder", "POST", "/models?url=unpacked&initial_workers=0&model_name=other"),
    manage("described under its other name", "GET", "/models/other"),
    manage("unregistered by version", "DELETE", "/models/other/1.0"),
    manage(
        "registered with settings",
        "POST",
        "/models?url=service_2.mar&initial_workers=1&batch_size=3&max_batch_delay=70&response_timeout=30&startup_timeout=90",
    ),
    manage("registered with settings that cannot be used", "POST", "/models?url=unusable.mar&initial_workers=0"),
    manage("described with those", "GET", "/models/unusable"),
    manage("unregistered with those", "DELETE", "/models/unusable"),
    manage(
        "registered with time-outs beside a model-config.yaml",
        "POST",
        "/models?url=hasty.mar&initial_workers=0&response_timeout=30&startup_timeout=90",
    ),
    manage("describing an archive with a delay of 0", "GET", "/models/hasty"),
    manage("unregistered with a delay of none", "DELETE", "/models/hasty"),
    manage("both versions described", "GET", "/models/service/all"),
    Ask("the default stays", "/predictions/service", b"x"),
    Ask("the new version by name", "/predictions/service/2.0", b"x"),
    manage("the new version made the default", "PUT", "/models/service/2.0/set-default"),
    Ask("the new default", "/predictions/service", b"x"),
    manage("unregistering the default while another stays", "DELETE", "/models/service/2.0"),
    manage("the old version unregistered", "DELETE", "/models/service/1.0"),
    manage("what is left", "GET", "/models/service/all"),
    Ask("the old version by name after it went", "/predictions/service/1.0", b"x"),
    manage("the last version unregistered", "DELETE", "/models/service"),
    manage(
        "registered by JSON",
        "POST",
        "/models",
        b'{"url": "service.mar", "initial_workers": 0}',
        Content_Type="application/json",
    ),
    manage("unregistered again", "DELETE", "/models/service"),
]
# No predictions but one that fails at once: the first of a workflow often fails in TorchServe, after 20 s.
WORKFLOWS = [
    manage("no workflows", "GET", "/workflows"),
    manage("a workflow registered", "POST", "/workflows?url=flow.war"),
    manage("a workflow registered twice", "POST", "/workflows?url=flow.war"),
    manage("an unknown workflow registered", "POST", "/workflows?url=nobody.war"),
    manage("the workflows", "GET", "/workflows"),
    manage("a workflow described", "GET", "/workflows/flow"),
    manage("an unknown workflow described", "GET", "/workflows/nobody"),
    Ask("a workflow whose first node fails, and again", "/wfpredict/flow", b"fail"),
    manage("the models beside a workflow", "GET", "/models"),
    Ask("an unknown workflow asked", "/wfpredict/nobody", b"x"),
    manage("a workflow unregistered", "DELETE", "/workflows/flow"),
    manage("an unknown workflow unregistered", "DELETE", "/workflows/flow"),
    manage("the models after the workflow", "GET", "/models"),
]
