"""Stage train_classifiers: classifiers of quality, toxicity and topic from labelled, reference and crawled text."""
