"""The public raw archives: download, reading, the published splits, conversion to datasets."""
