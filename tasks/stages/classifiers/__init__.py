"""Stage train_classifiers: models of quality, toxicity and topic, trained on reference text, labels and the crawl."""
