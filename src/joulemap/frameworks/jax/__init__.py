"""JAX: its live adapter, and the reading of its profiles."""
