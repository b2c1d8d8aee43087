"""Many trials: named grids of specs, and what runs them."""
