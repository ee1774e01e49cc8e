"""The catalogue of user mistakes: what a kernel may not do, and what it is told."""
