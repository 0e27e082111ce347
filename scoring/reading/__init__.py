"""Files of others, read with bounds and checked: archives of predictions, test labels."""
