"""PyTorch: its live adapter, and the reader of what it left behind."""
