"""What marks a grid, under the name that users of other tuners import it by."""

from holdfast.space import grid_search

__all__ = ["grid_search"]
