"""Methods, a folder for every family; families know nothing of each other."""
