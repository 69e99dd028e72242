# SPDX-License-Identifier: Apache-2.0
"""transformers language models adopted into buffers."""

from .adoption import adopt
from .decoder import Decoder
from .model import LanguageModel
from .sampling import Sampling

__all__ = ["Decoder", "LanguageModel", "Sampling", "adopt"]
