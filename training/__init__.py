# SPDX-License-Identifier: Apache-2.0
"""How the shipped policy was made: expert data, training, evaluation. Not part of the package."""
