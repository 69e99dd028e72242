# SPDX-License-Identifier: Apache-2.0
"""Bags in, the same actions out."""
