"""What one operation really costs: each is replayed by itself, and its joules weigh in the accounting."""
