# SPDX-License-Identifier: Apache-2.0
"""A streaming vision-language-action policy: delta-net memory, windowed attention, flow head."""
