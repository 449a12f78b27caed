"""The first thing to do in a live account: one cheap training job fails on purpose, and all about it is looked at."""
