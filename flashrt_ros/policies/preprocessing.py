# SPDX-License-Identifier: Apache-2.0
"""Images as π0 takes them, and the refusal of cameras that are missing, unknown or wrong.

The code is one layer down, in `models.pi0.images`: resizing is part of the plan that the model
captures, so that a capsule's pixels and the restored policy's are made by the same kernels.
"""

from flashrt_ros.models.pi0.images import (
    ImagePreprocessing,
    ImagePreprocessor,
    Pipeline,
    check_images,
)

__all__ = ["ImagePreprocessing", "ImagePreprocessor", "Pipeline", "check_images"]
