"""Workers of a cluster: their versions, a log of changes, and the window of items that they have at a time."""
