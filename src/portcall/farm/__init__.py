# SPDX-License-Identifier: Apache-2.0
"""The farm: many boards, many people. Places are leased, requests wait in a fair queue, a restart loses nothing."""
