"""Names of tables that a recording may have beside those of its own kinds."""

from __future__ import annotations

SIGNATURES, VALUES = "signatures", "values"
"""What operations were called with, and what their operands held."""
REGIONS, SESSIONS, FACTS = "regions", "sessions", "facts"
"""What the program measured by name, when it was traced, and what was looked up that explains the energy."""
