# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that run where the package is installed: `flashrt bench …`."""
