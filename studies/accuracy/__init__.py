"""How far the accounting is off where the truth is known."""
