"""The unlabeled stream in the wild: reading, scoring and sampling it."""
