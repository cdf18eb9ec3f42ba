"""What holds for every test, set before anything heavy is imported."""

from __future__ import annotations

import os
import signal

# One thread: tiny models gain nothing from two, and sums come out in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from beartype import BeartypeConf, beartype
from hypothesis import settings
from jaxtyping import install_import_hook

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as mypy has it

# The maths is checked against the shapes in its signatures, here and not in production.
MATHS = ["advantages", "batch", "logprobs", "loss"]
install_import_hook([f"rlkit.training.{name}" for name in MATHS], f"{__name__}.checked")

# Examples depend on the test alone, and a busy machine is no failure (pytest-timeout catches what hangs).
settings.register_profile("rlkit", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("rlkit")

# A job that a shell started in the background ignores Ctrl-C, and so would what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
