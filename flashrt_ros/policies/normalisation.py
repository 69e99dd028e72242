# SPDX-License-Identifier: Apache-2.0
"""Statistics of LeRobot's and transformers' checkpoints, between radians and a network's numbers.

The code is one layer down, in `models.pi0.normalisation`: it is part of the plans that the model
captures. Here it is for what works on recorded data.
"""

from flashrt_ros.models.pi0.normalisation import Mode, Normalisation, Normaliser

__all__ = ["Mode", "Normalisation", "Normaliser"]
