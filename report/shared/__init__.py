"""What all pages and tables share: markup, words, a run with its test labels, published results."""
