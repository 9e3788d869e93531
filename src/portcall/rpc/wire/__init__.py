# SPDX-License-Identifier: Apache-2.0
"""Everything both ends agree on: addresses, the handshake, TLS. No session and no server is known here."""
