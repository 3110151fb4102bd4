"""Alternative clusterings: unlike one that is known, or two at once that are unlike each other."""
