# SPDX-License-Identifier: Apache-2.0
"""transformers language models adopted into buffers."""

from .adoption import adopt
from .decoder import Decoder
from .engine import Chunk, Generated, LanguageEngine, Request, Stream
from .generation import Finish, Generator, Limits, Started, Step
from .model import LanguageModel
from .prefix import Exactness, PrefixRegistry, Reuse
from .sampling import Sampling

__all__ = [
    "Chunk",
    "Decoder",
    "Exactness",
    "Finish",
    "Generated",
    "Generator",
    "LanguageEngine",
    "LanguageModel",
    "Limits",
    "PrefixRegistry",
    "Request",
    "Reuse",
    "Sampling",
    "Started",
    "Step",
    "Stream",
    "adopt",
]
