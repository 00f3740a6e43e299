"""Stage estimate: what a training run will take, before it begins."""
