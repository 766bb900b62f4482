"""JAX: what the names in its profiles mean."""
