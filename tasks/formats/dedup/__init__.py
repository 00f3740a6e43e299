"""Exchange between passes over the corpus, and the duplicates that they find, in one version and across versions."""
