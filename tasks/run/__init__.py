"""Runs of a recipe: settings, place, catalogue, input resolution, lineage, runner, trace, tracking, command line."""
