"""A version of a model proves itself: it reads reference pages in a child process, beside the version that serves."""
