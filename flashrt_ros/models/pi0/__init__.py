# SPDX-License-Identifier: Apache-2.0
"""π0 of transformers and LeRobot, adopted into buffers: `adopt_pi0`."""

from .adoption import adopt_pi0
from .images import ImagePreprocessing, Pipeline
from .normalisation import Mode, Normalisation, Normaliser
from .policy import Pi0Policy
from .prompt import PromptTokenizer
from .robot import Robot

__all__ = [
    "ImagePreprocessing",
    "Mode",
    "Normalisation",
    "Normaliser",
    "Pi0Policy",
    "Pipeline",
    "PromptTokenizer",
    "Robot",
    "adopt_pi0",
]
