"""A run: recipe, place, catalogue of stages, resolution of inputs, lineage, the runner, trace, tracking, the shell."""
