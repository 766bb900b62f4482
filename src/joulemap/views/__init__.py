"""Views: a footprint turned into what people look at and tools read. One view a file."""
