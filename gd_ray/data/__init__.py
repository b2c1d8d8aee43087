"""Labelled images: how they are held, augmented, split into tasks and read."""
