"""Sluice's own parsers, a module each; `tasks.stages.extract.parser` is their interface and names them."""
