"""What all pages and tables share: markup, words, evaluated runs, published results."""
