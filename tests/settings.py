"""The dashboard's settings over a data folder of the test run's own, which goes when the run ends."""

import atexit
import os
import shutil
import tempfile

_data = tempfile.mkdtemp(prefix="slipway-tests-")
atexit.register(shutil.rmtree, _data, ignore_errors=True)
os.environ["SLIPWAY_DATA"] = _data

from dashboard.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
