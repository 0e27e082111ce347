"""The public raw archives and other formats: download, reading, the published splits, conversion to datasets."""
